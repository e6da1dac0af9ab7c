//! `everleaf compact`: makes a pool as small as its contents. A pool written anew replaces the old one when it is complete; with `--online` its server compacts
//! it in place.

use crate::failure::Failure;
use crate::interrupt;
use crate::options::PoolArguments;
use crate::output::Output;
use crate::server::{Info, Server, ServerArguments};
use crate::text;
use crate::transfer::{self, Transfer};
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// How often the server is asked whether it has finished.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: PoolArguments,
    /// Have a server compact its pool, while clients read and write, instead of writing an unused one anew
    #[arg(long, conflicts_with_all = ["FileArguments", "size_max", "domain", "prefault"])]
    online: bool,
    #[command(flatten)]
    server: ServerArguments,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.online {
            return self.ask();
        }
        self.server.expect_none("--online")?;
        let transfer = Transfer::begin();
        interrupt::hold()?;
        let done = everleaf::compact(&self.pool.file.pool, self.pool.store_options(), |passed, expected| {
            transfer.show(passed, expected);
            interrupt::go_on()
        });
        let done = done.map_err(transfer::failure(&self.pool.file.pool))?;
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

    fn ask(&self) -> Result<(), Failure> {
        let mut server = self.server.connect()?;
        let start = Instant::now();
        // Another server also knows the command, but does something else.
        server.info()?;
        server.ask(&[b"MEMORY", b"PURGE"])?;
        let info = await_end(&mut server)?;
        let time = start.elapsed();
        if info.field("last_compaction_status") != Some("ok") {
            let why = info.field("last_compaction_error").unwrap_or("it does not say why");
            let source = io::Error::other(format!("{why}; when it has stopped, `everleaf check` says what is damaged"));
            return Err(Failure::Io { action: "have the server compact its pool".into(), source });
        }
        let number = |name: &str| number(&info, name);
        let (size_before, size, given_back, moved) = (number("size_before"), number("size"), number("given_back"), number("moved"));
        let is_complete = number("is_complete") == 1;
        let mut out = Output::new();
        if self.json {
            out.json(&json!({
                "size_before": size_before, "size": size, "given_back": given_back, "moved": moved, "is_complete": is_complete, "seconds": time.as_secs_f64(),
            }))?;
        } else {
            out.line(format!(
                "compacted from {} to {}, gave back {}, moved {} records and leaves in {time:.2?}{}",
                text::size(size_before as usize),
                text::size(size as usize),
                text::size(given_back as usize),
                text::count(moved),
                if is_complete { "" } else { "; there was no room to move all" }
            ))?;
        }
        out.flush()
    }
}

/// Waits until the server has finished, showing progress; returns its INFO then.
fn await_end(server: &mut Server) -> Result<Info, Failure> {
    let progress = ProgressBar::new_spinner();
    loop {
        let info = server.info()?;
        if info.number("compaction_in_progress") == 0 {
            progress.finish_and_clear();
            return Ok(info);
        }
        let (moved, given_back) = (number(&info, "moved"), number(&info, "given_back"));
        progress.set_message(format!("{} records and leaves moved, {} given back", text::count(moved), text::size(given_back as usize)));
        progress.tick();
        thread::sleep(PAUSE);
    }
}

/// A number of the last compaction in INFO.
fn number(info: &Info, name: &str) -> u64 {
    info.number(&format!("last_compaction_{name}"))
}
