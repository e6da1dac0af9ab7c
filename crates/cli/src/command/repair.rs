//! `everleaf repair`: a new pool from what can be read of a damaged one, which is only read.

use crate::failure::Failure;
use crate::interrupt;
use crate::options::PoolArguments;
use crate::output::{Output, damages_as_json};
use crate::text;
use crate::transfer;
use clap::Args;
use everleaf::Salvaged;
use indicatif::ProgressBar;
use serde_json::json;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: PoolArguments,
    /// The new pool, which must not exist
    to: PathBuf,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let progress = ProgressBar::new_spinner();
        interrupt::hold()?;
        let watch = |taken| {
            progress.set_message(format!("{} entries", text::count(taken)));
            interrupt::go_on()
        };
        let salvaged = everleaf::repair(&self.pool.file.pool, &self.to, self.pool.store_options(), watch).map_err(transfer::failure(&self.to))?;
        progress.finish_and_clear();
        let mut out = Output::new();
        if self.json {
            let [namespaces, found] = [&salvaged.namespaces, &salvaged.found_in]
                .map(|all| all.iter().map(|(name, entries)| json!({ "name": name, "entries": entries })).collect::<Vec<_>>());
            let (passed_over, loss_count, losses) = (salvaged.passed_over, salvaged.losses.len(), damages_as_json(&salvaged.losses));
            out.json(&json!({ "namespaces": namespaces, "found": found, "passed_over": passed_over, "loss_count": loss_count, "losses": losses }))?;
        } else {
            self.print(&salvaged, &mut out)?;
        }
        out.flush()?;
        if salvaged.losses.is_empty() { Ok(()) } else { Err(Failure::No) }
    }

    fn print(&self, salvaged: &Salvaged, out: &mut Output) -> Result<(), Failure> {
        for (name, entries) in &salvaged.namespaces {
            out.line(format!("namespace {}: {} entries", text::escape(name.as_bytes()), text::count(*entries)))?;
        }
        out.damages("LOST", &salvaged.losses)?;
        if salvaged.losses.is_empty() {
            return out.line(format!("{} has all of it", self.to.display()));
        }
        for (name, entries) in &salvaged.found_in {
            let entries = text::count(*entries);
            out.line(format!(
                "namespace {}: {entries} entries that no index leads to: they may be old or removed, look at them",
                text::escape(name.as_bytes())
            ))?;
        }
        let (count, passed) = (text::count(salvaged.losses.len() as u64), text::count(salvaged.passed_over));
        out.line(format!("{count} losses; {passed} records were passed over for newer ones of their keys"))
    }
}
