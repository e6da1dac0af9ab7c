//! Requests: from the bytes of a connection to a parsed request.
//!
//! The parser owns no bytes and has no state: it is called with the connection's read buffer from the first byte of a request on. A request is a line, followed
//! by a block of data for the commands that store; of the data only the two bytes that end them are looked at. Positions in a request are given by ranges.
//!
//! Rules and texts are those of memcached 1.6, except that a stream stays in step: if the line of a storing command gives the length of its data, the data are
//! skipped whatever else is wrong with the command, so that nothing in them is taken for a command. If their end cannot be determined, the connection ends.

use super::meta::{self, Meta, Verb};
use std::ops::Range;

/// Longest key in bytes.
pub const KEY_SIZE_MAX: usize = 250;
/// Longest line in bytes, as of a `get` with many keys.
pub const LINE_SIZE_MAX: usize = 1 << 20;
/// Largest data size in bytes that a client can mean seriously.
const DATA_SIZE_MEANT: usize = i32::MAX as usize;
/// First byte of a request of the binary protocol.
const BINARY: u8 = 0x80;

pub(super) const BAD_LINE: &str = "CLIENT_ERROR bad command line format";
const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument";
pub(super) const TOO_LARGE: &str = "SERVER_ERROR object too large for cache";
const LINE_TOO_LONG: &str = "CLIENT_ERROR line too long";
const NO_DELAY: &str = "CLIENT_ERROR flush_all cannot be delayed";
const NO_BINARY: &str = "CLIENT_ERROR the binary protocol is not spoken here";

/// How far the parser got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The request is not whole yet.
    Incomplete {
        /// Minimum number of missing bytes.
        missing: usize,
    },
    /// A whole request.
    Request {
        /// Its length in bytes, including its data.
        size: usize,
        /// Whether no reply is wanted.
        quiet: bool,
        /// The request.
        request: Request,
    },
}

/// A parsed request. Ranges count from the first byte of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `get`, `gets`, `gat` and `gats`.
    Get {
        /// The part of the line with the keys, separated by spaces.
        keys: Range<usize>,
        /// Whether the unique number of each version is wanted, too.
        with_unique: bool,
        /// The new expiry time of the items, if one is given.
        exptime: Option<i64>,
    },
    /// `set` and its kin.
    Store {
        /// The condition, and how to store.
        how: Storing,
        /// The unique number that the current version must have: for `cas`.
        unique: Option<u64>,
        /// Position of the key.
        key: Range<usize>,
        /// The client's flags.
        flags: u32,
        /// Expiry time.
        exptime: i64,
        /// Position of the data.
        data: Range<usize>,
    },
    /// `delete`.
    Delete {
        /// Position of the key.
        key: Range<usize>,
    },
    /// `incr` and `decr`.
    Count {
        /// Position of the key.
        key: Range<usize>,
        /// The amount.
        delta: u64,
        /// Whether it is subtracted.
        down: bool,
    },
    /// `touch`.
    Touch {
        /// Position of the key.
        key: Range<usize>,
        /// The new expiry time.
        exptime: i64,
    },
    /// `flush_all`.
    FlushAll,
    /// `stats`, and the word after it.
    Stats {
        /// Position of the word; empty if there is none.
        what: Range<usize>,
    },
    /// `version`.
    Version,
    /// `verbosity`, which changes nothing.
    Verbosity,
    /// `mg`, `ms`, `md` and `ma`.
    Meta(Meta),
    /// `mn`, which does nothing but show that everything before it is done.
    Nothing,
    /// `quit`.
    Quit,
    /// A request that cannot be executed, and the reply to it.
    Wrong {
        /// The reply, without its line end.
        reply: &'static str,
        /// Bytes of data to skip after it.
        skip: usize,
        /// Whether what follows cannot be parsed either.
        is_last: bool,
    },
}

/// How `set` and its kin store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storing {
    /// Unconditionally.
    Set,
    /// If the item is absent.
    Add,
    /// If the item is present.
    Replace,
    /// After the present data.
    Append,
    /// Before the present data.
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

/// The words in `bytes`, which are keys.
pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    Words { line: bytes, at: 0 }.map(|range| &bytes[range])
}

/// Limits of a request.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest line in bytes.
    pub line_size_max: usize,
    /// Largest data size in bytes.
    pub data_size_max: usize,
}

/// Parses `input`, which begins with the first byte of a request.
pub fn parse(input: &[u8], limits: Limits) -> Progress {
    let last = |size, reply| Progress::Request { size, quiet: false, request: Request::Wrong { reply, skip: 0, is_last: true } };
    if input.first() == Some(&BINARY) {
        return last(1, NO_BINARY);
    }
    let Some(newline) = memchr::memchr(b'\n', &input[..input.len().min(limits.line_size_max)]) else {
        return if input.len() < limits.line_size_max { Progress::Incomplete { missing: 1 } } else { last(limits.line_size_max, LINE_TOO_LONG) };
    };
    let size = newline + 1;
    let line = input[..newline].strip_suffix(b"\r").unwrap_or(&input[..newline]);
    let mut words = Words { line, at: 0 };
    let name = words.next().unwrap_or(0..0);
    let quiet = is_quiet(&line[name.clone()], line);
    let stored = match &line[name.clone()] {
        b"set" | b"cas" => store(Storing::Set, &line[name] == b"cas", line, words, size),
        b"add" => store(Storing::Add, false, line, words, size),
        b"replace" => store(Storing::Replace, false, line, words, size),
        b"append" => store(Storing::Append, false, line, words, size),
        b"prepend" => store(Storing::Prepend, false, line, words, size),
        b"ms" => meta::store(line, words, size),
        other => return Progress::Request { size, quiet, request: simple(other, line, words) },
    };
    let (data_size, request) = match stored {
        Ok(stored) => stored,
        Err(reply) => return Progress::Request { size, quiet, request: Request::wrong(reply) },
    };
    if data_size > DATA_SIZE_MEANT {
        return last(size, TOO_LARGE);
    }
    let whole = data_size + 2;
    let refused = if data_size > limits.data_size_max { Some(TOO_LARGE) } else { request.as_ref().err().copied() };
    if let Some(reply) = refused {
        return Progress::Request { size, quiet, request: Request::Wrong { reply, skip: whole, is_last: false } };
    }
    match input.get(size..size + whole) {
        None => Progress::Incomplete { missing: size + whole - input.len() },
        Some(data) if data.ends_with(b"\r\n") => Progress::Request { size: size + whole, quiet, request: request.unwrap_or_else(Request::wrong) },
        Some(_) => Progress::Request { size: size + whole, quiet, request: Request::wrong(BAD_CHUNK) },
    }
}

/// Whether a line says that no reply is wanted: its command supports that, and it has as many words as memcached requires for this.
fn is_quiet(name: &[u8], line: &[u8]) -> bool {
    let words_min = match name {
        b"flush_all" | b"verbosity" => 2,
        b"delete" | b"incr" | b"decr" | b"touch" => 3,
        b"set" | b"add" | b"replace" | b"append" | b"prepend" => 5,
        b"cas" => 6,
        _ => return false,
    };
    line.trim_ascii_end().ends_with(b" noreply") && words(line).count() >= words_min
}

/// Length of a command's data in bytes.
pub(super) type DataSize = usize;
/// A storing command, or what is wrong with it, with the length of its data; the outer error if the line does not give that length.
pub(super) type WithData = Result<(DataSize, Result<Request, &'static str>), &'static str>;

/// Parses the words after the name of a storing command; the line has `size` bytes.
fn store(how: Storing, compares: bool, line: &[u8], mut words: Words<'_>, size: usize) -> WithData {
    let mut word = || words.next().ok_or("ERROR");
    let (key, flags, exptime, length) = (word()?, word()?, word()?, word()?);
    let data_size = data_size(&line[length])?;
    let data = size..size.saturating_add(data_size);
    let request = || {
        let flags = unsigned(&line[flags]).and_then(|flags| u32::try_from(flags).ok()).ok_or(BAD_LINE)?;
        let exptime = signed(&line[exptime]).ok_or(BAD_EXPTIME)?;
        let unique = compares.then(|| words.next().and_then(|unique| unsigned(&line[unique])).ok_or(BAD_LINE)).transpose()?;
        end(line, words)?;
        if key.len() > KEY_SIZE_MAX {
            return Err(BAD_LINE);
        }
        Ok(Request::Store { how, unique, key, flags, exptime, data })
    };
    Ok((data_size, request()))
}

/// Parses the length of a command's data.
pub(super) fn data_size(word: &[u8]) -> Result<DataSize, &'static str> {
    unsigned(word).and_then(|size| usize::try_from(size).ok()).ok_or(BAD_LINE)
}

/// Parses a command without data.
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
        b"verbosity" => Ok(Request::Verbosity),
        b"mg" => meta::without_data(Verb::Get, line, words),
        b"md" => meta::without_data(Verb::Delete, line, words),
        b"ma" => meta::without_data(Verb::Count, line, words),
        b"mn" => Ok(Request::Nothing),
        b"quit" => Ok(Request::Quit),
        // The beginning of an HTTP request: somebody makes a browser talk to this port. What follows may be commands in its body.
        other if other.eq_ignore_ascii_case(b"host:") || words.last().is_some_and(|word| line[word].starts_with(b"HTTP/")) => Ok(Request::Quit),
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

/// Parses one key.
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
    // Old clients send the time for which the key was to stay locked.
    if words.clone().next().is_some_and(|word| &line[word] == b"0") {
        words.next();
    }
    end(line, words).map_err(|_| USAGE)?;
    Ok(Request::Delete { key })
}

fn count(line: &[u8], mut words: Words<'_>, down: bool) -> Result<Request, &'static str> {
    let (key, delta) = (key(&mut words)?, words.next().ok_or("ERROR")?);
    let delta = unsigned(&line[delta]).ok_or(BAD_DELTA)?;
    end(line, words)?;
    Ok(Request::Count { key, delta, down })
}

fn touch(line: &[u8], mut words: Words<'_>) -> Result<Request, &'static str> {
    let (key, exptime) = (key(&mut words)?, exptime(line, &mut words)?);
    end(line, words)?;
    Ok(Request::Touch { key, exptime })
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
    end(line, words)?;
    Ok(Request::FlushAll)
}

/// Checks that the remaining words say at most that no reply is wanted.
fn end(line: &[u8], mut words: Words<'_>) -> Result<(), &'static str> {
    if words.all(|word| &line[word] == b"noreply") { Ok(()) } else { Err(BAD_LINE) }
}

/// Parses a decimal number without a sign.
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
