//! `everleaf get`: the value of a key, byte by byte.

use crate::failure::Failure;
use crate::options::{NamespaceArgument, PoolArguments};
use crate::output::Output;
use crate::text;
use clap::Args;
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: PoolArguments,
    #[command(flatten)]
    namespace: NamespaceArgument,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The key, of any bytes
    key: OsString,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let value = self.pool.with_store(|store| Ok(store.namespace(&self.namespace.namespace)?.get(self.key.as_bytes())?))?;
        let Some(value) = value else { return Err(Failure::No) };
        let mut out = Output::new();
        if self.json {
            let mut object = Map::new();
            text::insert_bytes(&mut object, "key", self.key.as_bytes());
            text::insert_bytes(&mut object, "value", &value);
            out.json(&Value::Object(object))?;
        } else {
            out.bytes(&value)?;
            // A program gets the bytes and nothing else.
            if std::io::stdout().is_terminal() {
                out.line("")?;
            }
        }
        out.flush()
    }
}
