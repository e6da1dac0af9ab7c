//! `everleaf stats`: statistics of a pool; with `--watch`, repeatedly those of a running server.

use crate::failure::Failure;
use crate::options::FileArguments;
use crate::output::Output;
use crate::server::{Info, ServerArguments};
use crate::text;
use clap::Args;
use everleaf::Stats;
use serde_json::{Map, Value, json};
use std::thread;
use std::time::{Duration, Instant};

/// Lines between two headings.
const LINES_PER_HEADING: u64 = 20;
/// Follows the size of a pool of which less than a tenth is left.
const NEAR_LIMIT: &str = ", near its limit";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: FileArguments,
    /// Watch a server; without this, the pool is read, so nothing may have it open to write
    #[arg(long, conflicts_with = "FileArguments")]
    watch: bool,
    #[command(flatten)]
    server: ServerArguments,
    /// Seconds from one line to the next
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", requires = "watch")]
    interval: f64,
    /// Number of lines; unlimited by default
    #[arg(long, value_name = "N", requires = "watch")]
    count: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.watch {
            return self.watch();
        }
        self.server.expect_none("--watch")?;
        self.look()
    }

    fn look(&self) -> Result<(), Failure> {
        let (stats, used) = self.pool.with_store(|store| Ok((store.stats(), store.fill().used)))?;
        let mut out = Output::new();
        if self.json {
            out.json(&as_json(&stats, used))?;
            return out.flush();
        }
        out.line(format!("pool {}: {}, {} in use", self.pool.pool.display(), text::size(stats.pool.size), text::size(used)))?;
        for space in &stats.namespaces {
            out.line(format!(
                "namespace {}: {} keys in {}, {} leaves, {} in all, in {} levels",
                text::escape(space.name.as_bytes()),
                text::count(space.keys),
                space.index,
                text::count(space.leaves),
                text::size(space.leaf_bytes as usize),
                space.depth
            ))?;
        }
        out.flush()
    }

    fn watch(&self) -> Result<(), Failure> {
        let interval = Duration::try_from_secs_f64(self.interval).map_err(|error| Failure::Usage(format!("--interval {}: {error}", self.interval)))?;
        let mut server = self.server.connect()?;
        let mut before: Option<(Instant, Info)> = None;
        let mut out = Output::new();
        for line in 0..self.count.unwrap_or(u64::MAX) {
            if line > 0 {
                thread::sleep(interval);
            }
            let (now, info) = (Instant::now(), server.info()?);
            let rate = before.as_ref().map(|(then, before)| {
                info.number("total_commands_processed").saturating_sub(before.number("total_commands_processed")) as f64 / (now - *then).as_secs_f64()
            });
            if self.json {
                out.json(&info.as_json(rate))?;
            } else {
                if line.is_multiple_of(LINES_PER_HEADING) {
                    out.line("  clients  commands/s        keys        pool    resident   held back  expired")?;
                }
                out.line(info.line(rate))?;
            }
            out.flush()?;
            before = Some((now, info));
        }
        Ok(())
    }
}

fn as_json(stats: &Stats, used: usize) -> Value {
    let namespaces: Vec<_> = stats
        .namespaces
        .iter()
        .map(|space| {
            json!({
                "name": space.name, "index": space.index, "keys": space.keys, "leaves": space.leaves, "leaf_bytes": space.leaf_bytes, "depth": space.depth,
            })
        })
        .collect();
    json!({ "size": stats.pool.size, "used": used, "namespaces": namespaces })
}

impl Info {
    /// Number of keys in all databases: `db0:keys=5,...`.
    fn keys(&self) -> u64 {
        let keys = |value: &String| value.split(',').find_map(|field| field.strip_prefix("keys=")?.parse::<u64>().ok());
        self.fields().filter(|(name, _)| name.starts_with("db")).filter_map(|(_, value)| keys(value)).sum()
    }

    fn line(&self, rate: Option<f64>) -> String {
        format!(
            "{:>9}{:>12}{:>12}{:>12}{:>12}{:>12}{:>9}{}",
            self.number("connected_clients"),
            rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}")),
            text::count(self.keys()),
            text::size(self.number("pool_size") as usize),
            text::size(self.number("used_memory_rss") as usize),
            text::count(self.number("held_back_versions")),
            text::count(self.number("expired_keys")),
            if self.number("pool_near_limit") == 1 { NEAR_LIMIT } else { "" }
        )
    }

    /// All fields, numbers as numbers, and the rate.
    fn as_json(&self, rate: Option<f64>) -> Value {
        let value = |text: &String| text.parse::<i64>().map_or_else(|_| Value::from(text.as_str()), Value::from);
        let mut object: Map<String, Value> = self.fields().map(|(name, text)| (name.clone(), value(text))).collect();
        object.insert("keys".into(), self.keys().into());
        object.insert("commands_per_second".into(), rate.into());
        Value::Object(object)
    }
}
