//! A reader that remembers where lines start. The CSV reader on top of it gives as the position of a record only the end of the record before: empty lines may
//! lie between. Nor does it tell whether a quoted field was closed, or only ended with the file. It takes a carriage return alone for the end of a line, too,
//! or else none: so those that belong to the end of a line, and are not quoted, are left out here, and a line feed ends a record.

use std::collections::VecDeque;
use std::io::{self, Read};

/// Passes on the bytes of `source`, without the carriage returns before line feeds.
pub(super) struct LineStarts<R> {
    source: R,
    /// Whether a carriage return has been read of which it is not known yet what follows.
    has_return: bool,
    /// Offset in bytes, of those passed on, and number of every non-empty line that was read, but not asked for.
    starts: VecDeque<(u64, u64)>,
    offset: u64,
    /// Number of the current line, from 1.
    line: u64,
    /// Whether nothing of it has been read.
    at_start: bool,
    /// The CSV reader's place, and the delimiter of fields, if they may be quoted.
    quoting: Option<(Place, u8)>,
    /// Whether `source` has ended.
    is_over: bool,
}

/// The place of a CSV reader in a record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before the first byte of a field.
    Start,
    /// In an unquoted field, or behind the quotes of a quoted one.
    Plain,
    Quoted,
    /// Behind a quote in a quoted field: its end, unless another quote follows.
    Quote,
}

impl Place {
    fn after(self, byte: u8, delimiter: u8) -> Self {
        match (self, byte) {
            (Self::Start | Self::Quote, b'"') => Self::Quoted,
            (Self::Quoted, b'"') => Self::Quote,
            (Self::Quoted, _) => Self::Quoted,
            (_, b'\n') => Self::Start,
            (_, byte) if byte == delimiter => Self::Start,
            _ => Self::Plain,
        }
    }
}

/// Some programs begin a file of UTF-8 with this; the CSV reader skips it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

impl<R: Read> LineStarts<R> {
    /// If fields may be quoted, `quoting` is their delimiter.
    pub(super) fn new(source: R, quoting: Option<u8>) -> Self {
        let quoting = quoting.map(|delimiter| (Place::Start, delimiter));
        Self { source, has_return: false, starts: VecDeque::new(), offset: 0, line: 1, at_start: true, quoting, is_over: false }
    }

    /// Whether the record that ends at `offset` ends in a quoted field, because the input has ended.
    pub(super) fn is_open_at(&self, offset: u64) -> bool {
        self.is_over && offset == self.offset && matches!(self.quoting, Some((Place::Quoted, _)))
    }

    /// Number of the first non-empty line that starts at or after `offset`, which must not fall from call to call.
    pub(super) fn line_from(&mut self, offset: u64) -> u64 {
        while let Some(&(start, line)) = self.starts.front() {
            if start >= offset {
                return line;
            }
            self.starts.pop_front();
        }
        self.line
    }

    /// Notes a byte that is passed on.
    fn pass(&mut self, byte: u8) {
        if let Some((place, delimiter)) = &mut self.quoting
            && BYTE_ORDER_MARK.get(self.offset as usize) != Some(&byte)
        {
            *place = place.after(byte, *delimiter);
        }
        if byte == b'\n' {
            self.line += 1;
            self.at_start = true;
        } else if self.at_start {
            self.starts.push_back((self.offset, self.line));
            self.at_start = false;
        }
        self.offset += 1;
    }
}

impl<R: Read> Read for LineStarts<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // With one place for a carriage return from before.
        while let [_, room @ ..] = &mut *buffer
            && !room.is_empty()
        {
            let size = self.source.read(room)?;
            self.is_over |= size == 0;
            let mut passed = 0;
            for at in 1..=size {
                let byte = buffer[at];
                let follows_return = std::mem::take(&mut self.has_return);
                self.has_return = byte == b'\r' && !matches!(self.quoting, Some((Place::Quoted, _)));
                let returned = (follows_return && byte != b'\n').then_some(b'\r');
                for byte in returned.into_iter().chain((!self.has_return).then_some(byte)) {
                    self.pass(byte);
                    buffer[passed] = byte;
                    passed += 1;
                }
            }
            if size == 0 && std::mem::take(&mut self.has_return) {
                self.pass(b'\r');
                buffer[0] = b'\r';
                passed = 1;
            }
            if size == 0 || passed > 0 {
                return Ok(passed);
            }
        }
        Ok(0)
    }
}
