//! The executor: runs commands on the store and writes their replies, for whatever front end parsed them.
//!
//! 1. A command's reply is written when the store has returned, so when its writes are durable.
//! 2. A command that fails leaves exactly one error as its reply: earlier output of the command is cut off.
//! 3. A command that reads a key in order to write it does so in one step of the store (`modify`, `insert`, a batch with expectations): commands are atomic
//!    among all threads.
//! 4. Commands that visit many keys ([`walk`], [`many`]) do so in slices, between which other connections of the thread have their turn. MSET, MSETNX and DEL
//!    do not: they are one batch of the store, all or nothing; nor does EXEC ([`transaction`]).

use crate::calls::{Ongoing, keep};
use crate::client::Session;
use crate::command::{Arguments, Flags, Spec, lookup};
use crate::database::{Database, Databases};
use crate::reply::Reply;
use crate::shared::{Counters, Shared};
use std::borrow::Cow;
use std::fmt;
use std::time::Instant;

pub(crate) mod backup;
pub(crate) mod client;
pub(crate) mod conditional;
pub(crate) mod config;
pub(crate) mod connection;
pub(crate) mod decimal;
pub(crate) mod expiry;
pub(crate) mod info;
pub(crate) mod introspection;
pub(crate) mod keys;
pub(crate) mod many;
pub(crate) mod memory;
pub(crate) mod numbers;
pub(crate) mod scan;
pub(crate) mod scripting;
pub(crate) mod server;
pub(crate) mod slowlog;
pub(crate) mod strings;
pub(crate) mod transaction;
pub(crate) mod walk;

/// A command and everything that it may use.
pub(crate) struct Call<'a> {
    pub(crate) server: &'a Shared,
    /// The server's databases, or those seen by the transaction that the command is part of.
    pub(crate) databases: Databases<'a>,
    pub(crate) counters: &'a Counters,
    pub(crate) session: &'a mut Session,
    pub(crate) reply: &'a mut Reply,
    pub(crate) arguments: Arguments<'a>,
    pub(crate) spec: &'static Spec,
}

impl<'a> Call<'a> {
    /// The selected database.
    pub(crate) fn database(&self) -> Database<'a> {
        self.databases.at(self.session.database)
    }

    /// The argument at `index`; the arity of the command guarantees it.
    pub(crate) fn argument(&self, index: usize) -> &'a [u8] {
        self.arguments.at(index)
    }

    /// The arguments from `index` on, if they are few: for commands whose work or reply for each argument exceeds its length.
    pub(crate) fn few_from(&self, index: usize) -> Result<impl ExactSizeIterator<Item = &'a [u8]> + use<'a>, Failure> {
        match self.arguments.from(index) {
            few if few.len() <= FEW => Ok(few),
            many => Err(Failure::text(format_args!("ERR {} are more than can be asked for at once, which are {FEW}", many.len()))),
        }
    }

    /// The argument at `index` as an integer.
    pub(crate) fn integer(&self, index: usize) -> Result<i64, Failure> {
        crate::resp::parse_integer(self.argument(index)).ok_or(Failure::NOT_AN_INTEGER)
    }

    /// Checks that a value may have `size` bytes.
    pub(crate) fn check_value_size(&self, size: usize) -> Result<(), Failure> {
        if size > self.server.config.limits.bulk_size_max.min(everleaf::VALUE_SIZE_MAX) { Err(Failure::STRING_TOO_LONG) } else { Ok(()) }
    }
}

/// A command in progress. The connection waits (its later commands too: replies keep their order), and the thread serves others between two slices.
pub(crate) trait Unfinished: Send {
    /// Does another slice.
    fn advance(&mut self, databases: Databases<'_>, counters: &Counters) -> Result<Slice, Failure>;

    /// Writes the part of the reply that can be sent before all of it is known, after each slice.
    fn hand_out(&mut self, _reply: &mut Reply) {}

    /// Writes the reply, or the rest of it, after the last slice.
    fn finish(&self, reply: &mut Reply);

    /// Bytes gathered for the reply so far; the limit on output counts them.
    fn size(&self) -> usize;

    /// Whether other clients wait for its end: then it continues even if its client takes no replies.
    fn is_awaited_by_others(&self) -> bool {
        false
    }
}

/// See [`Call::few_from`].
const FEW: usize = 1024;
/// Largest number of keys that a slice visits.
pub(crate) const SLICE_KEY_COUNT: usize = 1024;
/// Largest number of bytes that a slice gathers, not counting the last value.
pub(crate) const SLICE_SIZE: usize = 256 * 1024;

/// Steps of matching keys against a pattern in a slice, approximately, not counting the last key.
pub(crate) const SLICE_STEP_COUNT: usize = 1 << 20;

/// Whether a command has more to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slice {
    More,
    Last,
}

/// Why a command failed: the error line for the client, its code first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    text: Cow<'static, [u8]>,
    /// Whether it makes a whole transaction fail: the store takes no more, or the replies are too many.
    pub(crate) is_refusal: bool,
}

impl Failure {
    pub(crate) const SYNTAX: Self = Self::fixed("ERR syntax error");
    pub(crate) const NOT_AN_INTEGER: Self = Self::fixed("ERR value is not an integer or out of range");
    pub(crate) const NOT_AN_INT: Self = Self::fixed("ERR value is out of range, value must between -2147483648 and 2147483647");
    pub(crate) const NOT_A_FLOAT: Self = Self::fixed("ERR value is not a valid float");
    pub(crate) const STRING_TOO_LONG: Self = Self::fixed("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
    pub(crate) const NO_SUCH_KEY: Self = Self::fixed("ERR no such key");
    pub(crate) const NO_AUTH: Self = Self::fixed("NOAUTH Authentication required.");

    pub(crate) const fn fixed(text: &'static str) -> Self {
        Self { text: Cow::Borrowed(text.as_bytes()), is_refusal: false }
    }

    /// A failure that makes a whole transaction fail.
    pub(crate) const fn refusal(text: &'static str) -> Self {
        Self { text: Cow::Borrowed(text.as_bytes()), is_refusal: true }
    }

    pub(crate) fn text(text: fmt::Arguments<'_>) -> Self {
        Self::bytes(text.to_string().into_bytes())
    }

    pub(crate) fn bytes(text: Vec<u8>) -> Self {
        Self { text: Cow::Owned(text), is_refusal: false }
    }

    /// The reply of an EXEC that could not be called, or whose transaction was discarded.
    pub(crate) fn of_exec(&self) -> Self {
        let why = self.text.strip_prefix(b"ERR ").unwrap_or(&self.text);
        Self::bytes([b"EXECABORT Transaction discarded because of: ", why].concat())
    }

    /// `name` was called with a wrong number of arguments.
    pub(crate) fn arity(name: &str) -> Self {
        Self::text(format_args!("ERR wrong number of arguments for '{name}' command"))
    }

    pub(crate) fn write(&self, reply: &mut Reply) {
        reply.error(&self.text);
    }

    /// Its code: the first word.
    pub(crate) fn code(&self) -> &[u8] {
        self.text.split(|&byte| byte == b' ').next().unwrap_or_default()
    }

    /// Its text, including the code.
    pub(crate) fn shown(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.text)
    }
}

/// The beginning of the error of a full pool.
const OUT_OF_MEMORY: &str = "OOM command not allowed:";

impl From<everleaf::Error> for Failure {
    fn from(error: everleaf::Error) -> Self {
        let is_refusal = error.is_no_space() || matches!(error, everleaf::Error::Halted { .. } | everleaf::Error::TransactionTooLarge { .. });
        // Clients look for the code of Redis, some for its first words.
        let code = if error.is_no_space() { OUT_OF_MEMORY } else { "ERR" };
        Self { is_refusal, ..Self::text(format_args!("{code} {error}")) }
    }
}

/// Finds the command that `arguments` call and checks that the client may call it.
pub(crate) fn resolve(arguments: Arguments<'_>, session: &Session, server: &Shared) -> Result<&'static Spec, Failure> {
    let Some(mut spec) = lookup(arguments.at(0)) else { return Err(unknown_command(arguments)) };
    if !spec.subcommands.is_empty() && arguments.len() > 1 {
        spec = spec.subcommand(arguments.at(1)).ok_or_else(|| unknown_subcommand(spec, arguments.at(1)))?;
    }
    if !spec.accepts(arguments.len()) {
        return Err(Failure::arity(spec.name));
    }
    if session.owes_password(server) && !spec.flags.contains(Flags::NO_AUTH) {
        return Err(Failure::NO_AUTH);
    }
    if session.queue.is_some() && spec.flags.contains(Flags::NO_MULTI) {
        return Err(Failure::fixed("ERR Command not allowed inside a transaction"));
    }
    Ok(spec)
}

/// Runs a command.
pub(crate) fn execute(call: &mut Call<'_>) {
    if let Err(failure) = try_execute(call) {
        failure.write(call.reply);
    }
}

/// The same, but leaves the failure to the caller.
fn try_execute(call: &mut Call<'_>) -> Result<(), Failure> {
    let (start, begun, spec) = (call.reply.out.len(), Instant::now(), call.spec);
    call.session.command = Some(spec);
    call.counters.commands.add(1);
    let outcome = (spec.run)(call);
    let (calls, client, took) = (&call.server.calls, &call.session.client, begun.elapsed());
    calls.count(client.thread, spec, 1, took);
    let arguments = || keep(spec, call.arguments);
    call.session.ongoing = match call.session.unfinished {
        Some(_) => Some(Ongoing { spec, arguments: arguments(), took }),
        None => {
            calls.slow.note(client, spec, took, arguments);
            None
        }
    };
    outcome.inspect_err(|failure| {
        call.reply.out.truncate(start);
        call.counters.fail(failure);
        calls.fail(call.session.client.thread, spec);
    })
}

/// Largest part of the name and of the arguments that is shown, as in Redis.
const SHOWN_SIZE_MAX: usize = 128;

fn unknown_command(arguments: Arguments<'_>) -> Failure {
    let mut text = b"ERR unknown command '".to_vec();
    text.extend_from_slice(shown(arguments.at(0), SHOWN_SIZE_MAX));
    text.extend_from_slice(b"', with args beginning with: ");
    let shown_start = text.len();
    for argument in arguments.from(1) {
        let Some(room) = SHOWN_SIZE_MAX.checked_sub(text.len() - shown_start).filter(|&room| room > 0) else { break };
        text.push(b'\'');
        text.extend_from_slice(shown(argument, room));
        text.extend_from_slice(b"' ");
    }
    Failure::bytes(text)
}

fn unknown_subcommand(parent: &Spec, name: &[u8]) -> Failure {
    let mut text = b"ERR unknown subcommand '".to_vec();
    text.extend_from_slice(shown(name, SHOWN_SIZE_MAX));
    text.extend_from_slice(format!("'. Try {} HELP.", parent.name.to_uppercase()).as_bytes());
    Failure::bytes(text)
}

/// The beginning of `bytes`, up to a NUL, which ends C strings.
fn shown(bytes: &[u8], size_max: usize) -> &[u8] {
    let bytes = &bytes[..bytes.len().min(size_max)];
    &bytes[..memchr::memchr(0, bytes).unwrap_or(bytes.len())]
}
