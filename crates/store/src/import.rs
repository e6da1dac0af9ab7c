//! Import: what a stream holds, written into a store; restore: into a new one.
//!
//! A block is written when its checksum has been verified. So if the stream turns out to be damaged, what came before the damage has been imported, with
//! nothing wrong in it, and nothing behind. A restore that fails leaves no pool.

use crate::export::{sync_directory_of, unfinished_path};
use crate::stream::{Origin, Part, Passed, StreamEntry, StreamError, StreamReader};
use crate::{Error, Namespace, Options, Store};
use everleaf_index::Listed;
use everleaf_pmem::Hardware;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A stream that is being read into a store, a block at a time.
pub struct Import<'s, R, M: Listed = Hardware> {
    store: &'s Store<M>,
    reader: StreamReader<R>,
    namespace: Option<Namespace<M>>,
}

impl<M: Listed> Store<M> {
    /// Begins to write what the stream `input` holds into the store. Of a key that is there already, what the stream says wins. Namespaces that are not there
    /// get the index that they had, if this version knows it.
    ///
    /// # Errors
    /// It is no stream, or one of a later version, or damaged, or cannot be read.
    pub fn import<R: Read>(&self, input: R) -> Result<Import<'_, R, M>, StreamError> {
        Ok(Import { store: self, reader: StreamReader::begin(input)?, namespace: None })
    }
}

impl<R: Read, M: Listed> Import<'_, R, M> {
    /// Reads and writes the next block; whether there is more.
    ///
    /// # Errors
    /// A damaged stream; what cannot be read; what [`Namespace::put`] fails with. Blocks before have been written, and each entry of this one, or not.
    pub fn advance(&mut self) -> Result<bool, StreamError> {
        match self.reader.next_part()? {
            Part::Namespace { name, index } => {
                let namespace = self.store.namespace(name)?;
                namespace.prefer_index(index);
                self.namespace = Some(namespace);
                Ok(true)
            }
            Part::Entries(entries) => {
                if let Some(namespace) = &self.namespace {
                    write(namespace, &entries, self.store.time_ms())?;
                }
                Ok(true)
            }
            Part::End => Ok(false),
        }
    }

    /// Reads and writes all that is left.
    ///
    /// # Errors
    /// See [`Import::advance`].
    pub fn finish(mut self) -> Result<Passed, StreamError> {
        while self.advance()? {}
        Ok(self.passed())
    }

    /// Where the stream comes from.
    pub fn origin(&self) -> &Origin {
        self.reader.origin()
    }

    /// How much has been read.
    pub fn passed(&self) -> Passed {
        self.reader.passed()
    }
}

/// Writes entries, together where they do not expire; those that have expired are left out.
fn write<M: Listed>(namespace: &Namespace<M>, entries: &[StreamEntry<'_>], now_ms: u64) -> Result<(), Error> {
    for group in entries.chunk_by(|one, other| one.expiry_ms.is_none() && other.expiry_ms.is_none()) {
        match group {
            [StreamEntry { expiry_ms: Some(expiry_ms), .. }] if *expiry_ms <= now_ms => {}
            [StreamEntry { key, value, expiry_ms: Some(expiry_ms) }] => namespace.put_until(key, value, *expiry_ms)?,
            lasting => namespace.put_many(&lasting.iter().map(|entry| (entry.key, entry.value)).collect::<Vec<_>>())?,
        }
    }
    Ok(())
}

/// Reads a stream to its end, and writes it nowhere: whether it is whole.
///
/// # Errors
/// What is wrong with it.
pub fn check_stream<R: Read>(input: R, mut watch: impl FnMut(Passed, &Origin)) -> Result<Passed, StreamError> {
    let mut reader = StreamReader::begin(input)?;
    while reader.next_part()? != Part::End {
        watch(reader.passed(), reader.origin());
    }
    Ok(reader.passed())
}

/// Makes a pool at `path` of the stream `input`. There must be nothing of that name; it is there when all of the stream has been read, or not at all.
///
/// # Errors
/// A damaged stream; what cannot be read; what a pool cannot be created or filled with. There is no pool then.
pub fn restore<R: Read>(path: &Path, options: Options, input: R, mut watch: impl FnMut(Passed, &Origin)) -> Result<Passed, StreamError> {
    if path.exists() {
        return Err(exists());
    }
    let new = NewPool::create(path, options)?;
    let passed = {
        let mut import = new.store().import(input)?;
        while import.advance()? {
            watch(import.passed(), import.origin());
        }
        import.passed()
    };
    // A second name, which fails if somebody was faster, where giving it another name would replace what is there.
    new.close_as(path, |unfinished, path| fs::hard_link(unfinished, path).and_then(|()| fs::remove_file(unfinished)))?;
    Ok(passed)
}

/// There is something where a pool is to be.
pub(crate) fn exists() -> StreamError {
    StreamError::Io { action: "create the pool", source: io::ErrorKind::AlreadyExists.into() }
}

/// A pool that gets its name when it is closed. Dropped before, it is gone.
pub(crate) struct NewPool {
    path: PathBuf,
    store: Option<Store>,
}

impl NewPool {
    /// Creates a pool that is to be at `path`.
    pub(crate) fn create(path: &Path, options: Options) -> Result<Self, StreamError> {
        let path = unfinished_path(path);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(StreamError::Io { action: "remove an unfinished pool", source }),
            _ => {}
        }
        let store = Store::open(&path, options)?;
        Ok(Self { path, store: Some(store) })
    }

    pub(crate) fn store(&self) -> &Store {
        self.store.as_ref().expect("it is there until it is closed")
    }

    /// Closes it, and has `name` give it its name.
    pub(crate) fn close_as(mut self, path: &Path, name: impl FnOnce(&Path, &Path) -> io::Result<()>) -> Result<(), StreamError> {
        if let Some(store) = self.store.take() {
            store.close()?;
        }
        name(&self.path, path).map_err(|source| StreamError::Io { action: "give the pool its name", source })?;
        sync_directory_of(path).map_err(|source| StreamError::Io { action: "make the name of the pool durable", source })
    }
}

impl Drop for NewPool {
    fn drop(&mut self) {
        // When it has its name, there is nothing to remove; else it is in nobody's way if that fails.
        let _ = fs::remove_file(&self.path);
    }
}
