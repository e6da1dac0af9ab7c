//! Requests: from the bytes of a connection to what is asked for.
//!
//! The parser owns no bytes and remembers nothing: it is shown the connection's read buffer from the first byte of a request on. A request is a line, and with
//! the commands that store, a block of data behind it, of which no byte is looked at but the two that end it. Where things are in a request is told by ranges.
//!
//! Rules and texts are those of memcached 1.6, with two exceptions, in which a stream stays in step. Of a command that stores, and whose line says how long its
//! data are, the data are skipped whatever else is wrong with it: nothing in them is taken for a command. And a line may be as long as [`LINE_SIZE_MAX`].

use super::meta::{self, Meta, Verb};
use std::ops::Range;

/// Longest key in bytes.
pub const KEY_SIZE_MAX: usize = 250;
/// Longest line in bytes.
pub const LINE_SIZE_MAX: usize = 64 << 10;

pub(super) const BAD_LINE: &str = "CLIENT_ERROR bad command line format";
const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument";
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
const LINE_TOO_LONG: &str = "CLIENT_ERROR line too long";
const NO_DELAY: &str = "CLIENT_ERROR flush_all cannot be delayed";

/// How far the parser got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The request is not whole yet.
    Incomplete {
        /// Bytes that are missing at least.
        missing: usize,
    },
    /// A request of so many bytes.
    Request {
        /// Its length, with its data.
        size: usize,
        /// What it asks for.
        request: Request,
    },
}

/// What is asked for. Ranges count from the first byte of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `get`, `gets`, `gat` and `gats`.
    Get {
        /// The words behind the command that are keys, with spaces between them. Each is a key.
        keys: Range<usize>,
        /// Whether what tells versions of an item apart is wanted, too.
        with_unique: bool,
        /// When they are to expire from now on, if they are told.
        exptime: Option<i64>,
    },
    /// `set` and its kin.
    Store {
        /// On what condition, and how.
        how: Storing,
        /// The version that is to be there: of `cas`.
        unique: Option<u64>,
        /// Where the key is.
        key: Range<usize>,
        /// The client's.
        flags: u32,
        /// When it expires.
        exptime: i64,
        /// Where the data are.
        data: Range<usize>,
        /// Whether no reply is wanted.
        quiet: bool,
    },
    /// `delete`.
    Delete {
        /// Where the key is.
        key: Range<usize>,
        /// Whether no reply is wanted.
        quiet: bool,
    },
    /// `incr` and `decr`.
    Count {
        /// Where the key is.
        key: Range<usize>,
        /// By how much.
        delta: u64,
        /// Whether it is taken away.
        down: bool,
        /// Whether no reply is wanted.
        quiet: bool,
    },
    /// `touch`.
    Touch {
        /// Where the key is.
        key: Range<usize>,
        /// When it is to expire from now on.
        exptime: i64,
        /// Whether no reply is wanted.
        quiet: bool,
    },
    /// `flush_all`.
    FlushAll {
        /// Whether no reply is wanted.
        quiet: bool,
    },
    /// `stats`, and the word behind it.
    Stats {
        /// Where that is; empty if there is none.
        what: Range<usize>,
    },
    /// `version`.
    Version,
    /// `verbosity`, which changes nothing.
    Verbosity {
        /// Whether no reply is wanted.
        quiet: bool,
    },
    /// `mg`, `ms`, `md` and `ma`.
    Meta(Meta),
    /// `mn`, which does nothing, and shows that all before it is done.
    Nothing,
    /// `quit`.
    Quit,
    /// An empty line.
    Empty,
    /// Something that cannot be done, and what to say. So many bytes are to be skipped behind it.
    Wrong {
        /// The reply, without its end.
        reply: &'static str,
        /// Bytes of data that nobody wants.
        skip: usize,
        /// Whether nothing can be made of what follows either.
        is_last: bool,
    },
}

/// How `set` and its kin store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storing {
    /// Whatever there is.
    Set,
    /// If there is nothing.
    Add,
    /// If there is something.
    Replace,
    /// Behind what there is.
    Append,
    /// In front of it.
    Prepend,
}

impl Request {
    fn wrong(reply: &'static str) -> Self {
        Self::Wrong { reply, skip: 0, is_last: false }
    }
}

/// Words of a line, separated by spaces.
#[derive(Clone)]
pub(super) struct Words<'l> {
    line: &'l [u8],
    at: usize,
}

impl Iterator for Words<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let start = self.at + self.line[self.at..].iter().position(|&byte| byte != b' ')?;
        let end = memchr::memchr(b' ', &self.line[start..]).map_or(self.line.len(), |size| start + size);
        self.at = end;
        Some(start..end)
    }
}

/// The words of `bytes`, which are keys.
pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    Words { line: bytes, at: 0 }.map(|range| &bytes[range])
}

/// Looks at `input`, which begins with the first byte of a request. Data of more than `data_size_max` bytes are refused.
pub fn parse(input: &[u8], data_size_max: usize) -> Progress {
    let Some(newline) = memchr::memchr(b'\n', &input[..input.len().min(LINE_SIZE_MAX)]) else {
        if input.len() < LINE_SIZE_MAX {
            return Progress::Incomplete { missing: 1 };
        }
        return Progress::Request { size: input.len(), request: Request::Wrong { reply: LINE_TOO_LONG, skip: 0, is_last: true } };
    };
    let size = newline + 1;
    let line = input[..newline].strip_suffix(b"\r").unwrap_or(&input[..newline]);
    let mut words = Words { line, at: 0 };
    let Some(name) = words.next() else { return Progress::Request { size, request: Request::Empty } };
    let stored = match &line[name.clone()] {
        b"set" | b"cas" => store(Storing::Set, &line[name] == b"cas", line, words, size),
        b"add" => store(Storing::Add, false, line, words, size),
        b"replace" => store(Storing::Replace, false, line, words, size),
        b"append" => store(Storing::Append, false, line, words, size),
        b"prepend" => store(Storing::Prepend, false, line, words, size),
        b"ms" => meta::store(line, words, size),
        other => return Progress::Request { size, request: simple(other, line, words) },
    };
    let Some((data_size, request)) = stored else { return Progress::Request { size, request: Request::wrong(BAD_LINE) } };
    let refuse = |reply, skip| Progress::Request { size, request: Request::Wrong { reply, skip, is_last: false } };
    let Some(whole) = data_size.checked_add(2).filter(|_| data_size <= data_size_max) else { return refuse(TOO_LARGE, data_size.saturating_add(2)) };
    let request = match request {
        Ok(request) => request,
        Err(reply) => return refuse(reply, whole),
    };
    match input.get(size..size + whole) {
        None => Progress::Incomplete { missing: size + whole - input.len() },
        Some(data) if data.ends_with(b"\r\n") => Progress::Request { size: size + whole, request },
        Some(_) => Progress::Request { size: size + whole, request: Request::wrong(BAD_CHUNK) },
    }
}

/// How long the data of a command are, and what it asks for, or what is wrong with it; `None` if it does not say.
pub(super) type Stored = Option<(usize, Result<Request, &'static str>)>;

/// The words behind the name of a command that stores; its line has `size` bytes.
fn store(how: Storing, compares: bool, line: &[u8], mut words: Words<'_>, size: usize) -> Stored {
    let (key, flags, exptime, data_size) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let data_size = usize::try_from(unsigned(&line[data_size])?).ok()?;
    let request = || {
        let flags = unsigned(&line[flags]).and_then(|flags| u32::try_from(flags).ok()).ok_or(BAD_LINE)?;
        let exptime = signed(&line[exptime]).ok_or(BAD_EXPTIME)?;
        let unique = compares.then(|| words.next().and_then(|unique| unsigned(&line[unique])).ok_or(BAD_LINE)).transpose()?;
        let quiet = is_quiet(line, words)?;
        if key.len() > KEY_SIZE_MAX {
            return Err(BAD_LINE);
        }
        Ok(Request::Store { how, unique, key, flags, exptime, data: size..size + data_size, quiet })
    };
    Some((data_size, request()))
}

/// A command without data.
fn simple(name: &[u8], line: &[u8], words: Words<'_>) -> Request {
    let request = match name {
        b"get" | b"gets" => keys(line, words, None, name == b"gets"),
        b"gat" | b"gats" => {
            let mut words = words;
            exptime(line, &mut words).and_then(|exptime| keys(line, words, Some(exptime), name == b"gats"))
        }
        b"delete" => delete(line, words),
        b"incr" | b"decr" => count(line, words, name == b"decr"),
        b"touch" => touch(line, words),
        b"flush_all" => flush_all(line, words),
        b"stats" => Ok(Request::Stats { what: words.clone().next().unwrap_or(0..0) }),
        b"version" => Ok(Request::Version),
        b"verbosity" => Ok(Request::Verbosity { quiet: words.last().is_some_and(|word| &line[word] == b"noreply") }),
        b"mg" => meta::without_data(Verb::Get, line, words),
        b"md" => meta::without_data(Verb::Delete, line, words),
        b"ma" => meta::without_data(Verb::Count, line, words),
        b"mn" => Ok(Request::Nothing),
        b"quit" => Ok(Request::Quit),
        // The beginning of an HTTP request: somebody makes a browser talk to us. What follows may be commands in its body.
        b"POST" | b"Host:" => Ok(Request::Quit),
        _ => Err("ERROR"),
    };
    request.unwrap_or_else(Request::wrong)
}

fn keys(line: &[u8], words: Words<'_>, exptime: Option<i64>, with_unique: bool) -> Result<Request, &'static str> {
    let first = words.clone().next().ok_or("ERROR")?;
    if words.clone().any(|key| key.len() > KEY_SIZE_MAX) {
        return Err(BAD_LINE);
    }
    Ok(Request::Get { keys: first.start..line.len(), with_unique, exptime })
}

/// One key.
pub(super) fn key(words: &mut impl Iterator<Item = Range<usize>>) -> Result<Range<usize>, &'static str> {
    let key = words.next().ok_or("ERROR")?;
    if key.len() > KEY_SIZE_MAX { Err(BAD_LINE) } else { Ok(key) }
}

fn exptime(line: &[u8], words: &mut Words<'_>) -> Result<i64, &'static str> {
    words.next().ok_or("ERROR").and_then(|word| signed(&line[word]).ok_or(BAD_EXPTIME))
}

fn delete(line: &[u8], mut words: Words<'_>) -> Result<Request, &'static str> {
    const USAGE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
    let key = key(&mut words)?;
    // Old clients send the time for which the key should have stayed locked.
    if words.clone().next().is_some_and(|word| &line[word] == b"0") {
        words.next();
    }
    let quiet = is_quiet(line, words).map_err(|_| USAGE)?;
    Ok(Request::Delete { key, quiet })
}

fn count(line: &[u8], mut words: Words<'_>, down: bool) -> Result<Request, &'static str> {
    let (key, delta) = (key(&mut words)?, words.next().ok_or("ERROR")?);
    let delta = unsigned(&line[delta]).ok_or(BAD_DELTA)?;
    Ok(Request::Count { key, delta, down, quiet: is_quiet(line, words)? })
}

fn touch(line: &[u8], mut words: Words<'_>) -> Result<Request, &'static str> {
    let (key, exptime) = (key(&mut words)?, exptime(line, &mut words)?);
    Ok(Request::Touch { key, exptime, quiet: is_quiet(line, words)? })
}

fn flush_all(line: &[u8], mut words: Words<'_>) -> Result<Request, &'static str> {
    if let Some(delay) = words.clone().next().filter(|word| line[word.clone()] != *b"noreply") {
        words.next();
        match signed(&line[delay]) {
            Some(0) => {}
            Some(_) => return Err(NO_DELAY),
            None => return Err(BAD_LINE),
        }
    }
    Ok(Request::FlushAll { quiet: is_quiet(line, words)? })
}

/// Whether the words that are left say that no reply is wanted; they say nothing else.
fn is_quiet(line: &[u8], mut words: Words<'_>) -> Result<bool, &'static str> {
    match (words.next(), words.next()) {
        (None, _) => Ok(false),
        (Some(word), None) if &line[word.clone()] == b"noreply" => Ok(true),
        _ => Err(BAD_LINE),
    }
}

/// A decimal number without a sign.
pub(crate) fn unsigned(word: &[u8]) -> Option<u64> {
    let digits = (1..=20).contains(&word.len()).then_some(word)?;
    digits.iter().try_fold(0_u64, |number, byte| number.checked_mul(10)?.checked_add(u64::from(char::from(*byte).to_digit(10)?)))
}

pub(super) fn signed(word: &[u8]) -> Option<i64> {
    match word.strip_prefix(b"-") {
        Some(digits) => 0_i64.checked_sub_unsigned(unsigned(digits)?),
        None => i64::try_from(unsigned(word)?).ok(),
    }
}
