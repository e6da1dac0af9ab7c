//! `everleaf dump`: everything as NDJSON, one object per key: `{"namespace":"0","key":"k","value":"v"}`. Bytes that are not UTF-8 are in Base64, in a field
//! `key_base64` or `value_base64` instead. `everleaf load --format ndjson` reads it back.

use crate::failure::Failure;
use crate::options::{PoolArguments, expect_namespace};
use crate::output::Output;
use crate::text;
use clap::Args;
use everleaf::{Direction, Namespace};
use serde_json::{Map, Value};
use std::ops::{Bound, ControlFlow};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: PoolArguments,
    /// Only this namespace; otherwise all
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
    namespace.scan(Bound::Unbounded, Direction::Forward, |key, value| {
        let mut object = Map::new();
        object.insert("namespace".into(), name.into());
        text::insert_bytes(&mut object, "key", key);
        text::insert_bytes(&mut object, "value", value);
        outcome = out.json(&Value::Object(object));
        if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    outcome
}
