//! `everleaf info`: what a pool says about itself. It stores nothing and keeps no lock, so it also works on a pool in use.

use crate::failure::Failure;
use crate::output::Output;
use crate::text;
use clap::Args;
use everleaf::STORE_ROOT;
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
        let pool = Pool::inspect(&self.pool)?;
        let info = pool.info();
        let state = match info.found {
            Found::InUse { owner: Some(pid) } => format!("in use by process {pid}"),
            Found::InUse { owner: None } => "in use".to_owned(),
            Found::Clean => "closed".to_owned(),
            Found::Absent | Found::Unclean => "left unclosed".to_owned(),
        };
        let roots = pool.roots()?;
        let mut out = Output::new();
        if self.json {
            let roots: Map<String, Value> = roots.iter().map(|(name, root)| (name.clone(), json!({ "kind": kind(name, root), "offset": root.off }))).collect();
            let flaws: Vec<String> = pool.flaws().iter().map(ToString::to_string).collect();
            let domain = pool.left_in().map(|domain| domain.to_string());
            let said = json!({
                "flaws": flaws, "domain": domain,
                "uuid": format!("{:032x}", info.uuid), "version": info.version, "size": info.size, "slab_size": info.slab_size,
                "features_compatible": info.features_compatible, "features_incompatible": info.features_incompatible, "state": state, "roots": roots,
            });
            out.json(&text::with_pool(said, &self.pool))?;
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
        if let Some(domain) = pool.left_in() {
            out.line(format!("domain    {domain}, in which it was opened last"))?;
        }
        for flaw in pool.flaws() {
            out.line(format!("flaw      {flaw}"))?;
        }
        out.line(format!("roots     {}", roots.len()))?;
        for (name, root) in &roots {
            out.line(format!("  {:16} {} at {:#x}", text::escape(name.as_bytes()), kind(name, root), root.off))?;
        }
        out.flush()
    }
}

/// The owner of a root: the store, an index by its name, or a number.
fn kind(name: &str, root: &Root) -> String {
    if name == STORE_ROOT {
        return "store".to_owned();
    }
    let strings = registry::<[u8], Hardware>().into_iter().find(|entry| entry.kind() == root.kind).map(|entry| entry.name.to_owned());
    let numbers = || registry::<u64, Hardware>().into_iter().find(|entry| entry.kind() == root.kind).map(|entry| format!("{} of u64", entry.name));
    strings.or_else(numbers).unwrap_or_else(|| format!("kind {:#x}", root.kind))
}
