//! Runs threads under the scheduler for as long as one likes, and replays what they find.
//!
//! ```text
//! cargo xtask crash threads --schedules 100000
//! cargo xtask crash threads --index isle-128/bytes --schedules 100000 --seed 7
//! cargo xtask crash threads --index store/isle-128 --seed 0x5eed --schedules 1
//! cargo xtask crash threads --index isle-128 --omit all
//! ```

use crate::threads::{Index, Omission, Options, Report, Store, Table, Target, run};
use clap::Args;
use everleaf_pmem::schedule::{IS_BUILT_IN, Slip};
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What to run.
#[derive(Args)]
pub struct Arguments {
    /// What to test; all, if not given
    #[arg(long)]
    index: Option<String>,
    /// Number of schedules of each; without --index, of those with large leaves less, as they take longer
    #[arg(long, default_value_t = 10_000)]
    schedules: u64,
    /// Seed of the first schedule
    #[arg(long, default_value = "0", value_parser = number)]
    seed: u64,
    /// Seed of the order of steps, where a violation says so
    #[arg(long, value_parser = number)]
    order: Option<u64>,
    /// Calls to leave out, as a violation says: 0.1,2.3 are call 1 of thread 0 and call 3 of thread 2
    #[arg(long, value_delimiter = ',', value_parser = call)]
    without: Vec<(usize, usize)>,
    /// Examine a crash at about every so manieth fence, and at the end; 0: never
    #[arg(long, default_value_t = Options::default().crash_every)]
    crash_every: u64,
    /// Largest number of images of a crash point that are all shown
    #[arg(long, default_value_t = Options::default().images_max)]
    images_max: u64,
    /// Use every n-th recovered image on
    #[arg(long, default_value_t = Options::default().follow_up_every)]
    follow_up_every: u64,
    /// Hold stores back in store buffers in all schedules, or in none; in half of them, if not given
    #[arg(long)]
    store_buffers: Option<bool>,
    /// The cache is in the persistence domain, and flushes do nothing
    #[arg(long)]
    durable_cache: bool,
    /// Leave out a part of a protocol, to see it noticed: validate@FILE:LINE, wait@FILE:LINE or lock@FILE:LINE; without a line, all in the file; or `all`,
    /// which leaves out each in turn, tells which were noticed, and fails if one was not
    #[arg(long)]
    omit: Option<String>,
    /// Number of schedules that run at the same time
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(1, usize::from))]
    workers: usize,
}

/// A schedule in which something is left out, and that has more steps, does not end. The longest of others have some ten thousand.
const STEPS_MAX: u64 = 1 << 17;

fn number(text: &str) -> Result<u64, std::num::ParseIntError> {
    text.strip_prefix("0x").map_or_else(|| text.parse(), |digits| u64::from_str_radix(digits, 16))
}

fn call(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('.').and_then(|(thread, call)| Some((thread.parse().ok()?, call.parse().ok()?)));
    numbers.ok_or_else(|| "a call is written THREAD.NUMBER".to_owned())
}

fn omission(text: &str) -> Result<Omission, String> {
    let (slip, place) = text.split_once('@').ok_or("what is left out is written validate@FILE:LINE, wait@FILE:LINE or lock@FILE:LINE")?;
    let slip = match slip {
        "validate" => Slip::Validate,
        "wait" => Slip::Wait,
        "lock" => Slip::Lock,
        other => return Err(format!("{other:?} cannot be left out; validate, wait and lock can")),
    };
    let (file, line) = place.split_once(':').unwrap_or((place, "0"));
    Ok(Omission { slip, file: file.to_owned(), line: line.parse().map_err(|error| format!("{line:?}: {error}"))? })
}

impl Arguments {
    pub(super) fn run(&self) -> Result<bool, String> {
        if !IS_BUILT_IN {
            return Err("threads are scheduled in a build with debug assertions: `cargo xtask crash threads` makes one".to_owned());
        }
        let omit = match self.omit.as_deref() {
            None => Omit::Nothing,
            Some("all") => Omit::Each,
            Some(text) => Omit::One(omission(text)?),
        };
        let mut runs = Runs { arguments: self, omit, names: Vec::new(), rows: Vec::new(), failed: false };
        for number in 0..Index::<u64>::all().len() {
            runs.run(|| Index::<u64>::all().swap_remove(number));
            runs.run(|| Index::<[u8]>::all().swap_remove(number));
        }
        runs.run(|| Store { index: "isle-128" });
        runs.run(|| Table);
        if runs.rows.is_empty() {
            return Err(format!("nothing is named {:?}; there are {}", self.index.as_deref().unwrap_or_default(), runs.names.join(", ")));
        }
        for row in &runs.rows {
            println!("{row}");
        }
        Ok(!runs.failed)
    }
}

/// What to leave out.
enum Omit {
    Nothing,
    One(Omission),
    Each,
}

struct Runs<'a> {
    arguments: &'a Arguments,
    omit: Omit,
    names: Vec<String>,
    rows: Vec<String>,
    failed: bool,
}

impl Runs<'_> {
    fn run<T: Target>(&mut self, target: impl Fn() -> T) {
        let name = target().name();
        self.names.push(name.clone());
        let is_wanted = self.arguments.index.as_ref().is_none_or(|wanted| *wanted == name);
        if !is_wanted || self.failed && !matches!(self.omit, Omit::Each) {
            return;
        }
        match &self.omit {
            Omit::Each => self.omit_each(&name, target),
            Omit::Nothing => self.run_once(&name, target(), None),
            Omit::One(omission) => self.run_once(&name, target(), Some(omission.clone())),
        }
    }

    fn options(&self, schedules: u64, omission: Option<Omission>) -> Options {
        let Arguments { seed, order, without, crash_every, images_max, follow_up_every, store_buffers, durable_cache, workers, .. } = self.arguments;
        Options {
            schedules,
            seed: *seed,
            order: *order,
            without: without.clone(),
            shrinks: without.is_empty() && !matches!(self.omit, Omit::Each),
            crash_every: *crash_every,
            images_max: *images_max,
            follow_up_every: *follow_up_every,
            omission,
            store_buffers: *store_buffers,
            durable_cache: *durable_cache,
            workers: (*workers).min(usize::try_from(schedules).unwrap_or(usize::MAX)),
            ..Options::default()
        }
    }

    fn run_once<T: Target>(&mut self, name: &str, target: T, omission: Option<Omission>) {
        let share = if self.arguments.index.is_some() { 1 } else { target.weight() };
        let schedules = self.arguments.schedules.div_ceil(share);
        let options = self.options(schedules, omission);
        let begun = Instant::now();
        let shown = Mutex::new(begun);
        let report = run(target, options, |done| {
            let mut shown = shown.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let pause = if std::io::stderr().is_terminal() { Duration::from_millis(500) } else { Duration::from_secs(30) };
            if shown.elapsed() >= pause {
                *shown = Instant::now();
                let rate = done as f64 / begun.elapsed().as_secs_f64();
                let line = format!("{name}: {done} of {schedules} schedules, {:.0} %, {rate:.0} a second", done as f64 / schedules as f64 * 100.0);
                // A terminal shows one line that grows; a log, a line now and then.
                let end = if std::io::stderr().is_terminal() { "\r" } else { "\n" };
                let _ = write!(std::io::stderr(), "{line}{end}");
            }
        });
        if self.rows.is_empty() {
            let head = ["schedules", "operations", "steps", "switches", "images", "checked", "dirty", "suspicious", "violations", "seconds", "a minute"];
            let head: String = head.iter().map(|word| format!(" {word:>11}")).collect();
            self.rows.push(format!("{:15}{head}", "index"));
        }
        self.rows.push(row(name, &report));
        if let Some(violation) = report.violation {
            println!("{violation}");
            self.failed = true;
        }
    }

    /// Leaves out each part of a protocol that a few schedules come by, and tells what was noticed.
    fn omit_each<T: Target>(&mut self, name: &str, target: impl Fn() -> T) {
        // Much goes wrong here, and is meant to.
        std::panic::set_hook(Box::new(|_| {}));
        let sites = Arc::default();
        run(target(), Options { sites: Some(Arc::clone(&sites)), ..self.options(self.arguments.schedules.min(2000), None) }, |_| {});
        let sites = sites.lock().clone();
        let mut noticed = 0;
        for site in &sites {
            // Much of what goes wrong here goes on for ever.
            let options = Options { steps_max: STEPS_MAX, ..self.options(self.arguments.schedules, Some(site.clone())) };
            let report = run(target(), options, |_| {});
            let what = match &report.violation {
                Some(violation) => format!("noticed in schedule {}, {:.1} s: {}", report.counts.schedules, report.took.as_secs_f64(), violation.broken.rule),
                None => format!("not noticed in {} schedules, {:.1} s", report.counts.schedules, report.took.as_secs_f64()),
            };
            noticed += usize::from(report.violation.is_some());
            println!("{name}: {site}: {what}");
        }
        self.rows.push(format!("{name}: {noticed} of {} omissions noticed", sites.len()));
        self.failed |= noticed < sites.len();
    }
}

fn row(name: &str, report: &Report) -> String {
    let counts = report.counts;
    let seconds = report.took.as_secs_f64();
    let whole = [counts.schedules, counts.operations, counts.steps, counts.switches, counts.images, counts.checked, counts.dirty_reads, counts.suspicions];
    let whole: String = whole.iter().chain([&u64::from(report.violation.is_some())]).map(|count| format!(" {count:>11}")).collect();
    format!("{name:15}{whole} {seconds:>11.1} {:>11.0}", counts.schedules as f64 / seconds * 60.0)
}
