//! `everleaf check`: reads everything and looks for damage. A pool that was not closed is recovered first, in memory.

use crate::failure::Failure;
use crate::interrupt::go_on;
use crate::options::FileArguments;
use crate::output::{Output, damages_as_json};
use crate::text;
use crate::transfer::Transfer;
use clap::Args;
use everleaf::Report;
use everleaf_pmem::DAMAGE_ADVICE;
use serde_json::{Value, json};

const REMEDY: &str = "`everleaf repair` makes a new pool of what can be read, `everleaf restore` one of a backup";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: FileArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let transfer = Transfer::begin();
        let mut is_opened = false;
        let report = self.pool.with_store(|store| {
            is_opened = true;
            let report = store.verify_with(|read, expected| {
                transfer.show_entries(read, expected);
                go_on()
            })?;
            report.ok_or(Failure::Interrupted)
        });
        transfer.end();
        let mut out = Output::new();
        if !is_opened
            && let Err(Failure::Store(error)) = &report
            && let Some(what) = error.to_string().strip_suffix(DAMAGE_ADVICE)
        {
            // So much that the pool cannot even be opened.
            match self.json {
                true => out.json(&json!({ "sound": false, "error": what }))?,
                false => out.line(format!("DAMAGED: {what}\n{} cannot be opened; {REMEDY}", self.pool.pool.display()))?,
            }
            out.flush()?;
            return Err(Failure::No);
        }
        let report = report?;
        if self.json {
            out.json(&as_json(&report))?
        } else {
            self.print(&report, &mut out)?
        }
        out.flush()?;
        if report.is_sound() { Ok(()) } else { Err(Failure::No) }
    }

    fn print(&self, report: &Report, out: &mut Output) -> Result<(), Failure> {
        for space in &report.namespaces {
            let name = text::escape(space.name.as_bytes());
            out.line(format!(
                "namespace {name}: {} keys, {} of keys and values, in {}",
                text::count(space.keys),
                text::size(space.bytes as usize),
                space.index
            ))?;
        }
        out.line(format!("blocks: {} reachable, {} leaked", text::count(report.usage.reachable as u64), text::count(report.usage.leaked as u64)))?;
        out.damages("DAMAGED", &report.damages)?;
        if report.is_sound() {
            return out.line(format!("{} is sound", self.pool.pool.display()));
        }
        out.line(format!("{} is not sound, damages: {}; {REMEDY}", self.pool.pool.display(), text::count(report.damages.len() as u64)))
    }
}

fn as_json(report: &Report) -> Value {
    let namespaces: Vec<_> =
        report.namespaces.iter().map(|space| json!({ "name": space.name, "index": space.index, "keys": space.keys, "bytes": space.bytes })).collect();
    json!({
        "sound": report.is_sound(), "namespaces": namespaces, "blocks_reachable": report.usage.reachable, "blocks_leaked": report.usage.leaked,
        "damage_count": report.damages.len(), "damages": damages_as_json(&report.damages),
    })
}
