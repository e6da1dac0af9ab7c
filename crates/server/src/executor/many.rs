//! MGET, DEL, UNLINK and EXISTS: the same for each of the keys that a client names.
//!
//! Each key is read or removed on its own. Few are done at once; of many, or of large values, a slice, and the others from a copy of their names.

use super::{Call, Failure, SLICE_KEY_COUNT, SLICE_SIZE, Slice, Unfinished};
use crate::reply::Reply;
use crate::shared::{Counters, Shared};
use everleaf::Namespace;

/// What is done with each key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deed {
    Get,
    Delete,
    Count,
}

/// A command that is not done.
struct Many {
    deed: Deed,
    database: usize,
    /// The keys that were left by the first slice, one behind the other.
    bytes: Vec<u8>,
    /// Where each ends in `bytes`.
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
    run(call, Deed::Delete)
}

pub(crate) fn exists(call: &mut Call<'_>) -> Result<(), Failure> {
    run(call, Deed::Count)
}

/// Takes the first slice, which most often is the only one.
fn run(call: &mut Call<'_>, deed: Deed) -> Result<(), Failure> {
    let mut keys = call.arguments.from(1);
    let start = call.reply.out.len();
    if deed == Deed::Get {
        call.reply.array(keys.len());
    }
    let mut found = 0;
    for key in keys.by_ref().take(SLICE_KEY_COUNT) {
        found += i64::from(deed.apply(call.database(), call.counters, key, call.reply)?);
        if call.reply.out.len() - start >= SLICE_SIZE {
            break;
        }
    }
    let mut many = Many { deed, database: call.session.database, bytes: Vec::new(), ends: Vec::new(), done: 0, found, reply: Reply::new(call.reply.protocol) };
    if keys.len() == 0 {
        many.finish(call.reply);
        return Ok(());
    }
    for key in keys {
        many.bytes.extend_from_slice(key);
        many.ends.push(many.bytes.len());
    }
    many.reply.out = call.reply.out.split_off(start);
    call.session.unfinished = Some(Box::new(many));
    Ok(())
}

impl Deed {
    /// Whether the key was found; its value is written to `values`, if that is what is wanted.
    fn apply(self, database: &Namespace, counters: &Counters, key: &[u8], values: &mut Reply) -> Result<bool, Failure> {
        let found = match self {
            Self::Delete => return Ok(database.delete(key)?),
            Self::Get => values.bulk_with(|out| database.get_into(key, out))?,
            Self::Count => database.value_size(key)?.is_some(),
        };
        counters.lookup(found);
        Ok(found)
    }
}

impl Unfinished for Many {
    fn advance(&mut self, server: &Shared, counters: &Counters) -> Result<Slice, Failure> {
        let database = &server.databases[self.database];
        let size_max = self.reply.out.len() + SLICE_SIZE;
        let until = self.ends.len().min(self.done + SLICE_KEY_COUNT);
        while self.done < until && self.reply.out.len() < size_max {
            let start = if self.done == 0 { 0 } else { self.ends[self.done - 1] };
            let key = &self.bytes[start..self.ends[self.done]];
            self.found += i64::from(self.deed.apply(database, counters, key, &mut self.reply)?);
            self.done += 1;
        }
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
}
