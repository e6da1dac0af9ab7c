//! Engines within the process: their common part as systems of the lab.
//!
//! An engine is a few functions over bytes ([`Engine`]); this file makes a [`System`] of it. An engine with files opens them in the given directory. A crash of
//! the process leaves what the file system has at that moment. So a crash is simulated by copying the directory while the engine is running, and opening the
//! copy in its place: it has nothing that the engine has not yet passed to the system.

use everleaf_lab::{Capabilities, Error, Handle, Instance, Reopened, Setting, Shutdown, Space, System, Visit};
use std::fs;
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice::ChunksExact;
use std::time::Instant;

/// Result of an engine's operation.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// When writes of an engine reach the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Before the call returns.
    Each,
    /// Some time later; until then they are in memory that outlives the process, stored there without a system call.
    Mapped,
    /// Some time later, or never.
    Later,
}

/// An engine, open.
pub(crate) trait Engine: Send + Sync + Sized + 'static {
    /// Opens what is in `directory`, or creates it there.
    fn open(directory: &Path, setting: &Setting, sync: Durability) -> Result<Self>;

    /// Sets the value of a key, present or not.
    fn put(&self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Appends the value of a key to `value`. Returns whether the key exists.
    fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool>;

    /// Removes a key. Returns whether it existed; engines that remove blindly return true.
    fn delete(&self, key: &[u8]) -> Result<bool>;

    /// Visits entries in order, from a key on.
    fn scan(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<()>;

    /// Sets several keys by the engine's own batch operation, if it has one.
    fn put_many(&self, entries: &[(&[u8], &[u8])]) -> Result<()> {
        entries.iter().try_for_each(|(key, value)| self.put(key, value))
    }
}

/// An engine under a name, as a system.
pub(crate) struct Embedded<E> {
    name: &'static str,
    summary: &'static str,
    durability: &'static str,
    sync: Durability,
    capabilities: Capabilities,
    engine: PhantomData<fn() -> E>,
}

impl<E> Embedded<E> {
    pub(crate) fn new(name: &'static str, summary: &'static str, durability: &'static str, sync: Durability, capabilities: Capabilities) -> Self {
        Self { name, summary, durability, sync, capabilities, engine: PhantomData }
    }
}

/// Capabilities of most engines with files.
pub(crate) const PERSISTENT: Capabilities =
    Capabilities { scans: true, persistent: true, threads: true, any_size: true, needs_files: true, ..Capabilities::NONE };

/// Capabilities of most maps in memory.
pub(crate) const VOLATILE: Capabilities = Capabilities { persistent: false, alone: true, needs_files: false, ..PERSISTENT };

impl<E: Engine> System for Embedded<E> {
    fn name(&self) -> &str {
        self.name
    }

    fn summary(&self) -> String {
        self.summary.into()
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn durability(&self, _setting: &Setting) -> String {
        self.durability.into()
    }

    fn create(&self, setting: &Setting) -> std::result::Result<Box<dyn Instance>, Error> {
        let (name, sync) = (self.name, self.sync);
        let data = match &setting.directory {
            Some(directory) => directory.join("data"),
            None if self.capabilities.needs_files => return Err(Error::system(name, "it needs a directory")),
            None => PathBuf::new(),
        };
        if self.capabilities.needs_files {
            fs::create_dir_all(&data).map_err(|source| Error::io("create", &data, source))?;
        }
        let engine = E::open(&data, setting, sync).map_err(|source| Error::system(name, source))?;
        let is_persistent = self.capabilities.persistent;
        Ok(Box::new(Running { engine, name, sync, is_persistent, setting: setting.clone(), data, life: 0 }))
    }
}

/// An open engine, and the location of its data, if it has files.
struct Running<E> {
    engine: E,
    name: &'static str,
    sync: Durability,
    is_persistent: bool,
    setting: Setting,
    data: PathBuf,
    /// How many times it has crashed.
    life: u32,
}

impl<E: Engine> Instance for Running<E> {
    fn handle(&self) -> std::result::Result<Box<dyn Handle + '_>, Error> {
        Ok(Box::new(Using(self)))
    }

    fn space(&self) -> std::result::Result<Space, Error> {
        let bytes = || size_of(&self.data).map_err(|source| Error::io("measure", &self.data, source));
        Ok(Space { pool_bytes: if self.is_persistent { Some(bytes()?) } else { None }, leaves: None })
    }

    fn reopen(self: Box<Self>, shutdown: Shutdown, _threads: u16) -> std::result::Result<Reopened, Error> {
        let Self { engine, name, sync, is_persistent, setting, data, life } = *self;
        if !is_persistent {
            return Err(Error::Missing { system: name.into(), operation: "recovery" });
        }
        let (data, life) = match shutdown {
            Shutdown::Close => (data, life),
            Shutdown::Crash => {
                let copy = data.with_file_name(format!("life-{}", life + 1));
                copy_all(&data, &copy).map_err(|source| Error::io("copy", &data, source))?;
                (copy, life + 1)
            }
        };
        drop(engine);
        let start = Instant::now();
        let engine = E::open(&data, &setting, sync).map_err(|source| Error::system(name, source))?;
        let time = start.elapsed();
        Ok(Reopened { instance: Box::new(Self { engine, name, sync, is_persistent, setting, data, life }), time })
    }
}

struct Using<'a, E>(&'a Running<E>);

impl<E> Using<'_, E> {
    fn failed(&self, source: Box<dyn std::error::Error + Send + Sync>) -> Error {
        Error::system(self.0.name, source)
    }
}

impl<E: Engine> Handle for Using<'_, E> {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> std::result::Result<(), Error> {
        self.0.engine.put(key, value).map_err(|source| self.failed(source))
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> std::result::Result<bool, Error> {
        self.0.engine.get(key, value).map_err(|source| self.failed(source))
    }

    fn update(&mut self, key: &[u8], value: &[u8]) -> std::result::Result<(), Error> {
        self.0.engine.put(key, value).map_err(|source| self.failed(source))
    }

    fn delete(&mut self, key: &[u8]) -> std::result::Result<bool, Error> {
        self.0.engine.delete(key).map_err(|source| self.failed(source))
    }

    fn scan(&mut self, from: &[u8], visit: &mut Visit<'_>) -> std::result::Result<(), Error> {
        self.0.engine.scan(from, visit).map_err(|source| self.failed(source))
    }

    fn insert_many(&mut self, keys: ChunksExact<'_, u8>, values: ChunksExact<'_, u8>) -> std::result::Result<(), Error> {
        self.0.engine.put_many(&keys.zip(values).collect::<Vec<_>>()).map_err(|source| self.failed(source))
    }
}

/// Bytes that the files in a directory occupy on the device.
fn size_of(directory: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // A file that an engine has just removed occupies nothing.
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += if metadata.is_dir() { size_of(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(bytes)
}

/// By `cp`, which keeps holes: nearly all of LMDB's 64 GiB file may be holes.
fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    let status = Command::new("cp").arg("-r").arg(from).arg(to).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("cp: {status}"))) }
}
