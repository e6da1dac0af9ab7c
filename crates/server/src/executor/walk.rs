//! KEYS and RANGE: commands that may visit every key.
//!
//! A walk runs in slices, see [`Unfinished`]. It is no snapshot: keys present throughout the walk are found once; keys that come or go meanwhile may be found
//! or not. The first line of the reply gives the number of elements, so these are gathered until the walk is done.
//!
//! `RANGE start end [LIMIT n] [REV] [KEYSONLY]` returns keys in bytewise order, each followed by its value (in RESP3: an array of pairs). The walk begins at
//! `start`: with REV that is the greater end. Ends are written as in ZRANGE BYLEX, except that a plain key is inclusive, too: `key` or `[key` with it, `(key`
//! without it, `-` below and `+` above every key. A key that begins with one of these bytes needs the `[`. LIMIT stops after n keys; a negative n does not.

use super::{Call, Failure, SLICE_KEY_COUNT, SLICE_SIZE, SLICE_STEP_COUNT, Slice, Unfinished};
use crate::database::Databases;
use crate::glob;
use crate::reply::{Protocol, Reply};
use crate::shared::Counters;
use everleaf::{Cursor, Direction};
use std::ops::{Bound, ControlFlow};

/// What the reply contains for each key found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Keys,
    KeysAndValues,
}

/// A walk in progress.
struct Walk {
    database: usize,
    /// The rest of the range.
    cursor: Cursor,
    pattern: Option<Vec<u8>>,
    shape: Shape,
    /// Keys still wanted.
    remaining: u64,
    found: usize,
    elements: Reply,
}

pub(crate) fn keys(call: &mut Call<'_>) -> Result<(), Failure> {
    let pattern = call.argument(1);
    let cursor = Cursor::prefix(&glob::literal_prefix(pattern), Direction::Forward);
    begin(call, Walk { pattern: (pattern != b"*").then(|| pattern.to_vec()), ..Walk::over(call, cursor, Shape::Keys) })
}

pub(crate) fn range(call: &mut Call<'_>) -> Result<(), Failure> {
    let (mut limit, mut direction, mut shape) = (u64::MAX, Direction::Forward, Shape::KeysAndValues);
    let mut index = 3;
    while index < call.arguments.len() {
        if call.arguments.is(index, "limit") && index + 1 < call.arguments.len() {
            index += 1;
            limit = u64::try_from(call.integer(index)?).unwrap_or(u64::MAX);
        } else if call.arguments.is(index, "rev") {
            direction = Direction::Reverse;
        } else if call.arguments.is(index, "keysonly") {
            shape = Shape::Keys;
        } else {
            return Err(Failure::SYNTAX);
        }
        index += 1;
    }
    let (lowest, highest) = match direction {
        Direction::Forward => (b"-", b"+"),
        Direction::Reverse => (b"+", b"-"),
    };
    let (start, end) = (call.argument(1), call.argument(2));
    if limit == 0 || start == highest || end == lowest {
        call.reply.array(0);
        return Ok(());
    }
    let from = if start == lowest { Bound::Unbounded } else { bound(start) };
    let end = if end == highest { Bound::Unbounded } else { bound(end) };
    begin(call, Walk { remaining: limit, ..Walk::over(call, Cursor::new(from, direction).until(end), shape) })
}

fn bound(text: &[u8]) -> Bound<&[u8]> {
    match text {
        [b'(', key @ ..] => Bound::Excluded(key),
        [b'[', key @ ..] | key => Bound::Included(key),
    }
}

/// Runs the first slice, which is usually the only one.
fn begin(call: &mut Call<'_>, mut walk: Walk) -> Result<(), Failure> {
    match walk.advance(call.databases, call.counters)? {
        Slice::Last => walk.finish(call.reply),
        Slice::More => call.session.unfinished = Some(Box::new(walk)),
    }
    Ok(())
}

impl Walk {
    fn over(call: &Call<'_>, cursor: Cursor, shape: Shape) -> Self {
        let (elements, cursor) = (Reply::new(call.reply.protocol), cursor.passing(SLICE_KEY_COUNT));
        Self { database: call.session.database, cursor, pattern: None, shape, remaining: u64::MAX, found: 0, elements }
    }

    fn take(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.found += 1;
        if value.is_some() && self.elements.protocol == Protocol::Resp3 {
            self.elements.array(2);
        }
        self.elements.bulk(key);
        if let Some(value) = value {
            self.elements.bulk(value);
        }
    }
}

impl Unfinished for Walk {
    fn advance(&mut self, databases: Databases<'_>, counters: &Counters) -> Result<Slice, Failure> {
        let mut cursor = self.cursor.clone();
        let size_max = self.elements.out.len() + SLICE_SIZE;
        let (mut visited, mut steps) = (0, 0);
        let mut outcome = Ok(());
        let (database, shape) = (databases.at(self.database), self.shape);
        let mut visit = |key: &[u8], value: Option<&[u8]>| {
            match self.pattern.as_ref().map_or(Ok(true), |pattern| glob::matches(pattern, key, &mut steps)) {
                Ok(false) => {}
                Ok(true) => {
                    self.take(key, value);
                    self.remaining -= 1;
                    if self.remaining == 0 {
                        return ControlFlow::Break(());
                    }
                }
                Err(failure) => {
                    outcome = Err(failure);
                    return ControlFlow::Break(());
                }
            }
            visited += 1;
            if visited == SLICE_KEY_COUNT || steps >= SLICE_STEP_COUNT || self.elements.out.len() >= size_max {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        if shape == Shape::Keys {
            database.walk_keys(&mut cursor, |key| visit(key, None))?;
        } else {
            database.walk(&mut cursor, |key, value| visit(key, Some(value)))?;
        }
        // Other clients must not wait for many walks that find nothing, either.
        counters.looked_at.add(steps as u64);
        self.cursor = cursor;
        outcome.map(|()| if self.remaining == 0 || self.cursor.is_over() { Slice::Last } else { Slice::More })
    }

    fn finish(&self, reply: &mut Reply) {
        let elements_per_key = if self.shape == Shape::KeysAndValues && self.elements.protocol == Protocol::Resp2 { 2 } else { 1 };
        reply.array(self.found * elements_per_key);
        reply.raw(&self.elements.out);
    }

    fn size(&self) -> usize {
        self.elements.out.len()
    }
}
