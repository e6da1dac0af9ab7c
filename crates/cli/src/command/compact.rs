//! `everleaf compact`: the pool written anew, as small as what it holds. It takes the old one's place when it is whole.

use crate::failure::Failure;
use crate::options::PoolArguments;
use crate::output::Output;
use crate::text;
use crate::transfer::{self, Transfer};
use clap::Args;
use serde_json::json;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: PoolArguments,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let transfer = Transfer::begin();
        let done = everleaf::compact(&self.pool.pool, self.pool.store_options(), |passed, expected| transfer.show(passed, expected));
        let done = done.map_err(transfer::failure(&self.pool.pool))?;
        let time = transfer.end();
        let mut out = Output::new();
        if self.json {
            out.json(&json!({
                "size_before": done.size_before, "size": done.size, "entries": done.passed.entries, "namespaces": done.passed.namespaces,
                "seconds": time.as_secs_f64(),
            }))?;
        } else {
            out.line(format!(
                "compacted {} entries from {} to {} in {time:.2?}",
                text::count(done.passed.entries),
                text::size(done.size_before),
                text::size(done.size)
            ))?;
        }
        out.flush()
    }
}
