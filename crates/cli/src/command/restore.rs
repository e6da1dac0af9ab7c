//! `everleaf restore`: a new pool from a backup or an export.

use crate::failure::Failure;
use crate::interrupt;
use crate::options::PoolArguments;
use crate::transfer::{self, Transfer};
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: PoolArguments,
    /// The backup; - is standard input. The pool must not exist, and appears when all of the backup has been read
    file: PathBuf,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let transfer = Transfer::begin();
        let input = transfer::open(&self.file)?;
        interrupt::hold()?;
        let passed = everleaf::restore(&self.pool.file.pool, self.pool.store_options(), input, |passed, origin| {
            transfer.show(passed, origin.entries_expected);
            interrupt::go_on()
        });
        let passed = passed.map_err(transfer::failure(&self.file))?;
        transfer::print("restored", passed, transfer.end(), self.json)
    }
}
