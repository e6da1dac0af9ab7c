//! `everleaf dump`: everything as NDJSON, one object per key, in the format of `entry.rs`. `everleaf load --format ndjson` reads it back.

use crate::entry;
use crate::failure::Failure;
use crate::interrupt;
use crate::options::{FileArguments, expect_namespace};
use crate::output::Output;
use clap::Args;
use everleaf::{Cursor, Direction, Namespace};
use serde_json::Value;
use std::ops::{Bound, ControlFlow};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: FileArguments,
    /// Only this namespace; by default all
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut out = Output::new();
        self.pool.with_store(|store| {
            self.namespace.iter().try_for_each(|name| expect_namespace(store, name))?;
            let names = self.namespace.as_ref().map_or_else(|| store.namespaces(), |name| vec![name.clone()]);
            names.iter().try_for_each(|name| dump(name, &store.namespace(name)?, &mut out))
        })?;
        out.flush()
    }
}

fn dump(name: &str, namespace: &Namespace, out: &mut Output) -> Result<(), Failure> {
    let mut outcome = Ok(());
    namespace.walk_entries(&mut Cursor::new(Bound::Unbounded, Direction::Forward), |key, value, expiry_ms| {
        let mut object = entry::of_entry(key, value, expiry_ms);
        entry::insert_namespace(&mut object, name);
        outcome = interrupt::check().and_then(|()| out.json(&Value::Object(object)));
        if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    outcome
}
