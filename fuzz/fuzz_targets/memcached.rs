//! Requests of memcached: the parser must read the same from a stream however it is [cut] into pieces, and refer only to bytes within the request.
#![no_main]

use everleaf_fuzz::cut;
use everleaf_server::memcached::request::{Limits, Progress, Request, parse};
use libfuzzer_sys::fuzz_target;

const LIMITS: Limits = Limits { line_size_max: 1 << 10, data_size_max: 1 << 10 };

/// Requests, each with its bytes and whether a reply is wanted, and how many bytes were left.
type Heard = (Vec<(Vec<u8>, bool, Request)>, usize);

fn hear<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Heard {
    let mut requests = Vec::new();
    let mut buffer = Vec::new();
    let mut skipped = 0;
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let skip = buffer.len().min(skipped);
            buffer.drain(..skip);
            skipped -= skip;
            match parse(&buffer, LIMITS) {
                Progress::Request { size, quiet, request } => {
                    assert!(size > 0 && size <= buffer.len());
                    let frame: Vec<u8> = buffer.drain(..size).collect();
                    match &request {
                        Request::Get { keys, .. } => assert!(!frame[keys.clone()].is_empty()),
                        Request::Store { key, data, .. } => assert!(!frame[key.clone()].is_empty() && frame[data.end..].len() == 2),
                        Request::Delete { key, .. } | Request::Count { key, .. } | Request::Touch { key, .. } => assert!(!frame[key.clone()].is_empty()),
                        Request::Stats { what } => assert!(frame.get(what.clone()).is_some()),
                        Request::Meta(meta) => {
                            assert!(!frame[meta.key.clone()].is_empty() && frame.get(meta.flags.clone()).is_some());
                            assert!(meta.data.is_empty() || frame[meta.data.end..].len() == 2);
                        }
                        Request::Wrong { is_last: true, .. } => return (requests, 0),
                        Request::Wrong { skip, .. } => skipped = *skip,
                        _ => {}
                    }
                    requests.push((frame, quiet, request));
                }
                Progress::Incomplete { missing } => {
                    assert!(missing > 0);
                    break;
                }
            }
        }
    }
    (requests, buffer.len())
}

fuzz_target!(|data: &[u8]| {
    let Some((stream, pieces)) = cut(data) else { return };
    let whole = hear(std::iter::once(stream));
    assert_eq!(hear(pieces.into_iter()), whole);
    assert_eq!(hear(stream.chunks(1)), whole);
});
