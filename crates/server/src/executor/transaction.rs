//! MULTI, EXEC and WATCH: commands that take effect together.
//!
//! Between MULTI and EXEC commands are queued (`queue.rs`). EXEC runs them in a serializable transaction of the store, one after the other, each with its own
//! reply, and commits it: their writes become visible and durable at once, or, after a crash, not at all. A command that fails leaves only an error among the
//! replies: its writes are undone, and the others are run all the same, as in Redis; but when the store takes no more writes, nothing is done at all, and EXEC
//! replies `EXECABORT`. If the commit fails because another client has changed something that the commands have read or written, everything is run again from
//! the beginning, and the replies are those of the last run. After some attempts this happens while no other event loop works (`gate.rs`), and with time
//! stopped, because expiring keys could fail a long transaction for ever.
//!
//! WATCH takes a snapshot of the store. At EXEC, the transaction checks whether each watched key is as the snapshot shows it, and the commit fails if it does
//! not stay so. The snapshot holds back what was replaced since, so a client that watches and then does nothing costs space until it is gone.

use super::{Call, Failure, Slice, backup, try_execute};
use crate::client::Watched;
use crate::database::Databases;
use crate::queue::Queue;
use crate::shared::Counters;
use everleaf::{Error, Isolation, Transaction};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Attempts at a transaction while other event loops work.
const ATTEMPTS: usize = 16;
/// Bytes of memory that a transaction may take for its writes and reads: `FLUSHALL` writes every key.
const SIZE_MAX: usize = 256 << 20;
/// Largest number of keys that a client watches: it may have a snapshot for each.
const WATCHED_COUNT_MAX: usize = 65_536;
/// Largest total size of these keys in bytes.
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
        // A key that is already watched stays watched from the earlier moment.
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
    let run = |call: &mut Call<'_>| run_and_commit(call, &watched, |call, transaction, counted| run_queue(call, &queue, transaction, counted));
    insist(call, |call| attempt(call, run)).map_err(|failure| if failure.is_refusal { failure.of_exec() } else { failure })?;
    if std::mem::take(&mut call.session.wants_backup) {
        call.server.backups.schedule();
        backup::begin_scheduled(call.server);
    }
    Ok(())
}

/// Repeats an attempt until it is not overtaken; after some attempts, while no other event loop works.
pub(super) fn insist<T>(call: &mut Call<'_>, mut attempt: impl FnMut(&mut Call<'_>) -> Result<Attempt<T>, Failure>) -> Result<T, Failure> {
    for _ in 0..ATTEMPTS {
        if let Attempt::Done(outcome) = attempt(call)? {
            return Ok(outcome);
        }
    }
    let (gate, number) = (&call.server.gate, call.session.client.thread);
    gate.alone(number, || {
        // Programs that use the store beside the server can still overtake it.
        loop {
            // Anew for each attempt: another thread may have held the time, or the wall clock was set back behind it.
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
    /// Finished, with this result.
    Done(T),
    /// Undone without a trace.
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

/// Runs commands and commits their writes. If that fails, the session is as before.
fn attempt(call: &mut Call<'_>, run: impl FnOnce(&mut Call<'_>) -> Result<Attempt<()>, Failure>) -> Result<Attempt<()>, Failure> {
    let start = call.reply.out.len();
    let before = (call.session.database, call.session.replies, call.reply.protocol);
    let outcome = run(call);
    if !matches!(outcome, Ok(Attempt::Done(()))) {
        call.reply.out.truncate(start);
        (call.session.database, call.session.replies, call.reply.protocol) = before;
        call.session.wants_backup = false;
    }
    outcome
}

/// Runs commands in a transaction of their own, all or none, until no other client is faster.
pub(super) fn all_or_none(call: &mut Call<'_>, run: impl Fn(&mut Call<'_>, &RefCell<Transaction>, &Counters) -> Result<(), Failure>) -> Result<(), Failure> {
    insist(call, |call| attempt(call, |call| run_and_commit(call, &Watched::default(), &run)))
}

fn run_and_commit(
    call: &mut Call<'_>,
    watched: &Watched,
    run: impl FnOnce(&mut Call<'_>, &RefCell<Transaction>, &Counters) -> Result<(), Failure>,
) -> Result<Attempt<()>, Failure> {
    let mut transaction = call.server.store.begin(Isolation::Serializable)?;
    transaction.limit_size(SIZE_MAX);
    for ((database, key), since) in &watched.keys {
        if !transaction.is_unchanged_since(since, &call.server.databases[*database], key)? {
            call.reply.null_array();
            return Ok(Attempt::Done(()));
        }
    }
    let (transaction, counted) = (RefCell::new(transaction), Counters::default());
    let outcome = run(call, &transaction, &counted).and_then(|()| match transaction.into_inner().commit() {
        Err(Error::Conflict { .. }) => Ok(Attempt::Overtaken),
        committed => Ok(Attempt::Done(committed?)),
    });
    if let Ok(Attempt::Overtaken) = outcome {
        // Nothing of it remains here either, except that the work counts, which ends a slice.
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
        run_step(&mut call, transaction, start)?;
    }
    call.session.command = Some(call.spec);
    Ok(())
}

/// Runs one command of a transaction, whose replies begin at `start`. If it fails, its writes are undone, and the error is its reply.
///
/// # Errors
/// A refusal: the whole transaction is to be given up.
pub(super) fn run_step(call: &mut Call<'_>, transaction: &RefCell<Transaction>, start: usize) -> Result<(), Failure> {
    let changes = call.counters.changes.get();
    let (before, start_of_reply) = (transaction.borrow_mut().savepoint(), call.reply.out.len());
    if let Err(failure) = run_to_end(call, start) {
        if failure.is_refusal {
            return Err(failure);
        }
        call.reply.out.truncate(start_of_reply);
        transaction.borrow_mut().rollback_to(&before);
        call.counters.changes.set(changes);
        failure.write(call.reply);
    }
    transaction.borrow_mut().release(before);
    Ok(())
}

/// Runs a command with all its slices: within a transaction no other connection has a turn. The replies of the transaction begin at `start`.
///
/// # Errors
/// Those of the command; a refusal when the store takes no more writes, or when the replies become larger than may wait for the client.
fn run_to_end(call: &mut Call<'_>, start: usize) -> Result<(), Failure> {
    try_execute(call)?;
    let (begun, ongoing) = (Instant::now(), call.session.ongoing.take());
    let outcome = go_on_to_end(call, start);
    if let Some(mut ongoing) = ongoing {
        let (calls, client) = (&call.server.calls, &call.session.client);
        ongoing.go_on(calls, client, begun.elapsed());
        ongoing.end(calls, client);
    }
    outcome
}

/// Runs the other slices of a command.
fn go_on_to_end(call: &mut Call<'_>, start: usize) -> Result<(), Failure> {
    loop {
        let unfinished = call.session.unfinished.take();
        let gathered = unfinished.as_ref().map_or(0, |unfinished| unfinished.size());
        if call.reply.out.len() - start + gathered > call.server.config.limits.output_buffer_size_max {
            return Err(TOO_MANY_REPLIES);
        }
        let Some(mut unfinished) = unfinished else { return Ok(()) };
        match unfinished.advance(call.databases, call.counters).inspect_err(|failure| call.counters.fail(failure))? {
            Slice::More => call.session.unfinished = Some(unfinished),
            Slice::Last => unfinished.finish(call.reply),
        }
    }
}
