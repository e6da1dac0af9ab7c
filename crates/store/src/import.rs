//! Import: writes the contents of a stream into a store; restore: into a new one.
//!
//! A block is written when its checksum has been verified. So if the stream turns out to be damaged, the part before the damage has been imported correctly,
//! and nothing after it. A restore that fails leaves no pool.

use crate::stream::{Origin, Part, Passed, StreamEntry, StreamError, StreamReader};
use crate::unfinished::Unfinished;
use crate::{Act, Error, Namespace, Options, Store};
use everleaf_index::Listed;
use everleaf_pmem::{Hardware, Pool, files};
use std::fs;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// A stream that is being read into a store, a block at a time.
#[must_use = "nothing is read before `advance` or `finish`"]
pub struct Import<'s, R, M: Listed = Hardware> {
    store: &'s Store<M>,
    reader: StreamReader<R>,
    namespace: Option<Namespace<M>>,
    /// Whether something that was read has not been written.
    has_failed: bool,
}

impl<M: Listed> Store<M> {
    /// Begins to write the content of the stream `input` into the store. For a key that exists already, the stream wins; if its entry has expired meanwhile,
    /// the key is removed. A missing namespace is created with the index that it had, if this version knows it, even if it has no keys.
    ///
    /// # Errors
    /// Not a stream, a stream of a later version, a damaged stream, or one that cannot be read.
    pub fn import<R: Read>(&self, input: R) -> Result<Import<'_, R, M>, StreamError> {
        Ok(Import { store: self, reader: StreamReader::begin(input)?, namespace: None, has_failed: false })
    }
}

impl<R: Read, M: Listed> Import<'_, R, M> {
    /// Reads and writes the next block, and returns whether there is more.
    ///
    /// # Errors
    /// A damaged stream; one that cannot be read; the errors of [`Namespace::put`]. Earlier blocks have been written, and of this one each entry or not. It
    /// cannot continue then: import the stream from its beginning.
    pub fn advance(&mut self) -> Result<bool, StreamError> {
        if self.has_failed {
            return Err(StreamError::Io { action: "go on with an import that has failed", source: io::Error::other("begin with the stream anew") });
        }
        let is_more = self.write_next();
        self.has_failed = is_more.is_err();
        is_more
    }

    fn write_next(&mut self) -> Result<bool, StreamError> {
        match self.reader.next_part()? {
            Part::Namespace { name, index } => {
                let namespace = self.store.namespace(name)?;
                match namespace.prefer_index(index) {
                    // An index that only another version knows.
                    Err(Error::UnknownIndex { .. }) => {}
                    chosen => _ = chosen?,
                }
                namespace.create()?;
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

    /// Reads and writes the rest.
    ///
    /// # Errors
    /// See [`Import::advance`].
    pub fn finish(mut self) -> Result<Passed, StreamError> {
        while self.advance()? {}
        Ok(self.passed())
    }

    /// Returns where the stream comes from.
    pub fn origin(&self) -> &Origin {
        self.reader.origin()
    }

    /// Returns how much has been read.
    pub fn passed(&self) -> Passed {
        self.reader.passed()
    }
}

/// Writes entries; for expired ones the keys are removed, whatever they held.
fn write<'a, M: Listed>(namespace: &Namespace<M>, entries: &[StreamEntry<'a>], now_ms: u64) -> Result<(), Error> {
    let act = |&StreamEntry { key, value, expiry_ms }: &StreamEntry<'a>| match expiry_ms {
        None => (key, Act::Put(value)),
        Some(expiry_ms) if expiry_ms <= now_ms => (key, Act::Delete),
        Some(expiry_ms) => (key, Act::PutUntil(value, expiry_ms)),
    };
    let acts: Vec<_> = entries.iter().map(act).collect();
    let mut found = Vec::with_capacity(acts.len());
    namespace.act_many(&acts, &mut found, |_, _| Ok(ControlFlow::Continue(())))?;
    found.into_iter().try_for_each(|found| found.map(drop))
}

/// Reads a stream to its end without writing it anywhere, to check that it is whole.
///
/// # Errors
/// The first thing wrong with the stream.
pub fn check_stream<R: Read>(input: R, mut watch: impl FnMut(Passed, &Origin)) -> Result<Passed, StreamError> {
    let mut reader = StreamReader::begin(input)?;
    while reader.next_part()? != Part::End {
        watch(reader.passed(), reader.origin());
    }
    Ok(reader.passed())
}

/// Makes a pool at `path` from the stream `input`. The path must not exist. The pool appears there once the whole stream has been read, or not at all.
///
/// # Errors
/// A damaged stream; one that cannot be read; an error in creating or filling the pool. There is no pool then.
pub fn restore<R: Read>(path: &Path, options: Options, input: R, mut watch: impl FnMut(Passed, &Origin) -> ControlFlow<()>) -> Result<Passed, StreamError> {
    expect_nothing_at(path)?;
    let new = NewPool::create(path, None, options)?;
    let passed = {
        let mut import = new.store().import(input)?;
        while import.advance()? {
            if watch(import.passed(), import.origin()).is_break() {
                return Err(StreamError::Stopped);
            }
        }
        import.passed()
    };
    new.close_as(Unfinished::appear)?;
    Ok(passed)
}

/// Refuses to make a pool where something exists, even a dangling symbolic link.
pub(crate) fn expect_nothing_at(path: &Path) -> Result<(), StreamError> {
    match fs::symlink_metadata(path) {
        Ok(_) => Err(StreamError::Exists { path: path.to_owned() }),
        Err(_) => Ok(()),
    }
}

/// A pool that gets its name when it is closed. Dropped before, it is removed.
pub(crate) struct NewPool {
    /// Dropped first: what nobody will find is not written to the device.
    unfinished: Unfinished,
    journal: Journal,
    store: Store,
}

/// A pool that is removed, with its journal if there is one, unless it is closed.
struct Journal(Arc<Pool>);

impl Drop for Journal {
    fn drop(&mut self) {
        self.0.drop_journal();
    }
}

impl NewPool {
    /// Creates a pool that is to be at `path`, to hold what is read from the pool at `source`, if that is a pool.
    pub(crate) fn create(path: &Path, source: Option<&Path>, options: Options) -> Result<Self, StreamError> {
        let failed = |source: io::Error| Error::from(everleaf_pmem::Error::Io { action: "create", path: path.to_owned(), source });
        let (unfinished, _) = Unfinished::create(path, source).map_err(failed)?;
        // A crash that left a pool with this name has left its journal, too.
        Pool::drop_journal_at(unfinished.path());
        unfinished.unlock().map_err(failed)?;
        let store = Store::open(unfinished.path(), options)?;
        Ok(Self { journal: Journal(Arc::clone(store.pool())), store, unfinished })
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Closes it, as small as its contents, and has `name` give it its name; returns its size in bytes.
    pub(crate) fn close_as(self, name: impl FnOnce(Unfinished) -> io::Result<()>) -> Result<usize, StreamError> {
        let pool = Arc::clone(self.store.pool());
        pool.give_back().map_err(Error::from)?;
        self.store.close().map_err(Error::from)?;
        let size = pool.info().size;
        drop((pool, self.journal));
        // The journal of the pool that had the name is gone, and must not reappear after a crash: this pool would take it for another pool's.
        let named = files::sync_directory_of(self.unfinished.target()).and_then(|()| name(self.unfinished));
        named.map_err(|source| StreamError::Io { action: "give the pool its name", source })?;
        Ok(size)
    }
}
