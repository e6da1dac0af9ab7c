//! EVAL and SCRIPT: scripts in Lua.
//!
//! A script runs as one serializable transaction, as the commands of an EXEC do: what it writes becomes visible and durable at once, or not at all. If another
//! client overtakes it, it runs again from the beginning. Within MULTI it is a part of that transaction. A command that fails undoes its own writes and raises
//! an error, which the script may catch. Where Redis keeps what a script has written before an error that nobody catches, here nothing is left of it. When the
//! store takes no more writes, the script fails, whatever it catches.

use super::transaction::{all_or_none, run_step};
use super::{Call, Failure, resolve};
use crate::command::{Arguments, Flags};
use crate::database::Databases;
use crate::reply::{Protocol, Reply};
use crate::resp::Span;
use crate::script::{self, Digest};
use crate::shared::Counters;
use everleaf::Transaction;
use std::cell::RefCell;
use std::time::Instant;

const NO_SCRIPT: Failure = Failure::fixed("NOSCRIPT No matching script. Please use EVAL.");
const NO_ROOM: Failure = Failure::fixed("ERR there is no room for more scripts, which may have 64 MiB; SCRIPT FLUSH forgets them");
const NOT_ALLOWED: Failure = Failure::fixed("ERR This Redis command is not allowed from script");
const READ_ONLY: Failure = Failure::fixed("ERR Write commands are not allowed from read-only scripts.");

pub(crate) fn eval(call: &mut Call<'_>) -> Result<(), Failure> {
    let text = call.argument(1);
    let digest = script::digest(text);
    // Where there is no room, it runs all the same.
    call.server.scripts.keep(digest, text);
    run(call, &digest, text)
}

pub(crate) fn evalsha(call: &mut Call<'_>) -> Result<(), Failure> {
    let digest = digest_of(call.argument(1)).ok_or(NO_SCRIPT)?;
    let text = call.server.scripts.get(&digest).ok_or(NO_SCRIPT)?;
    run(call, &digest, &text)
}

fn digest_of(text: &[u8]) -> Option<Digest> {
    text.to_ascii_lowercase().try_into().ok()
}

/// Runs a script, in the transaction of the call or in one of its own.
fn run(call: &mut Call<'_>, digest: &Digest, text: &[u8]) -> Result<(), Failure> {
    let key_count = call.integer(2)?;
    let given: Vec<&[u8]> = call.arguments.from(3).collect();
    let key_count = usize::try_from(key_count).map_err(|_| Failure::fixed("ERR Number of keys can't be negative"))?;
    let (keys, arguments) = given.split_at_checked(key_count).ok_or(Failure::fixed("ERR Number of keys can't be greater than number of args"))?;
    let (lists, deadline) = ([keys, arguments], Instant::now() + script::TIME_MAX);
    match call.databases.transaction {
        Some(transaction) => run_within(call, (digest, text), lists, deadline, (transaction, call.counters)),
        None => all_or_none(call, |call, transaction, counted| run_within(call, (digest, text), lists, deadline, (transaction, counted))),
    }
}

/// Runs a script in a transaction.
fn run_within(
    call: &mut Call<'_>,
    script: (&Digest, &[u8]),
    lists: [&[&[u8]]; 2],
    deadline: Instant,
    (transaction, counted): (&RefCell<Transaction>, &Counters),
) -> Result<(), Failure> {
    let (server, spec, database) = (call.server, call.spec, call.session.database);
    let databases = Databases { transaction: Some(transaction), changes: &counted.changes, ..call.databases };
    let (session, mut refusal) = (&mut *call.session, None);
    let mut back = |words: &[Vec<u8>], reads_only| {
        let mut reply = Reply::new(Protocol::Resp2);
        let (frame, spans) = frame_of(words);
        let arguments = Arguments::new(&frame, &spans);
        let may_run = resolve(arguments, session, server).and_then(|spec| match spec.flags {
            flags if flags.contains(Flags::NOSCRIPT) || flags.contains(Flags::NO_MULTI) => Err(NOT_ALLOWED),
            flags if reads_only && flags.contains(Flags::WRITE) => Err(READ_ONLY),
            _ => Ok(spec),
        });
        // What has been refused once is refused until the script ends.
        match refusal.clone().map_or(may_run, Err) {
            Ok(spec) => {
                let mut call = Call { server, databases, counters: counted, session: &mut *session, reply: &mut reply, arguments, spec };
                if let Err(failure) = run_step(&mut call, transaction, 0) {
                    reply.out.clear();
                    failure.write(&mut reply);
                    refusal = Some(failure);
                }
            }
            Err(failure) => failure.write(&mut reply),
        }
        reply.out
    };
    let (size_max, start) = (server.config.limits.output_buffer_size_max, call.reply.out.len());
    let outcome = script::run(&server.scripts, script, lists, spec.flags.contains(Flags::READONLY), &mut back, (call.reply, size_max), deadline);
    // SELECT concerns the script alone.
    (call.session.database, call.session.command) = (database, Some(spec));
    refusal.map_or(Ok(()), Err)?;
    outcome.map_err(Failure::bytes)?;
    // A script may reply with an error, and yet do what it has done.
    if let Some(line) = call.reply.out[start..].strip_prefix(b"-") {
        counted.fail(&Failure::bytes(line.trim_ascii_end().to_vec()));
    }
    Ok(())
}

/// Words as a client would send them, but one after the other.
fn frame_of(words: &[Vec<u8>]) -> (Vec<u8>, Vec<Span>) {
    let mut start = 0;
    let spans = words.iter().map(|word| {
        let span = start..start + word.len();
        start = span.end;
        span
    });
    let spans = spans.map(|range| Span::new(range.start, range.end).expect("they are bounded")).collect();
    (words.concat(), spans)
}

/// SCRIPT LOAD.
pub(crate) fn load(call: &mut Call<'_>) -> Result<(), Failure> {
    let (text, scripts) = (call.argument(2), &call.server.scripts);
    let digest = script::digest(text);
    // A text for which there is no room is not even compiled.
    let mut is_kept = scripts.get(&digest).is_some();
    if !is_kept && scripts.has_room(text.len()) {
        script::check(text).map_err(Failure::bytes)?;
        is_kept = scripts.keep(digest, text);
    }
    if !is_kept {
        return Err(NO_ROOM);
    }
    call.reply.bulk(&digest);
    Ok(())
}

/// SCRIPT EXISTS.
pub(crate) fn exists(call: &mut Call<'_>) -> Result<(), Failure> {
    let digests = call.few_from(2)?;
    call.reply.array(digests.len());
    for digest in digests {
        call.reply.flag(digest_of(digest).is_some_and(|digest| call.server.scripts.get(&digest).is_some()));
    }
    Ok(())
}

/// SCRIPT FLUSH.
pub(crate) fn flush(call: &mut Call<'_>) -> Result<(), Failure> {
    match call.arguments.len() {
        2 => {}
        3 if call.arguments.is(2, "sync") || call.arguments.is(2, "async") => {}
        _ => return Err(Failure::fixed("ERR SCRIPT FLUSH only support SYNC|ASYNC option")),
    }
    call.server.scripts.flush();
    call.reply.ok();
    Ok(())
}
