//! `everleaf put`: sets a key.

use crate::failure::Failure;
use crate::options::{IndexArgument, NamespaceArgument, PoolArguments};
use clap::Args;
use everleaf::VALUE_SIZE_MAX;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: PoolArguments,
    #[command(flatten)]
    index: IndexArgument,
    #[command(flatten)]
    namespace: NamespaceArgument,
    /// The key, any bytes
    key: OsString,
    /// The value, any bytes; - reads it from standard input
    value: OsString,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut value = self.value.as_bytes().to_vec();
        if value == b"-" {
            value.clear();
            // One byte more than possible is enough for the store to report the limit.
            let read = std::io::stdin().lock().take(VALUE_SIZE_MAX as u64 + 1).read_to_end(&mut value);
            read.map_err(|source| Failure::Io { action: "read standard input".into(), source })?;
        }
        self.pool.with_store_or_new(&self.index, |store| Ok(store.namespace(&self.namespace.namespace)?.put(self.key.as_bytes(), &value)?))
    }
}
