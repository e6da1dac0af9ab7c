//! Requests of memcached: however a stream is cut into pieces, the parser hears the same, and what it says lies within the request.
//!
//! The first byte says how many cuts there are, the next ones where; the rest is the stream.
#![no_main]

use everleaf_server::memcached::request::{Progress, Request, parse};
use libfuzzer_sys::fuzz_target;

const DATA_SIZE_MAX: usize = 1 << 10;

/// Requests, each with its bytes, and how many bytes were left.
fn hear<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<(Vec<u8>, Request)>, usize) {
    let mut requests = Vec::new();
    let mut buffer = Vec::new();
    let mut skipped = 0;
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let skip = buffer.len().min(skipped);
            buffer.drain(..skip);
            skipped -= skip;
            match parse(&buffer, DATA_SIZE_MAX) {
                Progress::Request { size, request } => {
                    assert!(size > 0 && size <= buffer.len());
                    let frame: Vec<u8> = buffer.drain(..size).collect();
                    match &request {
                        Request::Get { keys, .. } => assert!(!frame[keys.clone()].is_empty()),
                        Request::Store { key, data, .. } => assert!(!frame[key.clone()].is_empty() && frame[data.end..].len() == 2),
                        Request::Delete { key, .. } | Request::Count { key, .. } | Request::Touch { key, .. } => assert!(!frame[key.clone()].is_empty()),
                        Request::Stats { what } => assert!(frame.get(what.clone()).is_some()),
                        Request::Wrong { is_last: true, .. } => return (requests, 0),
                        Request::Wrong { skip, .. } => skipped = *skip,
                        _ => {}
                    }
                    requests.push((frame, request));
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
    let Some((&count, data)) = data.split_first() else { return };
    let count = usize::from(count % 16).min(data.len());
    let (cuts, stream) = data.split_at(count);
    let mut cuts: Vec<usize> = cuts.iter().map(|&cut| usize::from(cut) * (stream.len() + 1) / 256).collect();
    cuts.extend([0, stream.len()]);
    cuts.sort_unstable();
    let whole = hear(std::iter::once(stream));
    assert_eq!(hear(cuts.windows(2).map(|ends| &stream[ends[0]..ends[1]])), whole);
    assert_eq!(hear(stream.chunks(1)), whole);
});
