//! `everleaf import`: reads an export or a backup into a pool, which may have contents already.
//!
//! A file is read through before anything is written, so a damaged one changes nothing. Standard input is not: everything before the damage is imported, and
//! the error says where the damage is. One that ends early says how much it has left in the pool.

use crate::failure::Failure;
use crate::interrupt;
use crate::options::{IndexArgument, PoolArguments};
use crate::output::tell;
use crate::text;
use crate::transfer::{self, Transfer};
use clap::Args;
use everleaf::Passed;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: PoolArguments,
    #[command(flatten)]
    index: IndexArgument,
    /// The file; - is standard input. For a key that exists already, the file wins
    file: PathBuf,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

/// Says what an import that was broken off has left in the pool. Parts of the block that failed may be there, too.
fn tell_rest(passed: Passed) {
    if passed.entries > 0 {
        tell(format_args!("{} entries or more are in the pool; importing the file again is harmless", text::count(passed.entries)));
    }
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let failure = || transfer::failure(&self.file);
        let is_file = std::fs::metadata(&self.file).is_ok_and(|metadata| metadata.is_file());
        if is_file && !transfer::is_standard(&self.file) {
            let transfer = Transfer::begin();
            everleaf::check_stream(transfer::open(&self.file)?, |passed, origin| transfer.show(passed, origin.entries_expected)).map_err(failure())?;
            transfer.end();
        }
        let transfer = Transfer::begin();
        let input = transfer::open(&self.file)?;
        let passed = self.pool.with_store_or_new(&self.index, |store| {
            let mut import = store.import(input).map_err(failure())?;
            loop {
                let is_more = import.advance().map_err(failure()).and_then(|is_more| interrupt::check().map(|()| is_more));
                if !is_more.inspect_err(|_| tell_rest(import.passed()))? {
                    return Ok(import.passed());
                }
                transfer.show(import.passed(), import.origin().entries_expected);
            }
        })?;
        transfer::print("imported", passed, transfer.end(), self.json)
    }
}
