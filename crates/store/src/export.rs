//! Export: a snapshot, written as a stream (`stream.rs`). A backup is an export to a file.
//!
//! Writers continue meanwhile; what they replace is held back until the export is over. An export takes memory for one block of the stream, or for the largest
//! value. Epochs are pinned while a block is gathered, but not while it is written, however slow that is.
//!
//! A backup gets its name when all of it is in the file and on the device: a file with that name is complete, or was there before.

use crate::snapshot::Snapshot;
use crate::stream::{Origin, Passed, StreamError, Writer};
use crate::unfinished::{Unfinished, is_same_file};
use crate::view::Reading;
use crate::{Cursor, Direction, Namespace};
use everleaf_index::Listed;
use everleaf_pmem::{Hardware, files};
use std::fs::File;
use std::io::{self, Write};
use std::ops::{Bound, ControlFlow};
use std::path::Path;

/// A stream that is being written, a block at a time.
#[must_use = "nothing is written before `advance` or `finish`"]
pub struct Export<W, M: Listed = Hardware> {
    snapshot: Snapshot<M>,
    writer: Writer<W>,
    /// The namespaces still to be written.
    namespaces: std::vec::IntoIter<Namespace<M>>,
    /// The namespace being written, and the progress in it.
    current: Option<(Namespace<M>, Cursor)>,
    entries_expected: u64,
}

impl<M: Listed> Snapshot<M> {
    /// Begins to write the snapshot's content to `out`: the namespaces in `only`, or all if that is empty.
    ///
    /// # Errors
    /// An error of `out`; [`StreamError::NoNamespace`].
    pub fn export<W: Write>(self, only: &[&str], out: W) -> Result<Export<W, M>, StreamError> {
        let is_wanted = |name: &str| only.is_empty() || only.contains(&name);
        let spaces: Vec<_> = self.shared.spaces.read().iter().filter(|(name, _)| is_wanted(name)).map(|(_, space)| space.clone()).collect();
        let mut namespaces: Vec<_> = spaces.into_iter().map(|space| Namespace { shared: self.shared.clone(), space }).collect();
        {
            let _pinned = self.shared.pool.pin();
            namespaces.retain(|namespace| namespace.space.index_at(self.moment(), &self.shared.clock).is_some());
        }
        if let Some(name) = only.iter().find(|name| namespaces.iter().all(|namespace| namespace.name() != **name)) {
            return Err(StreamError::NoNamespace { name: (*name).to_owned() });
        }
        let entries_expected = namespaces.iter().map(|namespace| namespace.space.count()).sum();
        let origin = Origin { time_ms: self.time_ms(), entries_expected, writer: concat!("everleaf ", env!("CARGO_PKG_VERSION")).into() };
        let writer = Writer::begin(out, &origin)?;
        Ok(Export { snapshot: self, writer, namespaces: namespaces.into_iter(), current: None, entries_expected })
    }

    /// Begins to write the snapshot's whole content into a new file, which replaces `path` when it is done, with the permissions of the former file, or of the
    /// pool. [`restore`](crate::restore) makes a pool of it.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # let (file, pool) = (directory.path().join("backup"), directory.path().join("restored.pool"));
    /// # let store = everleaf::Store::anonymous(everleaf::Options::default())?;
    /// # store.namespace("space")?.put(b"k", b"v")?;
    /// store.snapshot()?.backup(&file)?.finish()?;
    /// everleaf::restore(&pool, everleaf::Options::default(), std::fs::File::open(&file)?, |_, _| std::ops::ControlFlow::Continue(()))?;
    /// let restored = everleaf::Store::open(&pool, everleaf::Options::default())?;
    /// assert_eq!(restored.namespace("space")?.count(), 1);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`Snapshot::backup_of`].
    pub fn backup(self, path: &Path) -> Result<Backup<M>, StreamError> {
        self.backup_of(&[], path)
    }

    /// [`Snapshot::backup`] of the namespaces in `only`, or of all if that is empty.
    ///
    /// # Errors
    /// A system error; a path that leads to a pool, which may be in use; [`StreamError::NoNamespace`].
    pub fn backup_of(self, only: &[&str], path: &Path) -> Result<Backup<M>, StreamError> {
        let pool = self.shared.pool.path();
        let created = match is_same_file(path, pool) {
            true => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it would take the place of {}, the pool itself", pool.display()))),
            false => refuse_pool(path).and_then(|()| Unfinished::create(path, Some(pool))),
        };
        let (unfinished, file) = created.map_err(|source| StreamError::Io { action: "create the file of the backup", source })?;
        Ok(Backup { export: self.export(only, file)?, unfinished })
    }
}

/// Refuses to take the name of a pool, or of its journal: a process that serves the pool would go on to acknowledge writes that are lost with it.
fn refuse_pool(path: &Path) -> io::Result<()> {
    match files::is_pool(path) {
        false => Ok(()),
        true => {
            let advice = "choose another path for the backup, or, if nobody needs the pool any more, remove it first";
            Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} is a pool, or a part of one; {advice}", path.display())))
        }
    }
}

/// A backup that is being written, a block at a time. It exists when it is [finished](Backup::finish). Dropped before, it leaves nothing, and a file at its
/// path stays.
#[must_use = "there is no backup before `finish`"]
pub struct Backup<M: Listed = Hardware> {
    export: Export<File, M>,
    unfinished: Unfinished,
}

impl<M: Listed> Backup<M> {
    /// See [`Export::advance`].
    ///
    /// # Errors
    /// An error of the file system; a damaged pool.
    pub fn advance(&mut self) -> Result<bool, StreamError> {
        self.export.advance()
    }

    /// Writes the rest, makes it durable on the device, and gives the file its name.
    ///
    /// # Errors
    /// See [`Backup::advance`].
    pub fn finish(self) -> Result<Passed, StreamError> {
        let (file, passed) = self.export.finish()?;
        refuse_pool(self.unfinished.target()).map_err(|source| StreamError::Io { action: "give the backup its name", source })?;
        file.sync_all().map_err(|source| StreamError::Io { action: "make the backup durable", source })?;
        self.unfinished.replace().map_err(|source| StreamError::Io { action: "give the backup its name", source })?;
        Ok(passed)
    }

    /// Returns how much has been written.
    pub fn passed(&self) -> Passed {
        self.export.passed()
    }

    /// Returns about how many entries there are.
    pub fn entries_expected(&self) -> u64 {
        self.export.entries_expected()
    }
}

impl<W: Write, M: Listed> Export<W, M> {
    /// Writes the next block, and returns whether there is more to write.
    ///
    /// # Errors
    /// An error of the stream's writer; a damaged pool. The stream is then useless.
    pub fn advance(&mut self) -> Result<bool, StreamError> {
        let Some((namespace, cursor)) = &mut self.current else {
            let Some(namespace) = self.namespaces.next() else { return Ok(false) };
            let kind = {
                let _pinned = self.snapshot.shared.pool.pin();
                let index = namespace.space.index_at(self.snapshot.moment(), &self.snapshot.shared.clock);
                index.as_ref().map_or("", |index| index.kind)
            };
            self.writer.namespace(namespace.name(), kind)?;
            self.current = Some((namespace, Cursor::new(Bound::Unbounded, Direction::Forward)));
            return Ok(true);
        };
        let writer = &mut self.writer;
        self.snapshot.view(namespace).walk(cursor, Reading::Keys, &mut |met| {
            let is_full = writer.entry(met.key(), met.expiry_ms(), |out| met.copy_value(out))?;
            Ok(if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        self.writer.flush_entries()?;
        if cursor.is_over() {
            self.current = None;
        }
        Ok(true)
    }

    /// Writes the rest, and the end of the stream.
    ///
    /// # Errors
    /// See [`Export::advance`].
    pub fn finish(mut self) -> Result<(W, Passed), StreamError> {
        while self.advance()? {}
        self.writer.end()
    }

    /// Returns how much has been written.
    pub fn passed(&self) -> Passed {
        self.writer.passed
    }

    /// Returns about how many entries there are.
    pub fn entries_expected(&self) -> u64 {
        self.entries_expected
    }
}
