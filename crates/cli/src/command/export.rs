//! `everleaf export`: a pool, or some of its namespaces, as a stream.

use crate::failure::Failure;
use crate::options::{PoolArguments, expect_namespace};
use crate::transfer::{self, Transfer};
use clap::Args;
use everleaf::{Passed, Store};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: PoolArguments,
    /// The file, which gets this name when it is whole; - is standard output
    file: PathBuf,
    /// Only this namespace, which may be given several times; otherwise all
    #[arg(long, short, value_name = "NAME")]
    namespace: Vec<String>,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let transfer = Transfer::begin();
        let passed = self.pool.with_store(|store| {
            self.namespace.iter().try_for_each(|name| expect_namespace(store, name))?;
            if transfer::is_standard(&self.file) {
                return self.write(store, std::io::stdout().lock(), &transfer);
            }
            // A pipe or a device takes the stream as it comes.
            if std::fs::metadata(&self.file).is_ok_and(|metadata| !metadata.is_file()) {
                let file = File::options().write(true).open(&self.file).map_err(|source| Failure::io("open", &self.file, source))?;
                return self.write(store, file, &transfer);
            }
            transfer::back_up(store, &self.only(), &self.file, &transfer)
        })?;
        let time = transfer.end();
        // Standard output has the stream.
        if transfer::is_standard(&self.file) { Ok(()) } else { transfer::print("exported", passed, time, self.json) }
    }

    fn only(&self) -> Vec<&str> {
        self.namespace.iter().map(String::as_str).collect()
    }

    fn write(&self, store: &Store, out: impl Write, transfer: &Transfer) -> Result<Passed, Failure> {
        let mut export = store.snapshot()?.export(&self.only(), out).map_err(transfer::failure(&self.file))?;
        while export.advance().map_err(transfer::failure(&self.file))? {
            transfer.show(export.passed(), export.entries_expected());
        }
        Ok(export.finish().map_err(transfer::failure(&self.file))?.1)
    }
}
