//! `everleaf export`: a pool, or some of its namespaces, as a stream.

use crate::failure::Failure;
use crate::options::{FileArguments, expect_namespace};
use crate::transfer::{self, Transfer};
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: FileArguments,
    /// The file, which gets this name when it is complete; - is standard output
    file: PathBuf,
    /// Only this namespace (repeatable); by default all
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
            let only: Vec<_> = self.namespace.iter().map(String::as_str).collect();
            transfer::write(store, &only, &self.file, &transfer)
        })?;
        transfer::print_written("exported", passed, transfer, &self.file, self.json)
    }
}
