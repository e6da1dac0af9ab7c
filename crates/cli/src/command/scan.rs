//! `everleaf scan`: keys and values in order.

use crate::entry;
use crate::failure::Failure;
use crate::interrupt;
use crate::options::{FileArguments, NamespaceArgument};
use crate::output::Output;
use crate::text;
use clap::Args;
use everleaf::{Cursor, Direction, Namespace};
use serde_json::Value;
use std::ffi::OsString;
use std::ops::{Bound, ControlFlow};
use std::os::unix::ffi::OsStrExt;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: FileArguments,
    #[command(flatten)]
    namespace: NamespaceArgument,
    /// Lowest key (included)
    #[arg(long, value_name = "KEY")]
    from: Option<OsString>,
    /// Highest key (included)
    #[arg(long, value_name = "KEY")]
    to: Option<OsString>,
    /// Only keys that begin with this
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["from", "to"])]
    prefix: Option<OsString>,
    /// From the highest key down
    #[arg(long)]
    reverse: bool,
    /// Largest number of keys
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Print no values
    #[arg(long)]
    keys_only: bool,
    /// Print NDJSON, which load reads back
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut out = Output::new();
        self.pool.with_store(|store| self.scan(&self.namespace.of(store)?, &mut out))?;
        out.flush()
    }

    fn scan(&self, namespace: &Namespace, out: &mut Output) -> Result<(), Failure> {
        let mut outcome = Ok(());
        let mut left = self.limit.unwrap_or(u64::MAX);
        let mut visit = |key: &[u8], value: Option<(&[u8], Option<u64>)>| {
            if left == 0 {
                return ControlFlow::Break(());
            }
            left -= 1;
            outcome = interrupt::check().and_then(|()| self.print(key, value, out));
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let mut cursor = self.cursor();
        match self.keys_only {
            false => namespace.walk_entries(&mut cursor, |key, value, expiry_ms| visit(key, Some((value, expiry_ms))))?,
            true => namespace.walk_keys(&mut cursor, |key| visit(key, None))?,
        }
        outcome
    }

    /// The range to show.
    fn cursor(&self) -> Cursor {
        fn bound(key: &Option<OsString>) -> Bound<&[u8]> {
            key.as_ref().map_or(Bound::Unbounded, |key| Bound::Included(key.as_bytes()))
        }
        let direction = if self.reverse { Direction::Reverse } else { Direction::Forward };
        let (low, high) = (bound(&self.from), bound(&self.to));
        match (&self.prefix, direction) {
            (Some(prefix), _) => Cursor::prefix(prefix.as_bytes(), direction),
            (None, Direction::Forward) => Cursor::new(low, direction).until(high),
            (None, Direction::Reverse) => Cursor::new(high, direction).until(low),
        }
    }

    fn print(&self, key: &[u8], value: Option<(&[u8], Option<u64>)>, out: &mut Output) -> Result<(), Failure> {
        match value {
            Some((value, expiry_ms)) if self.json => out.json(&Value::Object(entry::of_entry(key, value, expiry_ms))),
            None if self.json => out.json(&Value::Object(entry::of_key(key))),
            Some((value, _)) => out.line(format!("{}\t{}", text::escape(key), text::escape(value))),
            None => out.line(text::escape(key)),
        }
    }
}
