//! SCAN: the keys, a few at a time.
//!
//! Clients hand back a cursor, a 64-bit integer, and may do so over another connection. Keys are walked in order, so a cursor stands for "after this key"; the
//! key is remembered here, in one table for all connections.
//!
//! 1. Every key that is present from the first call to the last is returned: the walk visits each key after the remembered one, and inserts and removals
//!    elsewhere do not move it.
//! 2. A cursor may be used again (by a client that lost the reply): its position stays until the scan is two steps further.
//! 3. The table is bounded. A cursor that fell out of it, or that belongs to an earlier run of the server, begins at the first key again: keys may then come
//!    twice, which SCAN allows, and none is missed. Cursors have a random part, so that one from an earlier run is not taken for one of this run.
//! 4. Half of the table is for scans that have continued at least once. So a client that begins and abandons scans, however many, makes no continuing scan
//!    begin anew.

use super::{Call, Failure, SLICE_STEP_COUNT};
use crate::glob;
use everleaf::{Cursor, Direction};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

/// Largest number of positions in each half of the table.
const POSITION_COUNT_MAX: usize = 32_768;
/// Largest total size of their keys in bytes.
const POSITION_SIZE_MAX: usize = 32 << 20;
/// Largest number of keys that one call visits, whatever COUNT says, and of expired keys that it passes: other clients wait meanwhile.
const VISIT_COUNT_MAX: i64 = 4096;
/// Largest size in bytes of the keys that it visits, not counting the last one.
const VISIT_SIZE_MAX: usize = 256 * 1024;
const VISIT_COUNT_DEFAULT: i64 = 10;

struct Position {
    database: usize,
    /// The key visited last.
    key: Vec<u8>,
    /// The cursor that was used to get this one.
    previous: u64,
}

/// The table of cursors.
pub(crate) struct Cursors {
    /// The last cursor given. They ascend.
    last: u64,
    /// Positions of scans that have only begun.
    begun: Positions,
    /// Positions of scans that have continued.
    continued: Positions,
}

/// Half of the table.
#[derive(Default)]
struct Positions {
    /// The first one is the oldest.
    by_cursor: BTreeMap<u64, Position>,
    size: usize,
}

impl Positions {
    fn insert(&mut self, cursor: u64, position: Position) {
        self.size += position.key.len();
        self.by_cursor.insert(cursor, position);
        while self.by_cursor.len() > POSITION_COUNT_MAX || self.size > POSITION_SIZE_MAX {
            let oldest = self.by_cursor.pop_first();
            self.size -= oldest.map_or(self.size, |(_, position)| position.key.len());
        }
    }

    fn remove(&mut self, cursor: u64) -> Option<Position> {
        let position = self.by_cursor.remove(&cursor)?;
        self.size -= position.key.len();
        Some(position)
    }
}

impl Cursors {
    pub(crate) fn new() -> Self {
        // Below 2^53, which every client can represent: 20 random bits and a counter of 32.
        let last = u64::from(rand::random_range(1..1_u32 << 20)) << 32;
        Self { last, begun: Positions::default(), continued: Positions::default() }
    }

    fn position(&self, cursor: u64) -> Option<&Position> {
        self.continued.by_cursor.get(&cursor).or_else(|| self.begun.by_cursor.get(&cursor))
    }

    fn key(&self, cursor: u64, database: usize) -> Option<&[u8]> {
        self.position(cursor).filter(|position| position.database == database).map(|position| position.key.as_slice())
    }

    /// A new cursor for the position after `key`, in the scan that used `previous`.
    fn advance(&mut self, previous: u64, database: usize, key: Vec<u8>) -> u64 {
        self.forget_before(previous);
        if let Some(position) = self.begun.remove(previous) {
            self.continued.insert(previous, position);
        }
        let positions = if self.position(previous).is_some() { &mut self.continued } else { &mut self.begun };
        self.last += 1;
        positions.insert(self.last, Position { database, key, previous });
        self.last
    }

    fn forget_before(&mut self, cursor: u64) {
        if let Some(before) = self.position(cursor).map(|position| position.previous) {
            self.begun.remove(before);
            self.continued.remove(before);
        }
    }
}

struct Options<'a> {
    count: i64,
    pattern: Option<&'a [u8]>,
    strings: bool,
}

pub(crate) fn scan(call: &mut Call<'_>) -> Result<(), Failure> {
    let cursor = parse_cursor(call.argument(1)).ok_or(Failure::fixed("ERR invalid cursor"))?;
    let options = options(call)?;
    let prefix = options.pattern.map(glob::literal_prefix).unwrap_or_default();
    let mut walk = Cursor::prefix(&prefix, Direction::Forward).passing(VISIT_COUNT_MAX as usize);
    if let Some(key) = call.server.cursors.lock().key(cursor, call.session.database).filter(|key| *key >= prefix.as_slice()) {
        walk = walk.at(Bound::Excluded(key));
    }
    let (mut visited, mut visited_size, mut steps) = (0, 0, 0);
    let mut found = Vec::new();
    let mut failure = None;
    call.database().walk_keys(&mut walk, |key| {
        match options.pattern.map_or(Ok(true), |pattern| glob::matches(pattern, key, &mut steps)) {
            Ok(matches) if matches && options.strings => found.push(key.to_vec()),
            Ok(_) => {}
            Err(error) => {
                failure = Some(error);
                return ControlFlow::Break(());
            }
        }
        visited += 1;
        visited_size += key.len();
        if visited < options.count && visited_size < VISIT_SIZE_MAX && steps < SLICE_STEP_COUNT {
            return ControlFlow::Continue(());
        }
        ControlFlow::Break(())
    })?;
    call.counters.looked_at.add((visited_size + steps) as u64);
    if let Some(failure) = failure {
        return Err(failure);
    }
    let mut cursors = call.server.cursors.lock();
    let next = match walk.position() {
        Bound::Excluded(last) if !walk.is_over() => cursors.advance(cursor, call.session.database, last.to_vec()),
        _ => {
            cursors.forget_before(cursor);
            0
        }
    };
    drop(cursors);
    call.reply.array(2);
    call.reply.bulk(itoa::Buffer::new().format(next).as_bytes());
    call.reply.array(found.len());
    found.iter().for_each(|key| call.reply.bulk(key));
    Ok(())
}

fn options<'a>(call: &Call<'a>) -> Result<Options<'a>, Failure> {
    let mut options = Options { count: VISIT_COUNT_DEFAULT, pattern: None, strings: true };
    let mut index = 2;
    while index < call.arguments.len() {
        let more = index + 1 < call.arguments.len();
        if more && call.arguments.is(index, "count") {
            options.count = call.integer(index + 1)?;
            if options.count < 1 {
                return Err(Failure::SYNTAX);
            }
        } else if more && call.arguments.is(index, "match") {
            options.pattern = Some(call.argument(index + 1));
        } else if more && call.arguments.is(index, "type") {
            options.strings = call.arguments.is(index + 1, "string");
        } else {
            return Err(Failure::SYNTAX);
        }
        index += 2;
    }
    options.count = options.count.min(VISIT_COUNT_MAX);
    Ok(options)
}

/// Parses an unsigned integer like C's `strtoul`: a sign is allowed, and empty text is zero.
fn parse_cursor(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    match text.strip_prefix('-') {
        _ if text.is_empty() => Some(0),
        Some(digits) if digits.starts_with(|first: char| first.is_ascii_digit()) => digits.parse().ok().map(u64::wrapping_neg),
        Some(_) => None,
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_may_be_used_twice_and_the_table_stays_small() {
        let mut cursors = Cursors::new();
        let first = cursors.advance(0, 0, b"a".to_vec());
        let second = cursors.advance(first, 0, b"b".to_vec());
        assert_eq!((cursors.key(first, 0), cursors.key(second, 0), cursors.key(second, 1)), (Some(&b"a"[..]), Some(&b"b"[..]), None));
        let mut cursor = second;
        for step in 0..100_000_u32 {
            cursor = cursors.advance(cursor, 0, step.to_be_bytes().to_vec());
        }
        assert_eq!(cursors.key(cursor, 0), Some(&99_999_u32.to_be_bytes()[..]));
        assert_eq!((cursors.continued.by_cursor.len(), cursors.continued.size, cursors.begun.size), (2, 8, 0));
    }

    #[test]
    fn abandoned_cursors_fall_out() {
        let mut cursors = Cursors::new();
        let first = cursors.advance(0, 0, b"a".to_vec());
        for _ in 0..2 * POSITION_COUNT_MAX {
            cursors.advance(0, 0, vec![b'k'; 100]);
        }
        assert_eq!(cursors.key(first, 0), None);
        assert_eq!((cursors.begun.by_cursor.len(), cursors.begun.size), (POSITION_COUNT_MAX, POSITION_COUNT_MAX * 100));
    }

    /// The oldest position fell out, even if in use: a slow scan beside many scans that were only begun began anew, and never came to its end.
    #[test]
    fn a_scan_that_goes_on_is_not_made_to_begin_anew_by_others_that_do_not() {
        let mut cursors = Cursors::new();
        let first = cursors.advance(0, 0, b"a".to_vec());
        let mut cursor = cursors.advance(first, 0, b"b".to_vec());
        for step in 0..5_u32 {
            for _ in 0..2 * POSITION_COUNT_MAX {
                cursors.advance(0, 0, b"k".to_vec());
            }
            cursor = cursors.advance(cursor, 0, step.to_be_bytes().to_vec());
            assert_eq!(cursors.key(cursor, 0), Some(&step.to_be_bytes()[..]));
        }
        // Abandoned scans that have continued do not keep others from beginning, either.
        for _ in 0..2 * POSITION_COUNT_MAX {
            let first = cursors.advance(0, 0, b"k".to_vec());
            cursors.advance(first, 0, b"l".to_vec());
        }
        let first = cursors.advance(0, 0, b"a".to_vec());
        let second = cursors.advance(first, 0, b"b".to_vec());
        assert_eq!((cursors.key(first, 0), cursors.key(second, 0)), (Some(&b"a"[..]), Some(&b"b"[..])));
    }

    #[test]
    fn cursors_as_text() {
        for (text, cursor) in
            [("0", Some(0)), ("", Some(0)), ("17", Some(17)), ("+1", Some(1)), ("-1", Some(u64::MAX)), ("x", None), ("1x", None), (" 1", None), ("-+1", None)]
        {
            assert_eq!(parse_cursor(text.as_bytes()), cursor, "{text:?}");
        }
    }
}
