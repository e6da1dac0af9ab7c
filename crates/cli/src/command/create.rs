//! `everleaf create`: an empty pool.

use crate::failure::Failure;
use crate::options::PoolArguments;
use crate::output::Output;
use crate::text;
use clap::Args;
use everleaf::{Options, Store};
use everleaf_pmem::Pool;
use serde_json::json;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: PoolArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        // An existing pool is an error here, where every other command would open it.
        let store = Store::on(Pool::create(&self.pool.file.pool, &self.pool.store_options().pool())?, &Options::default())?;
        let info = store.pool().info();
        let uuid = format!("{:032x}", info.uuid);
        store.close().map_err(everleaf::Error::from)?;
        let mut out = Output::new();
        match self.json {
            true => {
                let said = json!({ "uuid": uuid, "size": info.size, "domain": info.domain.map(|domain| domain.name()) });
                out.json(&text::with_pool(said, &self.pool.file.pool))?;
            }
            false => out.line(format!("created {}, {}, UUID {uuid}", self.pool.file.pool.display(), text::size(info.size)))?,
        }
        out.flush()
    }
}
