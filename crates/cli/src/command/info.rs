//! `everleaf info`: what a pool says of itself. It stores nothing and takes no lock, so it also looks at a pool that is in use.

use crate::failure::Failure;
use crate::options::require_pool;
use crate::output::Output;
use crate::text;
use clap::Args;
use everleaf_index::registry;
use everleaf_pmem::{Found, Hardware, Pool, Root};
use serde_json::{Map, Value, json};
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Arguments {
    /// The pool file
    #[arg(long, default_value = "everleaf.pool", value_name = "PATH")]
    pool: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        require_pool(&self.pool)?;
        let pool = Pool::inspect(&self.pool)?;
        let info = pool.info();
        let state = match info.found {
            Found::Clean => "closed",
            Found::Absent | Found::Unclean => "open, or left without being closed",
        };
        let roots = pool.roots()?;
        let mut out = Output::new();
        if self.json {
            let roots: Map<String, Value> = roots.iter().map(|(name, root)| (name.clone(), json!({ "kind": kind(root), "offset": root.off }))).collect();
            out.json(&json!({
                "pool": self.pool, "uuid": format!("{:032x}", info.uuid), "version": info.version, "size": info.size, "slab_size": info.slab_size,
                "features_compatible": info.features_compatible, "features_incompatible": info.features_incompatible, "state": state, "roots": roots,
            }))?;
            return out.flush();
        }
        out.line(format!("pool      {}", self.pool.display()))?;
        out.line(format!("uuid      {:032x}", info.uuid))?;
        out.line(format!(
            "format    version {}, features {:#x} that must be known, {:#x} that may be ignored",
            info.version, info.features_incompatible, info.features_compatible
        ))?;
        out.line(format!("size      {}, in slabs of {}", text::size(info.size), text::size(info.slab_size)))?;
        out.line(format!("state     {state}"))?;
        out.line(format!("roots     {}", roots.len()))?;
        for (name, root) in &roots {
            out.line(format!("  {:16} {} at {:#x}", text::escape(name.as_bytes()), kind(root), root.off))?;
        }
        out.flush()
    }
}

/// What keeps a root: the name of an index, or a number.
fn kind(root: &Root) -> String {
    let strings = registry::<[u8], Hardware>().into_iter().find(|entry| entry.kind() == root.kind).map(|entry| entry.name.to_owned());
    let numbers = || registry::<u64, Hardware>().into_iter().find(|entry| entry.kind() == root.kind).map(|entry| format!("{} of u64", entry.name));
    strings.or_else(numbers).unwrap_or_else(|| format!("kind {:#x}", root.kind))
}
