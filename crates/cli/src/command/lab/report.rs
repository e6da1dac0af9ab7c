//! `everleaf lab report`: the figures and the page of a result file, complete or cut short.

use crate::failure::Failure;
use crate::output::Output;
use clap::Args;
use everleaf_lab::result::Results;
use everleaf_lab::{claims, report};
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Lines of JSON written by a run
    file: PathBuf,
    /// Directory for the report; created if it does not exist
    #[arg(long, value_name = "DIRECTORY")]
    out: PathBuf,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let file = File::open(&self.file).map_err(|source| Failure::io("open", &self.file, source))?;
        let mut results = Results::read(BufReader::new(file))?;
        claims::judge_again(&mut results)?;
        let written = report::write(&results, &self.out)?;
        let mut out = Output::new();
        out.line(format!("{}: {} figures", written.page.display(), written.figures))?;
        out.flush()
    }
}
