//! `everleaf backup`: all of a pool in a file, as of one moment. A server makes backups of its own pool: BGSAVE.

use crate::failure::Failure;
use crate::options::FileArguments;
use crate::transfer::{self, Transfer};
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: FileArguments,
    /// The file of the backup, which gets this name when it is complete; - is standard output
    file: PathBuf,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let transfer = Transfer::begin();
        let passed = self.pool.with_store(|store| transfer::write(store, &[], &self.file, &transfer))?;
        transfer::print_written("backed up", passed, transfer, &self.file, self.json)
    }
}
