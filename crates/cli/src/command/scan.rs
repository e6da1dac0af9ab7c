//! `everleaf scan`: keys and values in order.

use crate::entry;
use crate::failure::Failure;
use crate::options::{DEFAULT_NAMESPACE, NamespaceArgument, PoolArguments, expect_namespace};
use crate::output::Output;
use crate::text;
use clap::Args;
use everleaf::{Direction, Namespace};
use serde_json::Value;
use std::ffi::OsString;
use std::ops::{Bound, ControlFlow};
use std::os::unix::ffi::OsStrExt;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: PoolArguments,
    #[command(flatten)]
    namespace: NamespaceArgument,
    /// Lowest key
    #[arg(long, value_name = "KEY")]
    from: Option<OsString>,
    /// Highest key
    #[arg(long, value_name = "KEY")]
    to: Option<OsString>,
    /// Only keys that begin with this
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["from", "to"])]
    prefix: Option<OsString>,
    /// From the highest key down
    #[arg(long)]
    reverse: bool,
    /// At most so many keys
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
        let name = &self.namespace.namespace;
        self.pool.with_store(|store| {
            // Who has named none looks at a pool that may have no key yet.
            if name != DEFAULT_NAMESPACE {
                expect_namespace(store, name)?;
            }
            self.scan(&store.namespace(name)?, &mut out)
        })?;
        out.flush()
    }

    fn scan(&self, namespace: &Namespace, out: &mut Output) -> Result<(), Failure> {
        let direction = if self.reverse { Direction::Reverse } else { Direction::Forward };
        let mut outcome = Ok(());
        let mut left = self.limit.unwrap_or(u64::MAX);
        let mut visit = |key: &[u8], value: Option<&[u8]>| {
            if left == 0 || self.is_past(key) {
                return ControlFlow::Break(());
            }
            left -= 1;
            outcome = self.print(namespace, key, value, out);
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        match (&self.prefix, self.keys_only) {
            (Some(prefix), false) => namespace.prefix(prefix.as_bytes(), direction, |key, value| visit(key, Some(value)))?,
            (Some(prefix), true) => namespace.prefix(prefix.as_bytes(), direction, |key, _| visit(key, None))?,
            (None, false) => namespace.scan(self.start(), direction, |key, value| visit(key, Some(value)))?,
            (None, true) => namespace.scan_keys(self.start(), direction, |key| visit(key, None))?,
        }
        outcome
    }

    /// Where the scan starts: at its lowest key, or in reverse at its highest.
    fn start(&self) -> Bound<&[u8]> {
        let start = if self.reverse { &self.to } else { &self.from };
        start.as_ref().map_or(Bound::Unbounded, |key| Bound::Included(key.as_bytes()))
    }

    /// Whether `key` lies beyond the end of the scan.
    fn is_past(&self, key: &[u8]) -> bool {
        match self.reverse {
            false => self.to.as_ref().is_some_and(|to| key > to.as_bytes()),
            true => self.from.as_ref().is_some_and(|from| key < from.as_bytes()),
        }
    }

    fn print(&self, namespace: &Namespace, key: &[u8], value: Option<&[u8]>, out: &mut Output) -> Result<(), Failure> {
        if self.json {
            let object = match value {
                Some(value) => entry::of_scanned(namespace, key, value)?,
                None => Some(entry::of_key(key)),
            };
            return object.map_or(Ok(()), |object| out.json(&Value::Object(object)));
        }
        match value {
            Some(value) => out.line(format!("{}\t{}", text::escape(key), text::escape(value))),
            None => out.line(text::escape(key)),
        }
    }
}
