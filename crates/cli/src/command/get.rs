//! `everleaf get`: the value of a key, byte for byte.

use crate::entry;
use crate::failure::Failure;
use crate::options::{FileArguments, NamespaceArgument};
use crate::output::Output;
use clap::Args;
use everleaf::Entry;
use serde_json::Value;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: FileArguments,
    #[command(flatten)]
    namespace: NamespaceArgument,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The key, any bytes
    key: OsString,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let entry = self.pool.with_store(|store| Ok(self.namespace.of(store)?.entry(self.key.as_bytes())?))?;
        let Some(Entry { value, expiry_ms }) = entry else { return Err(Failure::No) };
        let mut out = Output::new();
        if self.json {
            out.json(&Value::Object(entry::of_entry(self.key.as_bytes(), &value, expiry_ms)))?;
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
