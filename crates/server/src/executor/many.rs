//! MGET, EXISTS, DEL and UNLINK: the same operation on each of several keys.
//!
//! Several keys are read as of one moment, in a snapshot: an MSET of another event loop is seen as a whole or not at all. A few keys are read at once; of many
//! keys, or large values, a slice is, and the rest later from a copy of the key names. Keys are deleted in one batch, as MSET sets them.

use super::{Call, Failure, SLICE_KEY_COUNT, SLICE_SIZE, Slice, Unfinished};
use crate::database::{Database, Databases};
use crate::reply::Reply;
use crate::shared::Counters;
use everleaf::Snapshot;

/// What is done with each key that is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deed {
    Get,
    Count,
}

/// A command in progress.
struct Many {
    deed: Deed,
    database: usize,
    /// Shows all keys as of one moment, if that is necessary and possible.
    snapshot: Option<Snapshot>,
    /// The keys left by the first slice, concatenated.
    bytes: Vec<u8>,
    /// The end of each key in `bytes`.
    ends: Vec<usize>,
    /// How many of them are done.
    done: usize,
    /// How many keys were found.
    found: i64,
    /// The reply so far.
    reply: Reply,
}

pub(crate) fn mget(call: &mut Call<'_>) -> Result<(), Failure> {
    run(call, Deed::Get)
}

pub(crate) fn del(call: &mut Call<'_>) -> Result<(), Failure> {
    let keys: Vec<&[u8]> = call.arguments.from(1).collect();
    let deleted = call.database().delete_all(&keys)?;
    call.reply.integer(deleted as i64);
    Ok(())
}

pub(crate) fn exists(call: &mut Call<'_>) -> Result<(), Failure> {
    run(call, Deed::Count)
}

/// Runs the first slice, which is usually the only one.
fn run(call: &mut Call<'_>, deed: Deed) -> Result<(), Failure> {
    let mut rest = call.arguments.from(1);
    let start = call.reply.out.len();
    if deed == Deed::Get {
        call.reply.array(rest.len());
    }
    let keys: Vec<&[u8]> = rest.by_ref().take(SLICE_KEY_COUNT).collect();
    let database = call.database();
    // A single key needs no common moment.
    let snapshot = if keys.len() == 1 { None } else { database.snapshot() };
    let (done, found) = deed.apply(database, snapshot.as_ref(), call.counters, &keys, call.reply)?;
    let (number, reply) = (call.session.database, Reply::new(call.reply.protocol));
    let mut many = Many { deed, database: number, snapshot, bytes: Vec::new(), ends: Vec::new(), done: 0, found, reply };
    if done == keys.len() && rest.len() == 0 {
        many.finish(call.reply);
        return Ok(());
    }
    for key in keys[done..].iter().copied().chain(rest) {
        many.bytes.extend_from_slice(key);
        many.ends.push(many.bytes.len());
    }
    many.reply.out = call.reply.out.split_off(start);
    call.session.unfinished = Some(Box::new(many));
    Ok(())
}

/// Why a slice ended before all of its keys were visited.
enum End {
    Enough,
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for End {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Deed {
    /// Applies the operation to `keys`, until `values` has grown by a slice; returns how many were done, and how many were found. Only GET writes values.
    fn apply(
        self,
        database: Database<'_>,
        snapshot: Option<&Snapshot>,
        counters: &Counters,
        keys: &[&[u8]],
        values: &mut Reply,
    ) -> Result<(usize, i64), Failure> {
        let (mut done, mut found_count) = (0, 0);
        let size_max = values.out.len() + SLICE_SIZE;
        let outcome = database.visit_many(snapshot, keys, |found| {
            if values.out.len() >= size_max {
                return Err(End::Enough);
            }
            counters.lookup(found.is_some());
            found_count += i64::from(found.is_some());
            if self == Self::Get {
                values.bulk_with(|out| found.map(|found| found.copy_to(out)).transpose())?;
            }
            done += 1;
            Ok(())
        });
        match outcome {
            Ok(()) | Err(End::Enough) => Ok((done, found_count)),
            Err(End::Failed(failure)) => Err(failure),
        }
    }
}

impl Unfinished for Many {
    fn advance(&mut self, databases: Databases<'_>, counters: &Counters) -> Result<Slice, Failure> {
        let until = self.ends.len().min(self.done + SLICE_KEY_COUNT);
        let start = |number: usize| if number == 0 { 0 } else { self.ends[number - 1] };
        let keys: Vec<&[u8]> = (self.done..until).map(|number| &self.bytes[start(number)..self.ends[number]]).collect();
        let (done, found) = self.deed.apply(databases.at(self.database), self.snapshot.as_ref(), counters, &keys, &mut self.reply)?;
        (self.done, self.found) = (self.done + done, self.found + found);
        Ok(if self.done == self.ends.len() { Slice::Last } else { Slice::More })
    }

    fn finish(&self, reply: &mut Reply) {
        reply.raw(&self.reply.out);
        if self.deed != Deed::Get {
            reply.integer(self.found);
        }
    }

    fn size(&self) -> usize {
        self.reply.out.len()
    }

    /// A snapshot holds back what others replace.
    fn is_awaited_by_others(&self) -> bool {
        self.snapshot.is_some()
    }
}
