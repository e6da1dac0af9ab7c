//! The stream: the format of backups and exports. `docs/stream-format.md` describes it for authors of other readers.
//!
//! ```text
//!  header    block 0     block 1                                       last block
//! +--------+------+---+-----------+---------+---------+---+-----------+-----+
//! | 16 B   | origin    | namespace | entries | entries |...| namespace |...| end |
//! +--------+------+---+-----------+---------+---------+---+-----------+-----+
//!
//! header   8 B MAGIC | 4 B VERSION | 4 B CRC-32C of the 12 bytes before
//! block    4 B kind | 4 B size of the content | 4 B number of the block, modulo 2^32 | 4 B CRC-32C of the content | 4 B CRC-32C of these 16 bytes | content
//! entry    4 B size of the key | 4 B size of the value | 8 B when it expires, in ms since 1970, 0 = never | key | value
//! ```
//!
//! All numbers are little-endian. A checksum covers every byte, each block has its number, and the last one says how much there was: so anything missing,
//! duplicated, moved or changed is noticed, at the latest with the block that has it, and nothing of that block is handed out. A size is believed only after
//! its header has been verified.
//!
//! A block of entries is written when it has [`BLOCK_SIZE`] bytes, and is larger only if its last entry is that large. A reader takes memory as bytes arrive,
//! not as a header promises them.

use crate::error::check_namespace_name;
use crate::{KEY_SIZE_MAX, VALUE_SIZE_MAX};
use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::path::PathBuf;

/// Not text, and changed by any transfer that takes it for text.
pub(crate) const MAGIC: [u8; 8] = *b"\x89EVS\r\n\x1a\n";
/// Version of the format.
const VERSION: u32 = 1;
/// Size of the header.
const HEADER_SIZE: usize = 16;
/// Size of the header of a block.
const BLOCK_HEADER_SIZE: usize = 20;
/// Bytes of entries in a block, about.
const BLOCK_SIZE: usize = 256 << 10;
const ENTRY_HEADER_SIZE: usize = 16;
/// The largest content: one entry after almost a block of others.
const CONTENT_SIZE_MAX: usize = BLOCK_SIZE + ENTRY_HEADER_SIZE + KEY_SIZE_MAX + VALUE_SIZE_MAX;
/// How much of a content is read at once, as its bytes may not be there.
const PIECE_SIZE: usize = 1 << 20;

const ORIGIN: u32 = 1;
const NAMESPACE: u32 = 2;
const ENTRIES: u32 = 3;
const END: u32 = 4;

/// An error of a stream, or of its source or destination.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The stream is not what was written.
    #[error("the stream is damaged at byte {offset}: {what}; take another copy of it")]
    Damaged {
        /// Where the header, block or entry begins.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// The stream ends before its end: its writer, or its transfer, was interrupted.
    #[error("the stream ends at byte {offset}, in the middle; take another copy of it")]
    CutOff {
        /// Its length in bytes.
        offset: u64,
    },
    /// It does not begin as a stream does.
    #[error("this is no stream of Everleaf's: it begins with other bytes; give a file that `backup` or `export` has written")]
    NotAStream,
    /// A later version. There is no version 0.
    #[error("the stream has version {found} of the format, and this program knows none above {known}; read it with a later one")]
    UnknownVersion {
        /// Its version.
        found: u32,
        /// The latest one that is known.
        known: u32,
    },
    /// There is something where a pool is to be made.
    #[error("{path} is there already, and was left as it is; choose another path for the new pool, or remove what is there", path = path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// The progress callback has stopped it.
    #[error("stopped before the end; nothing has changed")]
    Stopped,
    /// A namespace to be exported that the snapshot does not show.
    #[error("there is no namespace {name:?} to be written; choose one that is there, or none to have all of them")]
    NoNamespace {
        /// Its name.
        name: String,
    },
    /// Reading or writing failed.
    #[error("{action}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// An error of the store: a full pool, a damaged one.
    #[error(transparent)]
    Store(#[from] crate::Error),
}

/// How much has gone through a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Number of namespaces.
    pub namespaces: u64,
    /// Number of entries.
    pub entries: u64,
    /// Size of their keys and values in bytes.
    pub content_bytes: u64,
    /// Size of the stream in bytes.
    pub stream_bytes: u64,
}

/// The origin of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The time as of which the contents are, in milliseconds since 1970: where nothing expires, when the stream was begun.
    pub time_ms: u64,
    /// Number of entries that were expected when it began: only for progress.
    pub entries_expected: u64,
    /// Which program wrote it.
    pub writer: String,
}

/// An entry of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamEntry<'b> {
    /// The key.
    pub key: &'b [u8],
    /// Its value.
    pub value: &'b [u8],
    /// When it expires, in milliseconds since 1970, if it does.
    pub expiry_ms: Option<u64>,
}

/// The next part of a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Part<'b> {
    /// A namespace begins.
    Namespace {
        /// Its name.
        name: &'b str,
        /// Name of the index that it was kept in.
        index: &'b str,
    },
    /// Entries of the current namespace, in order.
    Entries(Vec<StreamEntry<'b>>),
    /// The end.
    End,
}

/// Writes a stream.
pub(crate) struct Writer<W> {
    out: W,
    /// Number of the next block.
    number: u32,
    /// Entries that were not written yet, after room for the header of their block.
    entries: Vec<u8>,
    pub(crate) passed: Passed,
}

impl<W: Write> Writer<W> {
    pub(crate) fn begin(out: W, origin: &Origin) -> Result<Self, StreamError> {
        let mut writer = Self { out, number: 0, entries: vec![0; BLOCK_HEADER_SIZE], passed: Passed::default() };
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&crc32c::crc32c(&header).to_le_bytes());
        writer.write(&header)?;
        writer.block(ORIGIN, &[&origin.time_ms.to_le_bytes()[..], &origin.entries_expected.to_le_bytes(), origin.writer.as_bytes()])?;
        Ok(writer)
    }

    /// Begins a namespace.
    pub(crate) fn namespace(&mut self, name: &str, index: &str) -> Result<(), StreamError> {
        self.flush_entries()?;
        self.passed.namespaces += 1;
        let size = u8::try_from(name.len()).expect("no name of a namespace is so long");
        self.block(NAMESPACE, &[&[size], name.as_bytes(), index.as_bytes()])
    }

    /// Adds an entry, whose value `write` appends, returning its size. Returns whether a block is full, so that [`Writer::flush_entries`] is due.
    pub(crate) fn entry<E>(&mut self, key: &[u8], expiry_ms: Option<u64>, write: impl FnOnce(&mut Vec<u8>) -> Result<usize, E>) -> Result<bool, E> {
        let start = self.entries.len();
        self.entries.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.entries.extend_from_slice(&[0; 4]);
        self.entries.extend_from_slice(&expiry_ms.unwrap_or(0).to_le_bytes());
        self.entries.extend_from_slice(key);
        let size = match write(&mut self.entries) {
            Ok(size) => size,
            Err(error) => {
                self.entries.truncate(start);
                return Err(error);
            }
        };
        self.entries[start + 4..][..4].copy_from_slice(&(size as u32).to_le_bytes());
        self.passed.entries += 1;
        self.passed.content_bytes += (key.len() + size) as u64;
        Ok(self.entries.len() - BLOCK_HEADER_SIZE >= BLOCK_SIZE)
    }

    /// Writes the pending entries.
    pub(crate) fn flush_entries(&mut self) -> Result<(), StreamError> {
        if self.entries.len() == BLOCK_HEADER_SIZE {
            return Ok(());
        }
        let mut block = std::mem::take(&mut self.entries);
        let (header, content) = block.split_at_mut(BLOCK_HEADER_SIZE);
        header.copy_from_slice(&self.header(ENTRIES, &[content]));
        let written = self.write(&block);
        block.truncate(BLOCK_HEADER_SIZE);
        // One large value is no reason to keep so much memory.
        block.shrink_to(2 * BLOCK_SIZE);
        self.entries = block;
        written
    }

    /// Writes the end, and returns what the stream was written to.
    pub(crate) fn end(mut self) -> Result<(W, Passed), StreamError> {
        self.flush_entries()?;
        let Passed { namespaces, entries, content_bytes, .. } = self.passed;
        self.block(END, &[&namespaces.to_le_bytes()[..], &entries.to_le_bytes(), &content_bytes.to_le_bytes()])?;
        self.out.flush().map_err(|source| StreamError::Io { action: "write the stream", source })?;
        Ok((self.out, self.passed))
    }

    fn block(&mut self, kind: u32, content: &[&[u8]]) -> Result<(), StreamError> {
        let header = self.header(kind, content);
        self.write(&[&header, content.concat().as_slice()].concat())
    }

    fn header(&mut self, kind: u32, content: &[&[u8]]) -> [u8; BLOCK_HEADER_SIZE] {
        let size: usize = content.iter().map(|part| part.len()).sum();
        let size = u32::try_from(size).expect("a block holds at most one large value");
        let crc = content.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part));
        let mut header = [0; BLOCK_HEADER_SIZE];
        for (place, number) in header.chunks_exact_mut(4).zip([kind, size, self.number, crc]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        self.number = self.number.wrapping_add(1);
        let crc = crc32c::crc32c(&header[..16]);
        header[16..].copy_from_slice(&crc.to_le_bytes());
        header
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), StreamError> {
        self.passed.stream_bytes += bytes.len() as u64;
        self.out.write_all(bytes).map_err(|source| StreamError::Io { action: "write the stream", source })
    }
}

/// Reads a stream.
pub struct StreamReader<R> {
    input: R,
    /// Number of the next block.
    number: u32,
    origin: Origin,
    content: Vec<u8>,
    /// The last key of the current namespace, if it has any yet.
    last_key: Option<Vec<u8>>,
    /// Names of the namespaces so far.
    names: BTreeSet<String>,
    passed: Passed,
    /// Whether the end was read.
    is_over: bool,
}

impl<R: Read> StreamReader<R> {
    /// Reads the beginning of a stream.
    ///
    /// # Errors
    /// It is no stream, or one of a later version, or damaged, or cannot be read.
    pub fn begin(input: R) -> Result<Self, StreamError> {
        let (names, origin) = (BTreeSet::new(), Origin::default());
        let mut reader = Self { input, number: 0, origin, content: Vec::new(), last_key: None, names, passed: Passed::default(), is_over: false };
        let mut header = [0; HEADER_SIZE];
        reader.fill(&mut header).map_err(|error| if matches!(error, StreamError::CutOff { .. }) { StreamError::NotAStream } else { error })?;
        if header[..8] != MAGIC {
            return Err(StreamError::NotAStream);
        }
        if word(&header, 12) != crc32c::crc32c(&header[..12]) {
            return Err(StreamError::Damaged { offset: 0, what: "its header does not match its checksum" });
        }
        if word(&header, 8) == 0 {
            return Err(StreamError::Damaged { offset: 0, what: "it says that it has version 0 of the format, which there is not" });
        }
        if word(&header, 8) != VERSION {
            return Err(StreamError::UnknownVersion { found: word(&header, 8), known: VERSION });
        }
        let offset = reader.passed.stream_bytes;
        let damaged = |what| StreamError::Damaged { offset, what };
        if reader.block()? != ORIGIN {
            return Err(damaged("its first block does not say where it comes from"));
        }
        let Some((numbers, writer)) = reader.content.split_at_checked(16) else { return Err(damaged("its origin is too short")) };
        let writer = std::str::from_utf8(writer).map_err(|_| damaged("the name of its writer is not UTF-8"))?;
        reader.origin = Origin { time_ms: long(numbers, 0), entries_expected: long(numbers, 8), writer: writer.into() };
        Ok(reader)
    }

    /// The origin of the stream.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// How much has been read.
    pub fn passed(&self) -> Passed {
        self.passed
    }

    /// Where the next block begins, in bytes.
    pub fn offset(&self) -> u64 {
        self.passed.stream_bytes
    }

    /// The next part. A part is handed out once its own checksum matches: the rest of the stream may be damaged. After the end, the end again.
    ///
    /// # Errors
    /// A damaged stream; an error in reading.
    pub fn next_part(&mut self) -> Result<Part<'_>, StreamError> {
        if self.is_over {
            return Ok(Part::End);
        }
        let offset = self.offset();
        let damaged = |what| StreamError::Damaged { offset, what };
        match self.block()? {
            NAMESPACE => {
                self.last_key = None;
                self.passed.namespaces += 1;
                let (name, index) = namespace(&self.content).map_err(damaged)?;
                if !self.names.insert(name.into()) {
                    return Err(damaged("a namespace that comes a second time"));
                }
                Ok(Part::Namespace { name, index })
            }
            ENTRIES if self.passed.namespaces == 0 => Err(damaged("entries before any namespace")),
            ENTRIES => {
                let mut entries = Vec::new();
                let mut last = self.last_key.take();
                let mut rest = self.content.as_slice();
                while !rest.is_empty() {
                    if self.content.len() - rest.len() >= BLOCK_SIZE {
                        return Err(damaged("a block larger than any that is written"));
                    }
                    let entry = entry(&mut rest).map_err(damaged)?;
                    let before = entries.last().map_or(last.as_deref(), |entry: &StreamEntry<'_>| Some(entry.key));
                    if before.is_some_and(|before| before >= entry.key) {
                        return Err(damaged("keys that are not in order"));
                    }
                    self.passed.content_bytes += (entry.key.len() + entry.value.len()) as u64;
                    entries.push(entry);
                }
                self.passed.entries += entries.len() as u64;
                if let Some(entry) = entries.last() {
                    last = Some(entry.key.to_vec());
                }
                self.last_key = last;
                Ok(Part::Entries(entries))
            }
            END => {
                let Passed { namespaces, entries, content_bytes, .. } = self.passed;
                if self.content.len() != 24 || [long(&self.content, 0), long(&self.content, 8), long(&self.content, 16)] != [namespaces, entries, content_bytes]
                {
                    return Err(damaged("its end counts what was not there"));
                }
                let mut more = [0];
                match self.fill(&mut more) {
                    Ok(()) => Err(StreamError::Damaged { offset: self.passed.stream_bytes - 1, what: "bytes behind its end" }),
                    Err(StreamError::CutOff { .. }) => {
                        self.is_over = true;
                        Ok(Part::End)
                    }
                    Err(error) => Err(error),
                }
            }
            _ => Err(damaged("a block of no known kind")),
        }
    }

    /// Reads the next block into `content`; returns its kind.
    fn block(&mut self) -> Result<u32, StreamError> {
        let offset = self.offset();
        let damaged = |what| StreamError::Damaged { offset, what };
        let mut header = [0; BLOCK_HEADER_SIZE];
        self.fill(&mut header)?;
        if word(&header, 16) != crc32c::crc32c(&header[..16]) {
            return Err(damaged("the header of a block does not match its checksum"));
        }
        let (kind, size, number, crc) = (word(&header, 0), word(&header, 4) as usize, word(&header, 8), word(&header, 12));
        if size > CONTENT_SIZE_MAX {
            return Err(damaged("a block larger than any that is written"));
        }
        if number != self.number {
            return Err(damaged("a block that belongs elsewhere"));
        }
        self.number = self.number.wrapping_add(1);
        let mut content = std::mem::take(&mut self.content);
        content.clear();
        content.shrink_to(2 * PIECE_SIZE);
        while content.len() < size {
            let start = content.len();
            content.resize(size.min(start + PIECE_SIZE.max(start)), 0);
            self.fill(&mut content[start..])?;
        }
        if crc != crc32c::crc32c(&content) {
            return Err(damaged("a block that does not match its checksum"));
        }
        self.content = content;
        Ok(kind)
    }

    fn fill(&mut self, mut bytes: &mut [u8]) -> Result<(), StreamError> {
        while !bytes.is_empty() {
            match self.input.read(bytes) {
                Ok(0) => return Err(StreamError::CutOff { offset: self.passed.stream_bytes }),
                Ok(size) => {
                    self.passed.stream_bytes += size as u64;
                    bytes = &mut bytes[size..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(StreamError::Io { action: "read the stream", source }),
            }
        }
        Ok(())
    }
}

fn namespace(content: &[u8]) -> Result<(&str, &str), &'static str> {
    let (size, rest) = content.split_first().ok_or("a namespace without a name")?;
    let (name, index) = rest.split_at_checked(usize::from(*size)).ok_or("a namespace whose name is cut off")?;
    let text = |bytes| std::str::from_utf8(bytes).map_err(|_| "a name that is not UTF-8");
    let name = text(name)?;
    check_namespace_name(name).map_err(|_| "a name that no namespace can have")?;
    Ok((name, text(index)?))
}

/// Takes an entry off the front of `rest`.
fn entry<'b>(rest: &mut &'b [u8]) -> Result<StreamEntry<'b>, &'static str> {
    const CUT: &str = "an entry that is cut off";
    let (header, behind) = rest.split_at_checked(ENTRY_HEADER_SIZE).ok_or(CUT)?;
    let (key_size, value_size) = (word(header, 0) as usize, word(header, 4) as usize);
    if key_size > KEY_SIZE_MAX || value_size > VALUE_SIZE_MAX {
        return Err("an entry larger than any that is written");
    }
    let (key, behind) = behind.split_at_checked(key_size).ok_or(CUT)?;
    let (value, behind) = behind.split_at_checked(value_size).ok_or(CUT)?;
    *rest = behind;
    Ok(StreamEntry { key, value, expiry_ms: Some(long(header, 8)).filter(|expiry| *expiry != 0) })
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}
