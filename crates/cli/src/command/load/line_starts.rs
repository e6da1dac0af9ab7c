//! A reader that remembers where lines start, because the CSV reader below which it works tells the place of a record only as that where the record before it
//! has ended: empty lines and the second half of a line end may lie between.

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
}

impl<R: Read> LineStarts<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, starts: VecDeque::new(), offset: 0, line: 1, at_start: true }
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
        for &byte in &buffer[..size] {
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
