//! `everleaf completion`: a script that teaches a shell the commands and options.

use crate::failure::Failure;
use crate::output::Output;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

#[derive(Args)]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut crate::Arguments::command(), "everleaf", &mut script);
        let mut out = Output::new();
        out.bytes(&script)?;
        out.flush()
    }
}
