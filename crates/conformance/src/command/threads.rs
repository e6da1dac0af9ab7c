//! Runs threads under the scheduler for any length of time, and replays violations.
//!
//! ```text
//! cargo xtask crash threads --schedules 100000
//! cargo xtask crash threads --index isle-128/bytes --schedules 100000 --seed 7
//! cargo xtask crash threads --index store/isle-128 --seed 0x5eed --schedules 1
//! cargo xtask crash threads --index isle-128 --omit all
//! ```

use super::{table, watch::watched};
use crate::crash::mutate::why;
use crate::crash::source::Source;
use crate::threads::{Index, Omission, Options, Report, Store, Table, Target, run};
use clap::Args;
use everleaf_pmem::schedule::{IS_BUILT_IN, Slip};
use everleaf_pmem::{Fault, Profile, Site, Tally};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What to run.
#[derive(Args)]
pub struct Arguments {
    /// What to test; all, if not given
    #[arg(long)]
    index: Option<String>,
    /// Number of schedules of each; without --index, of those with large leaves less, as they take longer; 10,000 if not given, and 200,000 with --omit all
    #[arg(long)]
    schedules: Option<u64>,
    /// Seed of the first schedule
    #[arg(long, default_value = "0", value_parser = number)]
    seed: u64,
    /// Seed of the order of steps, where a violation says so
    #[arg(long, value_parser = number)]
    order: Option<u64>,
    /// Calls to leave out, as a violation says: 0.1,2.3 are call 1 of thread 0 and call 3 of thread 2
    #[arg(long, value_delimiter = ',', value_parser = call)]
    without: Vec<(usize, usize)>,
    /// Examine a crash at about every so manieth fence, and at the end; 0: never, but for those that take back what was read; 2 if not given, and 0 with
    /// --omit all
    #[arg(long)]
    crash_every: Option<u64>,
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
    /// The medium is one that waits for a device, as in the domain msync
    #[arg(long)]
    awaits_device: bool,
    /// Leave out a part of a protocol, to see it noticed: validate@FILE:LINE, wait@FILE:LINE or lock@FILE:LINE; without a line, all in the file; or `all`,
    /// which leaves out each in turn, tells which were noticed, and fails if one was not that the source does not say to change nothing
    #[arg(long)]
    omit: Option<String>,
    /// Make each mistake which the source says to change nothing, and tell which of them several threads notice
    #[arg(long, conflicts_with = "omit")]
    equivalent: bool,
    /// Number of schedules that run at the same time
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(1, usize::from))]
    workers: usize,
}

/// A schedule with an omission that has more steps counts as endless. The longest of the others have some ten thousand.
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
            None if self.equivalent => Omit::Equivalent,
            None => Omit::Nothing,
            Some("all") => Omit::Each,
            Some(text) => Omit::One(omission(text)?),
        };
        let mut runs = Runs { arguments: self, omit, names: Vec::new(), rows: Vec::new(), has_run: false, failed: false };
        for number in 0..Index::<u64>::all().len() {
            runs.run(|| Index::<u64>::all().swap_remove(number));
            runs.run(|| Index::<[u8]>::all().swap_remove(number));
        }
        runs.run(|| Store { index: "isle-128" });
        // Runs only if it is asked for. The runs of the indexes find the same defects, except those in what only a store does with them.
        if self.index.is_some() {
            for index in ["lb-128", "lb-2x128", "fp-192", "nv-128", "wb-128", "ever-64"] {
                runs.run(|| Store { index });
            }
        }
        runs.run(|| Table);
        if !runs.has_run {
            return Err(format!("nothing is named {:?}; there are {}", self.index.as_deref().unwrap_or_default(), runs.names.join(", ")));
        }
        if !runs.rows.is_empty() {
            table::print_schedules(&runs.rows);
        }
        Ok(!runs.failed)
    }
}

/// What to leave out.
enum Omit {
    Nothing,
    One(Omission),
    Each,
    /// No part of a protocol, only the mistakes that the source says change nothing.
    Equivalent,
}

struct Runs<'a> {
    arguments: &'a Arguments,
    omit: Omit,
    names: Vec<String>,
    rows: Vec<(String, Report)>,
    has_run: bool,
    failed: bool,
}

/// Number of schedules by default, and the number to notice an omission that the source does not say is harmless.
const SCHEDULES: u64 = 10_000;
const SCHEDULES_TO_NOTICE: u64 = 200_000;

impl Runs<'_> {
    fn run<T: Target>(&mut self, target: impl Fn() -> T) {
        let name = target().name();
        self.names.push(name.clone());
        let is_wanted = self.arguments.index.as_ref().is_none_or(|wanted| *wanted == name);
        if !is_wanted || self.failed && !matches!(self.omit, Omit::Each) {
            return;
        }
        self.has_run = true;
        match &self.omit {
            Omit::Each => self.omit_each(&name, target),
            Omit::Equivalent => self.mistake_each(&name, target),
            Omit::Nothing => self.run_once(&name, target(), None),
            Omit::One(omission) => self.run_once(&name, target(), Some(omission.clone())),
        }
    }

    fn options(&self, schedules: u64, omission: Option<Omission>) -> Options {
        let Arguments { seed, order, without, crash_every, images_max, follow_up_every, store_buffers, durable_cache, awaits_device, workers, .. } =
            self.arguments;
        let omits_each = matches!(self.omit, Omit::Each);
        Options {
            schedules,
            seed: *seed,
            order: *order,
            without: without.clone(),
            shrinks: without.is_empty() && !omits_each,
            crash_every: crash_every.unwrap_or(if omits_each { 0 } else { Options::default().crash_every }),
            images_max: *images_max,
            follow_up_every: *follow_up_every,
            // Many failures that an omission causes are endless loops.
            steps_max: if omission.is_some() && omits_each { STEPS_MAX } else { Options::default().steps_max },
            omission,
            store_buffers: *store_buffers,
            durable_cache: *durable_cache,
            awaits_device: *awaits_device,
            workers: (*workers).min(usize::try_from(schedules).unwrap_or(usize::MAX)),
            ..Options::default()
        }
    }

    /// Runs schedules on `target` and shows their progress.
    fn watch<T: Target>(&self, name: &str, target: T, options: Options) -> Report {
        let (done, schedules) = (AtomicU64::new(0), options.schedules);
        let progress = |_| {
            let done = done.load(Ordering::Relaxed);
            (done as f64 / schedules.max(1) as f64, done)
        };
        let note = |number| {
            done.fetch_max(number, Ordering::Relaxed);
        };
        watched(name, "schedules", progress, || run(target, options, note))
    }

    fn run_once<T: Target>(&mut self, name: &str, target: T, omission: Option<Omission>) {
        let share = if self.arguments.index.is_some() { 1 } else { target.weight() };
        let wanted = self.arguments.schedules.unwrap_or(SCHEDULES);
        // Fewer schedules would find hardly anything.
        let schedules = wanted.div_ceil(share).max(wanted.min(10));
        let report = self.watch(name, target, self.options(schedules, omission));
        if let Some(violation) = &report.violation {
            println!("{violation}");
            self.failed = true;
        }
        self.rows.push((name.to_owned(), report));
    }

    /// Leaves out each part of a protocol that some schedules reach, and reports which omissions were noticed.
    fn omit_each<T: Target>(&mut self, name: &str, target: impl Fn() -> T) {
        // Many schedules panic here, as intended.
        std::panic::set_hook(Box::new(|_| {}));
        let (sites, mut source) = (Arc::default(), Source::of_this_build());
        self.watch(name, target(), Options { sites: Some(Arc::clone(&sites)), ..self.options(SCHEDULES, None) });
        let sites = sites.lock().clone();
        let (mut noticed, mut annotated) = (0, 0);
        for site in &sites {
            let slip = format!("{:?}", site.slip).to_lowercase();
            let why = source.why(&site.file, site.line, MARK, &slip);
            let schedules = self.arguments.schedules.unwrap_or(if why.is_some() { SCHEDULES } else { SCHEDULES_TO_NOTICE });
            let report = self.watch(name, target(), self.options(schedules, Some(site.clone())));
            let spent = format!("in {} schedules, {:.1} s", report.counts.schedules, report.took.as_secs_f64());
            noticed += usize::from(report.violation.is_some() && why.is_none());
            annotated += usize::from(report.violation.is_none() && why.is_some());
            let what = match (&report.violation, why) {
                (Some(violation), None) => format!("noticed {spent}: {}", violation.broken.rule),
                (Some(violation), Some(why)) => format!("MISJUDGED {spent}: {}, although {why}", violation.broken.rule),
                (None, Some(why)) => format!("not needed ({spent}): {why}"),
                (None, None) => format!("NOT NOTICED {spent}"),
            };
            println!("{name}: {site}: {what}");
        }
        println!("{name}: {noticed} of {} omissions noticed, {annotated} annotated as not needed", sites.len());
        self.failed |= noticed + annotated < sites.len();
    }

    /// Makes each mistake that the source says changes nothing, at each place that some schedules reach, and reports which were noticed.
    fn mistake_each<T: Target>(&self, name: &str, target: impl Fn() -> T) {
        let (profile, mut source) = (Arc::<Profile>::default(), Source::of_this_build());
        self.watch(name, target(), Options { profile: Some(Arc::clone(&profile)), ..self.options(SCHEDULES, None) });
        let mistakes = |(site, tally): (Site, Tally)| tally.acts().map(move |act| Fault { site, act }).collect::<Vec<_>>();
        for fault in profile.sites().into_iter().flat_map(mistakes) {
            let Some(why) = why(&mut source, &fault) else { continue };
            let options = self.options(self.arguments.schedules.unwrap_or(SCHEDULES), None);
            let report = self.watch(name, target(), Options { fault: Some(fault), shrinks: false, ..options });
            let what = report.violation.as_ref().map_or_else(|| "not noticed".to_owned(), |violation| format!("noticed, {}", violation.broken.rule));
            println!("{name}: {} {}: {what} in {} schedules; {why}", fault.site, fault.act, report.counts.schedules);
        }
    }
}

/// The marker of a comment that says why a part of a latch's protocol is not needed.
const MARK: &str = "latch-equivalent";
