//! A reader that remembers where lines start, because the CSV reader below which it works tells the place of a record only as that where the record before it
//! has ended: empty lines and the second half of a line end may lie between. Nor does that tell whether what it took for a quoted field has an end, or the file
//! has one only.

use std::collections::VecDeque;
use std::io::{self, Read};

/// Passes on what `source` gives.
pub(super) struct LineStarts<R> {
    source: R,
    /// Offset in bytes and number of every line that is not empty and has been read, but not asked for.
    starts: VecDeque<(u64, u64)>,
    offset: u64,
    /// Number of the line that is being read, from 1.
    line: u64,
    /// Whether nothing of that line has been read.
    at_start: bool,
    /// Where the CSV reader is, and what parts fields, if they may be quoted.
    quoting: Option<(Place, u8)>,
    /// Whether `source` is at its end.
    is_over: bool,
}

/// Where in a record a CSV reader is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before the first byte of a field.
    Start,
    /// In one that is not quoted, or behind the quotes of one that is.
    Plain,
    Quoted,
    /// Behind a quote in a quoted field: its end, unless another one follows.
    Quote,
}

impl Place {
    fn after(self, byte: u8, delimiter: u8) -> Self {
        match (self, byte) {
            (Self::Start | Self::Quote, b'"') => Self::Quoted,
            (Self::Quoted, b'"') => Self::Quote,
            (Self::Quoted, _) => Self::Quoted,
            (_, b'\r' | b'\n') => Self::Start,
            (_, byte) if byte == delimiter => Self::Start,
            _ => Self::Plain,
        }
    }
}

/// What some programs begin a file of UTF-8 with; the CSV reader passes over it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

impl<R: Read> LineStarts<R> {
    /// Fields that may be quoted stand between `quoting`s.
    pub(super) fn new(source: R, quoting: Option<u8>) -> Self {
        let quoting = quoting.map(|delimiter| (Place::Start, delimiter));
        Self { source, starts: VecDeque::new(), offset: 0, line: 1, at_start: true, quoting, is_over: false }
    }

    /// Whether the record that ends at `offset` ends in a quoted field, because everything does.
    pub(super) fn is_open_at(&self, offset: u64) -> bool {
        self.is_over && offset == self.offset && matches!(self.quoting, Some((Place::Quoted, _)))
    }

    /// Number of the first line, not being empty, that starts at or after `offset`, which is in none of the calls less than in the one before.
    pub(super) fn line_from(&mut self, offset: u64) -> u64 {
        while let Some(&(start, line)) = self.starts.front() {
            if start >= offset {
                return line;
            }
            self.starts.pop_front();
        }
        self.line
    }
}

impl<R: Read> Read for LineStarts<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let size = self.source.read(buffer)?;
        self.is_over |= size == 0 && !buffer.is_empty();
        for &byte in &buffer[..size] {
            if let Some((place, delimiter)) = &mut self.quoting
                && BYTE_ORDER_MARK.get(self.offset as usize) != Some(&byte)
            {
                *place = place.after(byte, *delimiter);
            }
            if byte == b'\n' {
                self.line += 1;
                self.at_start = true;
            } else if self.at_start && byte != b'\r' {
                self.starts.push_back((self.offset, self.line));
                self.at_start = false;
            }
            self.offset += 1;
        }
        Ok(size)
    }
}
