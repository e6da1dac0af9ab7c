//! Frames of the Redis protocol: however a stream is cut into pieces, the parser hears the same, and never panics.
//!
//! The first byte says how many cuts there are, the next ones where; the rest is the stream.
#![no_main]

use everleaf_server::resp::{FrameLimits, Parser, Progress, ProtocolError};
use libfuzzer_sys::fuzz_target;

/// Arguments of every frame, how it ended, and how many bytes were left.
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
    let Some((&count, data)) = data.split_first() else { return };
    let count = usize::from(count % 16).min(data.len());
    let (cuts, stream) = data.split_at(count);
    let mut cuts: Vec<usize> = cuts.iter().map(|&cut| usize::from(cut) * (stream.len() + 1) / 256).collect();
    cuts.extend([0, stream.len()]);
    cuts.sort_unstable();
    for limits in [FrameLimits::with_bulk_size_max(1 << 20), FrameLimits::UNAUTHENTICATED] {
        let whole = hear(std::iter::once(stream), &limits);
        let pieces = cuts.windows(2).map(|ends| &stream[ends[0]..ends[1]]);
        assert_eq!(hear(pieces, &limits), whole);
        assert_eq!(hear(stream.chunks(1), &limits), whole);
    }
});
