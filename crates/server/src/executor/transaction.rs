//! MULTI, EXEC and WATCH: commands that happen together.
//!
//! Between MULTI and EXEC commands are queued (`queue.rs`). EXEC runs them in a serializable transaction of the store, one after the other, each with a reply
//! of its own, and commits it: what they have written becomes visible and durable at once, or, with a crash, not at all. A command that fails leaves an error
//! among the replies, and nothing else: what it had written is taken back, and the others are run all the same, as in Redis; but when the store takes no more
//! writes, nothing is done at all, and EXEC says `EXECABORT`. When the commit fails because another client has changed something that the commands have read
//! or written, all of it is done once more, from the beginning, with the replies of that run; after some such turns, while no other event loop works
//! (`gate.rs`), and time stands still: what expires would overtake a long transaction for ever.
//!
//! WATCH takes a snapshot of the store. At EXEC, the transaction asks of each watched key whether it is as the snapshot shows it, and the commit fails if it
//! does not stay so. The snapshot holds back what was replaced since, so a client that watches and does nothing costs space, until it is gone.

use super::{Call, Failure, Slice, backup, try_execute};
use crate::client::Watched;
use crate::database::Databases;
use crate::queue::Queue;
use crate::shared::Counters;
use everleaf::{Error, Isolation, Transaction};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Attempts at a transaction while others work, too.
const ATTEMPTS: usize = 16;
/// Bytes of memory that a transaction may take for what it writes and reads: `FLUSHALL` writes each key that there is.
const SIZE_MAX: usize = 256 << 20;
/// Keys that a client watches at most: it may have a snapshot for each.
const WATCHED_COUNT_MAX: usize = 65_536;
/// Bytes of them at most.
const WATCHED_SIZE_MAX: usize = 64 << 20;

const ABORTED: Failure = Failure::fixed("EXECABORT Transaction discarded because of previous errors.");
const TOO_MANY_WATCHED: Failure = Failure::fixed("ERR a client can watch 65536 keys of 64 MiB in all; none of these is watched, EXEC or UNWATCH first");
const STOPPING: Failure = Failure::refusal("ERR the server is stopping, and others were faster each time; nothing was changed, try again");
const TOO_MANY_REPLIES: Failure =
    Failure::refusal("ERR the replies of the transaction are larger than the output buffer may be; nothing was changed, split it up");

pub(crate) fn multi(call: &mut Call<'_>) -> Result<(), Failure> {
    if call.session.queue.is_some() {
        return Err(Failure::fixed("ERR MULTI calls can not be nested"));
    }
    call.session.queue = Some(Queue::default());
    call.reply.ok();
    Ok(())
}

pub(crate) fn discard(call: &mut Call<'_>) -> Result<(), Failure> {
    call.session.queue.take().ok_or(Failure::fixed("ERR DISCARD without MULTI"))?;
    call.session.watched = Watched::default();
    call.reply.ok();
    Ok(())
}

pub(crate) fn watch(call: &mut Call<'_>) -> Result<(), Failure> {
    if call.session.queue.is_some() {
        return Err(Failure::fixed("ERR WATCH inside MULTI is not allowed"));
    }
    let (database, watched) = (call.session.database, &mut call.session.watched);
    let (mut added, mut size) = (BTreeSet::new(), watched.size);
    for key in call.arguments.from(1) {
        let place = (database, key.to_vec());
        // What is watched already goes on to be watched from then on.
        if !watched.keys.contains_key(&place) && added.insert(place) {
            size += key.len();
        }
        if watched.keys.len() + added.len() > WATCHED_COUNT_MAX || size > WATCHED_SIZE_MAX {
            return Err(TOO_MANY_WATCHED);
        }
    }
    if !added.is_empty() {
        let since = Arc::new(call.server.store.snapshot()?);
        watched.keys.extend(added.into_iter().map(|place| (place, since.clone())));
        watched.size = size;
    }
    call.reply.ok();
    Ok(())
}

pub(crate) fn unwatch(call: &mut Call<'_>) -> Result<(), Failure> {
    call.session.watched = Watched::default();
    call.reply.ok();
    Ok(())
}

pub(crate) fn exec(call: &mut Call<'_>) -> Result<(), Failure> {
    let queue = call.session.queue.take().ok_or(Failure::fixed("ERR EXEC without MULTI"))?;
    let watched = std::mem::take(&mut call.session.watched);
    if queue.is_broken() {
        return Err(ABORTED);
    }
    insist(call, |call| attempt(call, &queue, &watched)).map_err(|failure| if failure.is_refusal { failure.of_exec() } else { failure })?;
    if std::mem::take(&mut call.session.wants_backup) {
        call.server.backups.schedule();
        backup::begin_scheduled(call.server);
    }
    Ok(())
}

/// Attempts something until nobody overtakes it; after some turns, while no other event loop works.
pub(super) fn insist<T>(call: &mut Call<'_>, mut attempt: impl FnMut(&mut Call<'_>) -> Result<Attempt<T>, Failure>) -> Result<T, Failure> {
    for _ in 0..ATTEMPTS {
        if let Attempt::Done(outcome) = attempt(call)? {
            return Ok(outcome);
        }
    }
    let (gate, number) = (&call.server.gate, call.session.client.thread);
    gate.alone(number, || {
        // Who uses the store beside the server is left to overtake it.
        loop {
            // For each attempt anew: somebody else may have held the time, or the wall was set back behind it.
            let _held = call.server.store.hold_time(Duration::MAX);
            if let Attempt::Done(outcome) = attempt(call)? {
                return Ok(outcome);
            }
            if call.server.is_stopping() {
                return Err(STOPPING);
            }
        }
    })
}

/// How an attempt ended.
pub(super) enum Attempt<T> {
    /// What came of it.
    Done(T),
    /// Without a trace.
    Overtaken,
}

impl<T> From<Result<T, Error>> for Attempt<Result<T, Error>> {
    fn from(outcome: Result<T, Error>) -> Self {
        match outcome {
            Err(Error::Conflict { .. }) => Self::Overtaken,
            outcome => Self::Done(outcome),
        }
    }
}

/// Runs the commands and commits what they have written. Unless that is done, the session is as before.
fn attempt(call: &mut Call<'_>, queue: &Queue, watched: &Watched) -> Result<Attempt<()>, Failure> {
    let start = call.reply.out.len();
    let before = (call.session.database, call.session.replies, call.reply.protocol);
    let outcome = run_and_commit(call, queue, watched);
    if !matches!(outcome, Ok(Attempt::Done(()))) {
        call.reply.out.truncate(start);
        (call.session.database, call.session.replies, call.reply.protocol) = before;
        call.session.wants_backup = false;
    }
    outcome
}

fn run_and_commit(call: &mut Call<'_>, queue: &Queue, watched: &Watched) -> Result<Attempt<()>, Failure> {
    let mut transaction = call.server.store.begin(Isolation::Serializable)?;
    transaction.limit_size(SIZE_MAX);
    for ((database, key), since) in &watched.keys {
        if !transaction.is_unchanged_since(since, &call.server.databases[*database], key)? {
            call.reply.null_array();
            return Ok(Attempt::Done(()));
        }
    }
    let (transaction, counted) = (RefCell::new(transaction), Counters::default());
    let outcome = run_queue(call, queue, &transaction, &counted).and_then(|()| match transaction.into_inner().commit() {
        Err(Error::Conflict { .. }) => Ok(Attempt::Overtaken),
        committed => Ok(Attempt::Done(committed?)),
    });
    if let Ok(Attempt::Overtaken) = outcome {
        // Without a trace there either, but that the work has been done, which ends a slice.
        call.counters.looked_at.add(counted.looked_at.get());
        return outcome;
    }
    if outcome.is_err() {
        counted.changes.set(0);
    }
    call.counters.add_all(&counted);
    outcome
}

/// Runs the commands of a transaction, and writes their replies.
fn run_queue(call: &mut Call<'_>, queue: &Queue, transaction: &RefCell<Transaction>, counted: &Counters) -> Result<(), Failure> {
    let start = call.reply.out.len();
    call.reply.array(queue.len());
    for (spec, arguments) in queue.iter() {
        let databases = Databases { transaction: Some(transaction), changes: &counted.changes, ..call.databases };
        let mut call = Call { server: call.server, databases, counters: counted, session: &mut *call.session, reply: &mut *call.reply, arguments, spec };
        let (before, start_of_reply, changes_before) = (transaction.borrow_mut().savepoint(), call.reply.out.len(), counted.changes.get());
        if let Err(failure) = run_to_end(&mut call, start) {
            if failure.is_refusal {
                return Err(failure);
            }
            call.reply.out.truncate(start_of_reply);
            transaction.borrow_mut().rollback_to(&before);
            counted.changes.set(changes_before);
            failure.write(call.reply);
        }
        transaction.borrow_mut().release(before);
    }
    call.session.command = Some(call.spec);
    Ok(())
}

/// Runs a command with all its slices, since within a transaction nobody else has a turn. The replies of the transaction begin at `start`.
///
/// # Errors
/// That of the command; a refusal when the store takes no more writes, or the replies come to be more than may wait for the client.
fn run_to_end(call: &mut Call<'_>, start: usize) -> Result<(), Failure> {
    try_execute(call)?;
    loop {
        let unfinished = call.session.unfinished.take();
        let gathered = unfinished.as_ref().map_or(0, |unfinished| unfinished.size());
        if call.reply.out.len() - start + gathered > call.server.config.limits.output_buffer_size_max {
            return Err(TOO_MANY_REPLIES);
        }
        let Some(mut unfinished) = unfinished else { return Ok(()) };
        match unfinished.advance(call.databases, call.counters).inspect_err(|_| call.counters.errors.add(1))? {
            Slice::More => call.session.unfinished = Some(unfinished),
            Slice::Last => unfinished.finish(call.reply),
        }
    }
}
