//! Everleaf's store: keys and values of any size in a namespace, on any index.

use super::medium::{create_pool, durability, flushed_and_fenced, open_pool};
use super::{Capabilities, Handle, Instance, Marks, Reopened, Setting, Shutdown, Space, System, Visit, append_found};
use crate::Error;
use everleaf::{Direction, Namespace, Options, Store};
use everleaf_pmem::{Counters, Pool};
use std::ops::Bound;
use std::path::PathBuf;
use std::slice::ChunksExact;
use std::sync::Arc;
use std::time::Instant;

const NAMESPACE: &str = "lab";

/// A store on an index of the registry.
#[derive(Clone)]
pub(super) struct Stores {
    /// `store:` or `store-snapshots:`, and the name of the index.
    pub(super) name: String,
    pub(super) index: String,
    /// Whether each lookup and each scan opens a snapshot.
    pub(super) by_snapshots: bool,
}

impl System for Stores {
    fn name(&self) -> &str {
        &self.name
    }

    fn summary(&self) -> String {
        format!("Everleaf's store on index {}{}", self.index, if self.by_snapshots { ", each read in a snapshot of its own" } else { "" })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { scans: true, persistent: true, threads: true, counts: true, write_latency: true, any_size: true, ..Capabilities::NONE }
    }

    fn durability(&self, setting: &Setting) -> String {
        durability(setting)
    }

    fn create(&self, setting: &Setting) -> Result<Box<dyn Instance>, Error> {
        let failed = |error: everleaf::Error| Error::system(&self.name, error);
        let (pool, path) = create_pool(setting).map_err(|error| failed(error.into()))?;
        Ok(Box::new(self.open_on(pool, path, setting).map_err(failed)?))
    }
}

impl Stores {
    fn open_on(&self, pool: Arc<Pool>, path: Option<PathBuf>, setting: &Setting) -> Result<Open, everleaf::Error> {
        let store = Store::on(pool, &Options { index: self.index.clone(), recovery_threads: setting.threads.into(), ..Options::default() })?;
        Ok(Open { namespace: store.namespace(NAMESPACE)?, store, system: self.clone(), path, setting: setting.clone() })
    }
}

/// A store with its namespace. Fields are dropped in this order.
struct Open {
    namespace: Namespace,
    store: Store,
    system: Stores,
    path: Option<PathBuf>,
    setting: Setting,
}

impl Open {
    fn failed(&self) -> impl Fn(everleaf::Error) -> Error + '_ {
        |error| Error::system(&self.system.name, error)
    }

    /// Leaves, and the number of splits.
    fn leaves_and_splits(&self) -> (u64, u64) {
        self.namespace.stats().map_or((0, 0), |of| (of.leaves, of.splits))
    }
}

impl Instance for Open {
    fn handle(&self) -> Result<Box<dyn Handle + '_>, Error> {
        Ok(Box::new(Threads(self)))
    }

    fn space(&self) -> Result<Space, Error> {
        Ok(Space { pool_bytes: Some(self.store.fill().used as u64), leaves: Some(self.leaves_and_splits().0) })
    }

    fn counters(&self) -> Option<&Counters> {
        self.store.pool().medium().counters()
    }

    fn marks(&self) -> Option<Marks> {
        let (lines_flushed, fences) = flushed_and_fenced(self.store.pool());
        let (leaves, splits) = self.leaves_and_splits();
        Some(Marks { lines_flushed, fences, leaves, splits, ..Marks::default() })
    }

    fn reopen(self: Box<Self>, shutdown: Shutdown, threads: u16) -> Result<Reopened, Error> {
        let Self { namespace, store, system, path, setting } = *self;
        let failed = |error: everleaf::Error| Error::system(&system.name, error);
        let path = path.ok_or_else(|| Error::Missing { system: system.name.clone(), operation: "reopening without a file" })?;
        drop(namespace);
        match shutdown {
            Shutdown::Close => store.close().map_err(|unclosed| failed(unclosed.error))?,
            Shutdown::Crash => drop(store),
        }
        let start = Instant::now();
        let setting = Setting { threads, ..setting };
        let pool = open_pool(&path, &setting).map_err(|error| failed(error.into()))?;
        let open = system.open_on(pool, Some(path), &setting).map_err(failed)?;
        let time = start.elapsed();
        Ok(Reopened { instance: Box::new(open), time })
    }
}

struct Threads<'a>(&'a Open);

impl Handle for Threads<'_> {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.update(key, value)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        if self.0.system.by_snapshots {
            let found = self.0.store.snapshot().and_then(|snapshot| snapshot.get_into(&self.0.namespace, key, value));
            return Ok(found.map_err(self.0.failed())?.is_some());
        }
        Ok(self.0.namespace.get_into(key, value).map_err(self.0.failed())?.is_some())
    }

    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.0.namespace.put(key, value).map_err(self.0.failed())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        self.0.namespace.delete(key).map_err(self.0.failed())
    }

    fn scan(&mut self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), Error> {
        let from = Bound::Included(from);
        if self.0.system.by_snapshots {
            let snapshot = self.0.store.snapshot().map_err(self.0.failed())?;
            return snapshot.scan(&self.0.namespace, from, Direction::Forward, visit).map_err(self.0.failed());
        }
        self.0.namespace.scan(from, Direction::Forward, visit).map_err(self.0.failed())
    }

    fn get_many(&mut self, keys: ChunksExact<'_, u8>, value_size: usize, values: &mut Vec<u8>) -> Result<u64, Error> {
        let (keys, mut count) = (keys.collect::<Vec<_>>(), 0);
        if self.0.system.by_snapshots {
            let found = self.0.store.snapshot().and_then(|snapshot| snapshot.get_many(&self.0.namespace, &keys)).map_err(self.0.failed())?;
            for value in found {
                let copy = |values: &mut Vec<u8>| Ok::<_, Error>(value.map(|value| values.extend_from_slice(&value)).is_some());
                count += append_found(values, value_size, copy)?;
            }
            return Ok(count);
        }
        let visited = self.0.namespace.visit_many(&keys, |found| {
            let copy = |values: &mut Vec<u8>| found.map(|found| found.copy_to(values)).transpose().map(|size| size.is_some());
            count += append_found(values, value_size, copy)?;
            Ok::<_, everleaf::Error>(())
        });
        visited.map_err(self.0.failed())?;
        Ok(count)
    }

    fn insert_many(&mut self, keys: ChunksExact<'_, u8>, values: ChunksExact<'_, u8>) -> Result<(), Error> {
        self.0.namespace.put_many(&keys.zip(values).collect::<Vec<_>>()).map_err(self.0.failed())
    }
}
