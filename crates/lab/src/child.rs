//! One case in a process of its own: to see what memory it takes, which in this process others have taken before, and to count its instructions.
//!
//! The child is this program, started with other arguments. It reads one line of JSON, the order, does it, and writes one line, what came of it.

use crate::driver::{self, Context};
use crate::plan::{Case, Measure};
use crate::{Error, System};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;

/// The function from which the driver calls the system, as callgrind names it.
const PLAY: &str = "*::worker::Player::play";

/// How this program is started so that it calls [`serve`].
#[derive(Clone, Debug)]
pub struct Program {
    /// The program.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// What a child is to do.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    system: String,
    case: Case,
    seed: u64,
}

/// What an instance takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Keys in it.
    pub keys: u64,
    /// Private memory that came to the process with it.
    pub private_bytes: Option<u64>,
    /// Persistent memory in use.
    pub pool_bytes: Option<u64>,
    /// Leaves.
    pub leaves: Option<u64>,
}

impl Program {
    /// Lets a child do the case; what it takes.
    pub(crate) fn measure(&self, system: &str, case: &Case, seed: u64) -> Result<Used, Error> {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments);
        let (output, _) = self.order(command, system, case, seed)?;
        serde_json::from_str(output.trim()).map_err(|error| Error::system(system, format!("a process for it said what was not understood: {error}")))
    }

    /// Lets a child do the case under callgrind; its instructions in [`PLAY`].
    pub(crate) fn instructions(&self, system: &str, case: &Case, seed: u64) -> Result<u64, Error> {
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", &format!("--toggle-collect={PLAY}")]).arg(&self.path).args(&self.arguments);
        let (_, messages) = self.order(command, system, case, seed)?;
        let collected = messages.lines().find_map(|line| line.split_once("Collected : ")?.1.split(' ').next()?.parse().ok());
        collected.ok_or_else(|| Error::system(system, "valgrind has not said how many instructions it has seen"))
    }

    fn order(&self, mut command: Command, system: &str, case: &Case, seed: u64) -> Result<(String, String), Error> {
        let failed = |source| Error::Io { action: "run valgrind or this program once more; instructions need valgrind (Debian: valgrind)".into(), source };
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        let order = Order { system: system.into(), case: case.clone(), seed };
        let text = serde_json::to_string(&order).map_err(|error| failed(error.into()))?;
        if let Some(mut input) = child.stdin.take() {
            // One that has ended says why.
            let _ = writeln!(input, "{text}");
        }
        let output = child.wait_with_output().map_err(failed)?;
        let [text, messages] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        if output.status.success() {
            Ok((text, messages))
        } else {
            Err(Error::system(system, format!("a process for it ended with {}: {messages}", output.status)))
        }
    }
}

/// What a child does: reads its order, does it, answers.
///
/// # Errors
/// An order that makes no sense; whatever [`driver::run`] fails by.
pub fn serve(systems: &mut Vec<Box<dyn System>>, input: impl Read, output: &mut dyn Write) -> Result<(), Error> {
    let failed = |source| Error::Io { action: "read the order of a measurement from standard input".into(), source };
    let mut line = String::new();
    std::io::BufReader::new(input).read_line(&mut line).map_err(failed)?;
    let Order { system, mut case, seed } = serde_json::from_str(&line).map_err(|error| failed(error.into()))?;
    case.parameters.measure = Measure::Time;
    let (system, stop) = (crate::find(systems, &system)?, AtomicBool::new(false));
    let used = driver::occupy(system, &case, Context { seed, stop: &stop, child: None })?;
    let text = serde_json::to_string(&used).map_err(|error| failed(error.into()))?;
    writeln!(output, "{text}").map_err(|source| Error::Io { action: "answer a measurement".into(), source })
}
