//! Frames of the Redis protocol: the parser must read the same from a stream however it is [cut] into pieces, and never panic.
#![no_main]

use everleaf_fuzz::cut;
use everleaf_server::resp::{FrameLimits, Parser, Progress, ProtocolError};
use libfuzzer_sys::fuzz_target;

/// Arguments of all frames, how parsing ended, and how many bytes were left.
type Heard = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>, usize);

fn hear<'a>(pieces: impl Iterator<Item = &'a [u8]>, limits: &FrameLimits) -> Heard {
    let mut parser = Parser::new();
    let mut frames = Vec::new();
    let mut buffer = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match parser.parse(&mut buffer, limits) {
                Ok(Progress::Frame { size }) => {
                    frames.push(parser.spans().iter().map(|span| span.of(&buffer).to_vec()).collect());
                    buffer.drain(..size);
                }
                Ok(Progress::Incomplete { missing }) => {
                    assert!(missing > 0);
                    break;
                }
                Err(error) => return (frames, Some(error), 0),
            }
        }
    }
    (frames, None, buffer.len())
}

fuzz_target!(|data: &[u8]| {
    let Some((stream, pieces)) = cut(data) else { return };
    for limits in [FrameLimits::with_bulk_size_max(1 << 20), FrameLimits::UNAUTHENTICATED] {
        let whole = hear(std::iter::once(stream), &limits);
        assert_eq!(hear(pieces.iter().copied(), &limits), whole);
        assert_eq!(hear(stream.chunks(1), &limits), whole);
    }
});
