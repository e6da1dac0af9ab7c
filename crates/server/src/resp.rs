//! RESP requests: from the bytes of a connection to the arguments of a command.
//!
//! ```text
//! multibulk   *2\r\n $3\r\nGET\r\n $1\r\nk\r\n
//! inline      GET k\r\n
//! ```
//!
//! The parser owns no bytes. It is called with the connection's read buffer from the first byte of the current frame on, again and again while more arrives,
//! and remembers how far it got; arguments are spans relative to the frame's first byte, so that the buffer may move between two calls.
//!
//! 1. The bytes of a bulk string are not looked at: a value of 512 MiB that arrives in pieces is parsed in as many steps as it has pieces.
//! 2. Nothing is allocated for what was only promised: the list of spans grows with the arguments that have arrived.
//! 3. The result does not depend on how the bytes are cut into pieces (inline arguments are unescaped in place, which is why the bytes are mutable, but only
//!    once their line is whole).
//!
//! Rules and error texts are those of Redis 7: strict integers, `\r\n` after a bulk string is skipped and not compared, 64 KiB for a line.

use std::fmt;
use std::ops::Range;

/// Arguments for which a parser keeps room between frames: most frames have fewer, and many connections are idle.
const SPAN_COUNT_KEPT: usize = 512;

/// Longest line (inline command or header) in bytes.
pub const LINE_SIZE_MAX: usize = 64 * 1024;

/// Limits of a frame.
#[derive(Clone, Copy, Debug)]
pub struct FrameLimits {
    /// Longest bulk string in bytes.
    pub bulk_size_max: usize,
    /// Largest number of arguments.
    pub argument_count_max: usize,
    /// Whether these are the narrow limits of a client that has not shown its password; only the error texts differ.
    pub unauthenticated: bool,
}

impl FrameLimits {
    /// For clients that still owe a password: enough for AUTH and HELLO.
    pub const UNAUTHENTICATED: Self = Self { bulk_size_max: 16 * 1024, argument_count_max: 10, unauthenticated: true };

    /// For everyone else.
    pub const fn with_bulk_size_max(bulk_size_max: usize) -> Self {
        Self { bulk_size_max, argument_count_max: i32::MAX as usize, unauthenticated: false }
    }
}

/// Bytes from `start` to `end` of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: u32,
    end: u32,
}

impl Span {
    pub(crate) fn new(start: usize, end: usize) -> Result<Self, ProtocolError> {
        match (u32::try_from(start), u32::try_from(end)) {
            (Ok(start), Ok(end)) => Ok(Self { start, end }),
            _ => Err(ProtocolError::FrameTooLong),
        }
    }

    /// Its positions in the frame.
    pub fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// The bytes of `frame` that this span names.
    pub fn of(self, frame: &[u8]) -> &[u8] {
        &frame[self.range()]
    }
}

/// How far the parser got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The frame is not whole yet.
    Incomplete {
        /// Minimum number of missing bytes.
        missing: usize,
    },
    /// The frame is whole; [`Parser::spans`] has its arguments (none: an empty frame, which is to be skipped).
    Frame {
        /// Its length in bytes.
        size: usize,
    },
}

/// Bytes that are not RESP. The client is told and the connection closed, because the start of the next frame is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// An inline command longer than [`LINE_SIZE_MAX`].
    InlineTooBig,
    /// An inline command whose quotes do not match.
    UnbalancedQuotes,
    /// No end of line within [`LINE_SIZE_MAX`] after `*`.
    CountLineTooBig,
    /// No end of line within [`LINE_SIZE_MAX`] after `$`.
    BulkLineTooBig,
    /// The number of arguments is no number, or too large.
    InvalidCount,
    /// More arguments than a client may send before AUTH.
    UnauthenticatedCount,
    /// Another byte where `$` was due.
    ExpectedBulk(u8),
    /// The size of a bulk string is no number, negative or too large.
    InvalidBulkSize,
    /// A longer argument than a client may send before AUTH.
    UnauthenticatedBulkSize,
    /// A frame of more than 4 GiB.
    FrameTooLong,
}

impl ProtocolError {
    /// Its text, with the unexpected byte as it was: each character of the text stands for one byte.
    pub(crate) fn bytes(self) -> Vec<u8> {
        self.to_string().chars().map(|character| character as u8).collect()
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Protocol error: ")?;
        match self {
            Self::InlineTooBig => f.write_str("too big inline request"),
            Self::UnbalancedQuotes => f.write_str("unbalanced quotes in request"),
            Self::CountLineTooBig => f.write_str("too big mbulk count string"),
            Self::BulkLineTooBig => f.write_str("too big bulk count string"),
            Self::InvalidCount => f.write_str("invalid multibulk length"),
            Self::UnauthenticatedCount => f.write_str("unauthenticated multibulk length"),
            Self::ExpectedBulk(byte) => write!(f, "expected '$', got '{}'", char::from(*byte)),
            Self::InvalidBulkSize => f.write_str("invalid bulk length"),
            Self::UnauthenticatedBulkSize => f.write_str("unauthenticated bulk length"),
            Self::FrameTooLong => f.write_str("too long frame"),
        }
    }
}

/// An incremental parser of request frames.
#[derive(Default)]
pub struct Parser {
    /// Arguments of the frame so far.
    spans: Vec<Span>,
    /// Bytes of the frame understood so far.
    parsed: usize,
    /// Arguments still to come, once the count is known. Zero between frames.
    missing_count: usize,
    /// Size of the bulk string whose header was the last thing understood.
    bulk_size: Option<usize>,
}

impl Parser {
    /// A parser at the beginning of a frame.
    pub fn new() -> Self {
        Self::default()
    }

    /// The arguments of the frame, relative to its first byte. Valid after [`Progress::Frame`] and until the next call of [`Parser::parse`].
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Looks at `input`, which begins at the frame's first byte and holds at least what it held at the last call. After a whole frame the next call begins a
    /// new one.
    ///
    /// # Errors
    /// Input that no client may send. The parser is then at the beginning of a frame again, but the stream has no meaning any more.
    pub fn parse(&mut self, input: &mut [u8], limits: &FrameLimits) -> Result<Progress, ProtocolError> {
        let progress = self.advance(input, limits);
        if !matches!(progress, Ok(Progress::Incomplete { .. })) {
            self.restart();
        }
        progress
    }

    /// Discards the state of an incomplete frame: the next call of [`Parser::parse`] begins a new one.
    pub fn restart(&mut self) {
        self.parsed = 0;
        self.missing_count = 0;
        self.bulk_size = None;
    }

    fn advance(&mut self, input: &mut [u8], limits: &FrameLimits) -> Result<Progress, ProtocolError> {
        if self.parsed == 0 {
            self.spans.clear();
            self.spans.shrink_to(SPAN_COUNT_KEPT);
            match input.first() {
                None => return Ok(Progress::Incomplete { missing: 1 }),
                Some(b'*') => {}
                Some(_) => return self.inline(input),
            }
            let Some((count, next)) = header(input, 1, ProtocolError::CountLineTooBig)? else { return Ok(Progress::Incomplete { missing: 1 }) };
            let count = count.filter(|&count| count <= i64::from(i32::MAX)).ok_or(ProtocolError::InvalidCount)?;
            if count <= 0 {
                return Ok(Progress::Frame { size: next });
            }
            if count as usize > limits.argument_count_max {
                return Err(if limits.unauthenticated { ProtocolError::UnauthenticatedCount } else { ProtocolError::InvalidCount });
            }
            self.missing_count = count as usize;
            self.parsed = next;
        }
        while self.missing_count > 0 {
            let size = match self.bulk_size {
                Some(size) => size,
                None => match self.bulk_header(input, limits)? {
                    Some(size) => size,
                    None => return Ok(Progress::Incomplete { missing: 1 }),
                },
            };
            let end = self.parsed + size;
            let Some(missing) = (end + 2).checked_sub(input.len()).filter(|&missing| missing > 0) else {
                self.spans.push(Span::new(self.parsed, end)?);
                self.parsed = end + 2;
                self.bulk_size = None;
                self.missing_count -= 1;
                continue;
            };
            return Ok(Progress::Incomplete { missing });
        }
        Ok(Progress::Frame { size: self.parsed })
    }

    /// Parses `$<size>\r\n`; `None` if it is incomplete.
    fn bulk_header(&mut self, input: &[u8], limits: &FrameLimits) -> Result<Option<usize>, ProtocolError> {
        match input.get(self.parsed) {
            None => return Ok(None),
            Some(b'$') => {}
            // The byte is judged only when its line is whole or too long, as in Redis, so that input in pieces gives the same error as input in one piece.
            Some(&byte) => return header(input, self.parsed, ProtocolError::BulkLineTooBig)?.map_or(Ok(None), |_| Err(ProtocolError::ExpectedBulk(byte))),
        }
        let Some((size, next)) = header(input, self.parsed + 1, ProtocolError::BulkLineTooBig)? else { return Ok(None) };
        let size = size.and_then(|size| usize::try_from(size).ok()).ok_or(ProtocolError::InvalidBulkSize)?;
        if size > limits.bulk_size_max {
            return Err(if limits.unauthenticated { ProtocolError::UnauthenticatedBulkSize } else { ProtocolError::InvalidBulkSize });
        }
        self.parsed = next;
        self.bulk_size = Some(size);
        Ok(Some(size))
    }

    fn inline(&mut self, input: &mut [u8]) -> Result<Progress, ProtocolError> {
        // Redis looks for the line's end as in a C string, so that a NUL hides it.
        let end = memchr::memchr2(b'\n', 0, &input[..input.len().min(LINE_SIZE_MAX + 1)]).filter(|&end| input[end] == b'\n');
        let Some(newline) = end else {
            return if input.len() > LINE_SIZE_MAX { Err(ProtocolError::InlineTooBig) } else { Ok(Progress::Incomplete { missing: 1 }) };
        };
        let line_size = newline - usize::from(newline > 0 && input[newline - 1] == b'\r');
        self.split_words(&mut input[..line_size])?;
        Ok(Progress::Frame { size: newline + 1 })
    }

    /// Splits a line into words, removing quotes and escapes in place: writing never overtakes reading.
    fn split_words(&mut self, line: &mut [u8]) -> Result<(), ProtocolError> {
        let mut read = 0;
        loop {
            while line.get(read).is_some_and(|&byte| is_space(byte)) {
                read += 1;
            }
            if read == line.len() {
                return Ok(());
            }
            let start = read;
            let mut write = read;
            while let Some(&byte) = line.get(read) {
                match byte {
                    b' ' | b'\n' | b'\r' | b'\t' => break,
                    b'"' | b'\'' => (read, write) = unquote(line, read, write)?,
                    _ => {
                        line[write] = byte;
                        write += 1;
                        read += 1;
                    }
                }
            }
            self.spans.push(Span::new(start, write)?);
        }
    }
}

/// Copies the quoted text that begins at `read` to `write`; returns the two positions after it. A quote must be followed by a space or the end of the line.
fn unquote(line: &mut [u8], mut read: usize, mut write: usize) -> Result<(usize, usize), ProtocolError> {
    let quote = line[read];
    read += 1;
    loop {
        let &byte = line.get(read).ok_or(ProtocolError::UnbalancedQuotes)?;
        let next = line.get(read + 1).copied();
        let (plain, size) = match (byte, next) {
            (b'\\', Some(b'x')) if quote == b'"' => match (hex(line.get(read + 2)), hex(line.get(read + 3))) {
                (Some(high), Some(low)) => (high << 4 | low, 4),
                _ => (b'x', 2),
            },
            (b'\\', Some(escaped)) if quote == b'"' => (unescape(escaped), 2),
            (b'\\', Some(b'\'')) if quote == b'\'' => (b'\'', 2),
            _ if byte == quote => {
                return match next {
                    Some(next) if !is_space(next) => Err(ProtocolError::UnbalancedQuotes),
                    _ => Ok((read + 1, write)),
                };
            }
            _ => (byte, 1),
        };
        line[write] = plain;
        write += 1;
        read += size;
    }
}

fn unescape(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    }
}

fn hex(byte: Option<&u8>) -> Option<u8> {
    byte.and_then(|&byte| char::from(byte).to_digit(16)).map(|digit| digit as u8)
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// Parses the integer from `start` to the end of its line (`None` if it is none); also returns the position after `\r\n`. Outer `None` if the line is
/// incomplete.
fn header(input: &[u8], start: usize, too_long: ProtocolError) -> Result<Option<(Option<i64>, usize)>, ProtocolError> {
    let rest = &input[start..];
    let Some(size) = rest.iter().take(LINE_SIZE_MAX).position(|&byte| byte == b'\r') else {
        return if rest.len() >= LINE_SIZE_MAX { Err(too_long) } else { Ok(None) };
    };
    // The line feed is awaited, but not compared.
    Ok((rest.len() > size + 1).then(|| (parse_integer(&rest[..size]), start + size + 2)))
}

/// Parses a decimal integer as Redis does: no plus sign, no leading zero, no space, within 64 bits.
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut magnitude = 0_u64;
    for &digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // 19 digits stay below 10^19, which fits into 64 bits.
        magnitude = magnitude * 10 + u64::from(digit);
    }
    if negative { 0_i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

#[cfg(test)]
mod tests;
