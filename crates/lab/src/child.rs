//! Runs one case in a separate process: to measure its memory apart from what this process already uses, and to count its instructions.
//!
//! The child is this program, started with other arguments. It reads one line of JSON, the order, executes it, and writes one line, the result. If its input
//! ends earlier, it stops without an answer, so no child keeps running after its parent.

use crate::driver::{self, Context};
use crate::plan::{Case, Measure};
use crate::result::metric;
use crate::{Error, System};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// The function from which the driver calls the system, as callgrind names it.
const PLAY: &str = "*::worker::Player::play";
/// Reported metrics, each the sum of these events of callgrind.
const EVENTS: [(&str, &[&str]); 3] = [(metric::INSTRUCTIONS, &["Ir"]), (metric::DATA_READS, &["Dr"]), (metric::LAST_LEVEL_MISSES, &["DLmr", "DLmw"])];
/// Callgrind's message if it does not know the machine's caches, and simulates others.
const UNKNOWN_CACHES: &str = "Cannot auto-detect cache config";
/// How often a parent that waits for a child checks whether to stop.
const PAUSE: Duration = Duration::from_millis(20);
/// Numbers of the signals by which a user stops the lab: SIGINT, SIGTERM.
const STOPPING: [i32; 2] = [2, 15];

/// How to start this program so that it calls [`serve`].
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

/// The memory use of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Keys in it.
    pub keys: u64,
    /// Private memory that the process gained with it.
    pub private_bytes: Option<u64>,
    /// Persistent memory in use.
    pub pool_bytes: Option<u64>,
    /// Leaves.
    pub leaves: Option<u64>,
}

impl Program {
    /// Runs the case in a child. Returns its memory use, or `None` if it was stopped.
    pub(crate) fn measure(&self, system: &str, case: &Case, context: Context<'_>) -> Result<Option<Used>, Error> {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments);
        let Some((output, _)) = self.order(command, system, case, context)? else { return Ok(None) };
        let used = serde_json::from_str(output.trim());
        used.map(Some).map_err(|error| Error::system(system, format!("a process for it said what was not understood: {error}")))
    }

    /// Runs the case in a child under callgrind. Returns its counts in [`PLAY`], by metric, or `None` if it was stopped.
    pub(crate) fn instructions(&self, system: &str, case: &Case, context: Context<'_>) -> Result<Option<BTreeMap<&'static str, u64>>, Error> {
        let mut command = Command::new("valgrind");
        let options = ["--tool=callgrind", "--cache-sim=yes", "--callgrind-out-file=/dev/null", &format!("--toggle-collect={PLAY}")];
        command.args(options).arg(&self.path).args(&self.arguments);
        let Some((_, messages)) = self.order(command, system, case, context)? else { return Ok(None) };
        let counted = collected(&messages).filter(|counted| counted.contains_key(metric::INSTRUCTIONS));
        counted.map(Some).ok_or_else(|| Error::system(system, "valgrind has not said how many instructions it has seen"))
    }

    /// Both outputs of a child; `None` if it was stopped by a signal that stops the lab, and then the lab is stopped, too.
    fn order(&self, mut command: Command, system: &str, case: &Case, context: Context<'_>) -> Result<Option<(String, String)>, Error> {
        let failed = |source| Error::Io { action: "run valgrind or this program once more; instructions need valgrind (Debian: valgrind)".into(), source };
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        let order = Order { system: system.into(), case: case.clone(), seed: context.seed };
        let text = serde_json::to_string(&order).map_err(|error| failed(error.into()))?;
        let input = child.stdin.take();
        let output = thread::scope(|scope| {
            let (done, is_done) = mpsc::channel::<()>();
            scope.spawn(move || {
                let mut input = input;
                // A child that has ended reports why.
                let _ = input.as_mut().map(|input| writeln!(input, "{text}"));
                // Its input ends when this stops waiting.
                while !context.stopped() && is_done.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {}
            });
            let output = child.wait_with_output();
            drop(done);
            output
        });
        let output = output.map_err(failed)?;
        let [text, messages] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        // A signal from the keyboard also reaches the child, and ends it if its handler is not yet set; this process may learn of it later.
        let is_signalled = output.status.signal().is_some_and(|signal| STOPPING.contains(&signal));
        if is_signalled || output.status.success() && text.is_empty() {
            context.stop.store(true, Ordering::Relaxed);
        }
        if context.stopped() {
            Ok(None)
        } else if output.status.success() {
            Ok(Some((text, messages)))
        } else {
            Err(Error::system(system, format!("a process for it ended with {}: {messages}", output.status)))
        }
    }
}

/// The totals that callgrind reports, by metric, for the events that it has counted; `None` if it reports none.
fn collected(messages: &str) -> Option<BTreeMap<&'static str, u64>> {
    let words = |head: &str| {
        let line = messages.lines().filter_map(|line| line.split_once(':')).find(|(found, _)| found.trim_end().ends_with(head));
        line.map(|(_, words)| words.split_whitespace())
    };
    // Zeroes at the end are omitted.
    let counts = words("Collected")?.map(|count| count.parse().ok()).chain(std::iter::repeat(Some(0)));
    let events: BTreeMap<&str, Option<u64>> = words("Events")?.zip(counts).collect();
    let is_known = |name: &str| name != metric::LAST_LEVEL_MISSES || !messages.contains(UNKNOWN_CACHES);
    let sum = |names: &[&str]| names.iter().map(|name| *events.get(name)?).sum::<Option<u64>>();
    Some(EVENTS.into_iter().filter(|(name, _)| is_known(name)).filter_map(|(name, of)| Some((name, sum(of)?))).collect())
}

/// The child's part: reads its order, executes it, and answers, unless `stop` is set meanwhile, or the parent stops waiting.
///
/// # Errors
/// An order that makes no sense; any failure of the case.
pub fn serve(systems: &mut Vec<Box<dyn System>>, input: impl Read + Send + 'static, output: &mut dyn Write, stop: &Arc<AtomicBool>) -> Result<(), Error> {
    let failed = |source| Error::Io { action: "read the order of a measurement from standard input".into(), source };
    let (mut line, mut input) = (String::new(), BufReader::new(input));
    input.read_line(&mut line).map_err(failed)?;
    let Order { system, mut case, seed } = serde_json::from_str(&line).map_err(|error| failed(error.into()))?;
    case.parameters.measure = Measure::Time;
    let (system, ended) = (crate::find(systems, &system)?, stop.clone());
    // The thread ends with the process.
    thread::spawn(move || {
        let _ = std::io::copy(&mut input, &mut std::io::sink());
        ended.store(true, Ordering::Relaxed);
    });
    let Some(used) = driver::occupy(system, &case, Context { seed, stop, child: None })? else { return Ok(()) };
    let text = serde_json::to_string(&used).map_err(|error| failed(error.into()))?;
    writeln!(output, "{text}").map_err(|source| Error::Io { action: "answer a measurement".into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Parameters;
    use crate::workload;

    fn case(measure: Measure) -> Case {
        let parameters = Parameters { keys: 1000, domain: "page-cache".into(), measure, ..Parameters::default() };
        Case { workload: workload::find("load").unwrap(), parameters }
    }

    /// The result of a child that is this script, and whether it stopped the lab.
    fn measure(script: &str, stopped: bool) -> (Result<Option<Used>, Error>, bool) {
        let program = Program { path: "/bin/sh".into(), arguments: vec!["-c".into(), script.into()] };
        let stop = AtomicBool::new(stopped);
        let used = program.measure("lb", &case(Measure::Space), Context { seed: 1, stop: &stop, child: None });
        (used, stop.into_inner())
    }

    /// The first number was taken, whatever event it belonged to.
    #[test]
    fn events_are_told_apart_by_their_names() {
        let counted = |events: &str, counts: &str| {
            let said = format!("==7== Command: a: b\n==7== \n==7== Events    : {events}\n==7== Collected : {counts}\n==7== \n==7== I   refs:      1,000\n");
            (collected(&said), collected(&format!("==7== Warning: {UNKNOWN_CACHES}, using defaults.\n{said}")))
        };
        let all = [(metric::INSTRUCTIONS, 1000), (metric::DATA_READS, 300), (metric::LAST_LEVEL_MISSES, 10)];
        let (known, unknown) = (BTreeMap::from(all), BTreeMap::from([all[0], all[1]]));
        assert_eq!(counted("Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw", "1000 300 200 8 40 20 7 3 7"), (Some(known.clone()), Some(unknown.clone())));
        assert_eq!(counted("Dr DLmw DLmr Ir", "300 7 3 1000"), (Some(known), Some(unknown)));
        let none = BTreeMap::from([(metric::INSTRUCTIONS, 1000), (metric::DATA_READS, 300), (metric::LAST_LEVEL_MISSES, 0)]);
        assert_eq!(counted("Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw", "1000 300 200 8").0, Some(none), "zeroes at the end are not printed");
        assert_eq!(counted("Ir", "1000").0, Some(BTreeMap::from([all[0]])), "caches were not simulated");
        assert_eq!(counted("Ir Dr", "many 300").0, Some(BTreeMap::from([all[1]])));
        assert_eq!(collected("==7== Events    : Ir\n"), None);
    }

    #[test]
    fn a_child_that_was_signalled_stops_the_lab_and_one_that_failed_does_not() {
        assert!(matches!(measure("kill -INT $$", false), (Ok(None), true)));
        assert!(matches!(measure("kill -KILL $$", false), (Err(Error::System { .. }), false)));
        assert!(matches!(measure("exit 3", false), (Err(Error::System { .. }), false)));
        let answer = r#"read order; echo '{"keys":7,"private_bytes":null,"pool_bytes":null,"leaves":null}'"#;
        assert!(matches!(measure(answer, false), (Ok(Some(Used { keys: 7, .. })), false)));
    }

    /// This child would wait forever for the end of its input.
    #[test]
    fn a_lab_that_was_stopped_stops_its_child() {
        assert!(matches!(measure("cat > /dev/null", true), (Ok(None), true)));
    }

    #[test]
    fn a_child_that_was_stopped_does_not_answer() {
        let order = Order { system: "lb".into(), case: case(Measure::Space), seed: 1 };
        let text = format!("{}\n", serde_json::to_string(&order).unwrap());
        let mut answer = Vec::new();
        serve(&mut crate::systems(), std::io::Cursor::new(text.clone()), &mut answer, &Arc::new(AtomicBool::new(true))).unwrap();
        assert!(answer.is_empty());
        // Its input stays open until it ends.
        let (kept, end) = std::io::pipe().map(|(end, kept)| (kept, end)).unwrap();
        let input = std::io::Cursor::new(text).chain(end);
        serve(&mut crate::systems(), input, &mut answer, &Arc::default()).unwrap();
        drop(kept);
        assert!(serde_json::from_slice::<Used>(&answer).is_ok_and(|used| used.keys == 1000));
    }
}
