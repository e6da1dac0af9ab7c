//! `everleaf del`: deletes keys.

use crate::failure::Failure;
use crate::options::{NamespaceArgument, PoolArguments};
use crate::output::Output;
use clap::Args;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: PoolArguments,
    #[command(flatten)]
    namespace: NamespaceArgument,
    /// The keys, any bytes
    #[arg(required = true)]
    keys: Vec<OsString>,
}

impl Arguments {
    /// Prints how many keys were present and deleted; none is a negative result.
    pub(crate) fn run(self) -> Result<(), Failure> {
        let deleted = self.pool.with_store(|store| {
            let keys: Vec<_> = self.keys.iter().map(|key| key.as_bytes()).collect();
            Ok(self.namespace.of(store)?.delete_many(&keys)?)
        })?;
        let mut out = Output::new();
        out.line(deleted.to_string())?;
        out.flush()?;
        if deleted > 0 { Ok(()) } else { Err(Failure::No) }
    }
}
