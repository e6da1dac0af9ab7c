//! Systematic mutation: makes every mistake, one at a time, at each place that stores, flushes or fences, and counts how many the crash runs find.
//!
//! The places are those that the runs reach (see [`Profile`]), so only the world needs to be registered. A mistake that no run finds is a gap in the checker,
//! to be closed, or an unnecessary flush, to be deleted. Where a mistake changes nothing, the source says so:
//!
//! ```text
//! // persist-equivalent: why any mistake at the next line changes nothing
//! // persist-equivalent(flush drop, fence drop): why these do not
//! ```
//!
//! Such a comment stands at the end of the line, or directly above it. If a run does find its mistakes, the comment is wrong, and counts as a survivor.

use super::source::Source;
use super::{Options, Report, Suite};
use everleaf_pmem::{CrashOptions, Fault, Profile, Site, Tally};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A mistake, and what became of it.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// The mistake.
    pub fault: Fault,
    /// The worlds that reach it.
    pub worlds: Vec<String>,
    /// What became of it.
    pub outcome: Outcome,
    /// Images examined until then, in all runs.
    pub images: u64,
    /// How long that took.
    pub took: Duration,
}

/// What became of a mistake.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// A run in this world broke this rule.
    Killed {
        /// The world.
        world: String,
        /// The rule.
        rule: &'static str,
    },
    /// No run found it, and the source says why.
    Equivalent(String),
    /// A run found it, although the source says that nothing can.
    Misjudged(String),
    /// No run found it.
    Survived,
}

/// The mistakes of a run.
#[derive(Clone, Debug, Default)]
pub struct Score {
    /// All mistakes.
    pub mutants: Vec<Mutant>,
    /// How long it took.
    pub took: Duration,
}

impl Score {
    fn count(&self, wanted: impl Fn(&Outcome) -> bool) -> usize {
        self.mutants.iter().filter(|mutant| wanted(&mutant.outcome)).count()
    }

    /// Whether every mistake was found, or cannot be.
    pub fn is_full(&self) -> bool {
        !self.mutants.is_empty() && self.count(|outcome| matches!(outcome, Outcome::Survived | Outcome::Misjudged(_))) == 0
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let killed = self.count(|outcome| matches!(outcome, Outcome::Killed { .. }));
        let equivalent = self.count(|outcome| matches!(outcome, Outcome::Equivalent(_)));
        let total = self.mutants.len();
        let share = |count: usize| 100.0 * count as f64 / total.max(1) as f64;
        write!(
            f,
            "{total} mutants: {killed} killed ({:.1} %), {equivalent} annotated as equivalent ({:.1} %), {} survived; {:.0} s",
            share(killed),
            share(equivalent),
            total - killed - equivalent,
            self.took.as_secs_f64()
        )
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { site, act } = self.fault;
        let place = site.place.to_string();
        write!(f, "{place:<55} {:<8} {act:<9} ", site.verb)?;
        let after = format!("{:>8} images {:>7.2} s", self.images, self.took.as_secs_f64());
        match &self.outcome {
            Outcome::Killed { world, rule } => write!(f, "killed     {after}  {world}: {rule}"),
            Outcome::Equivalent(why) => write!(f, "equivalent {after}  {why}"),
            Outcome::Misjudged(why) => write!(f, "MISJUDGED  {after}  killed, although {why}"),
            Outcome::Survived => write!(f, "SURVIVED   {after}"),
        }
    }
}

/// Number of stages.
pub const STAGES: usize = 5;

/// How often the operations of second lives are drawn anew. Two draws in three find seed e9.
const DRAWS: u64 = 8;

/// The runs against a mistake, from small to large. The first violation ends them; it is not reported. From a named start: everything that two operations
/// leave, then the same repeatedly with a second life of every image, with new random operations each time.
pub(super) fn stages(options: &Options) -> Vec<(bool, Options)> {
    if options.start.is_some() {
        let options = Options { operations: 2, closes: true, shrinks: false, ..options.clone() };
        let drawn = (1..=DRAWS).map(|draw| Options { second_life_every: 1, seed: options.seed + draw, ..options.clone() });
        return std::iter::once(options.clone()).chain(drawn).map(|options| (false, options)).collect();
    }
    let with = |operations, random, second_life_every| {
        let options = options.clone();
        Options { operations, random, second_life_every, hands_over: operations > 0, closes: true, sequences: 2, shrinks: false, ..options }
    };
    let stages: [_; STAGES] = [(false, with(1, 0, 16)), (true, with(0, 60, 32)), (false, with(2, 0, 4)), (true, with(0, 150, 8)), (true, with(0, 600, 8))];
    stages.into()
}

pub(super) fn run(suite: &dyn Suite, random: bool, options: &Options) -> Report {
    if random { suite.sampled(options) } else { suite.every(options) }
}

/// Makes every mistake that `chosen` accepts, at every place that the first `stages_max` stages of `suites` reach, and runs the stages against it. Tells
/// `progress` each result: how many are done, and of how many.
pub fn mutants(
    suites: &[Box<dyn Suite>],
    options: &Options,
    stages_max: usize,
    chosen: &dyn Fn(&Fault) -> bool,
    progress: &mut dyn FnMut(usize, usize, &Mutant),
) -> Score {
    let begun = Instant::now();
    let profiles: Vec<_> = suites.iter().map(|suite| profile(&**suite, options, stages_max)).collect();
    let mut sites: BTreeMap<Site, Vec<(usize, Tally)>> = BTreeMap::new();
    for (number, profile) in profiles.iter().enumerate() {
        for (site, tally) in profile.sites() {
            sites.entry(site).or_default().push((number, tally));
        }
    }
    let mut faults: BTreeMap<Fault, Vec<usize>> = BTreeMap::new();
    for (site, worlds) in &sites {
        for (number, tally) in worlds {
            for act in tally.acts() {
                let fault = Fault { site: *site, act };
                // The worlds' own code is not under examination.
                if chosen(&fault) && !site.place.file().contains("conformance/") {
                    faults.entry(fault).or_default().push(*number);
                }
            }
        }
    }
    let mut source = Source::of_this_build();
    let mut score = Score::default();
    let total = faults.len();
    for (fault, worlds) in faults {
        let worlds: Vec<&dyn Suite> = worlds.into_iter().map(|number| &*suites[number]).collect();
        let mutant = try_out(fault, &worlds, options, stages_max, why(&mut source, &fault));
        score.mutants.push(mutant);
        progress(score.mutants.len(), total, &score.mutants[score.mutants.len() - 1]);
    }
    score.took = begun.elapsed();
    score
}

/// The places that a world reaches without a mistake in the first `stages_max` stages.
pub fn profile(suite: &dyn Suite, options: &Options, stages_max: usize) -> Arc<Profile> {
    let profile = Arc::new(Profile::default());
    for (random, stage) in stages(options).into_iter().take(stages_max) {
        let life = CrashOptions { profile: Some(Arc::clone(&profile)), ..stage.life.clone() };
        let report = run(suite, random, &Options { life, ..stage });
        // Panics are silent while mistakes are made.
        if let Some(violation) = &report.violation {
            eprintln!("without any mistake:\n{violation}");
        }
        report.assert_clean();
    }
    profile
}

/// Runs stage by stage, in each world: small runs find most mistakes.
fn try_out(fault: Fault, worlds: &[&dyn Suite], options: &Options, stages_max: usize, why: Option<String>) -> Mutant {
    let begun = Instant::now();
    let names: Vec<_> = worlds.iter().map(|suite| suite.name()).collect();
    let mut images = 0;
    for (random, stage) in stages(options).into_iter().take(stages_max) {
        for suite in worlds {
            let life = CrashOptions { fault: Some(fault), ..stage.life.clone() };
            let report = run(*suite, random, &Options { life, ..stage.clone() });
            images += report.checked;
            if let Some(violation) = report.violation {
                let killed = Outcome::Killed { world: suite.name(), rule: violation.broken.rule };
                return Mutant { fault, worlds: names, outcome: why.map_or(killed, Outcome::Misjudged), images, took: begun.elapsed() };
            }
        }
    }
    Mutant { fault, worlds: names, outcome: why.map_or(Outcome::Survived, Outcome::Equivalent), images, took: begun.elapsed() }
}

const MARK: &str = "persist-equivalent";

/// The source's reason why the mistake changes nothing.
pub(crate) fn why(source: &mut Source, Fault { site, act }: &Fault) -> Option<String> {
    source.why(site.place.file(), site.place.line(), MARK, &format!("{} {act}", site.verb))
}

#[cfg(test)]
mod tests {
    use super::*;
    use everleaf_pmem::{Act, Verb};

    #[test]
    fn annotations_are_read_from_the_source() {
        let folder = tempfile::tempdir().unwrap();
        let here = std::panic::Location::caller();
        let path = folder.path().join(here.file());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let fault = |verb, act| Fault { site: Site { place: here, verb }, act };
        let with = |above: &str, at: &str| {
            let mut lines = vec![String::new(); here.line() as usize - 3];
            lines.extend(above.lines().map(str::to_owned));
            lines.push(at.to_owned());
            assert_eq!(lines.len(), here.line() as usize);
            std::fs::write(&path, lines.join("\n")).unwrap();
            let mut annotations = Source::new(folder.path());
            [(Verb::Flush, Act::Drop), (Verb::Fence, Act::Drop)].map(|(verb, act)| why(&mut annotations, &fault(verb, act)))
        };
        let said = |why: &str| Some(why.to_owned());
        assert_eq!(with("a\nb", "c();"), [None, None]);
        assert_eq!(with("    // persist-equivalent: nobody\n    // reads it", "c();"), [said("nobody reads it"), said("nobody reads it")]);
        assert_eq!(with("    // persist-equivalent(flush drop, store late): so\nb", "c();"), [None, None], "not directly above");
        assert_eq!(with("b\n    // persist-equivalent(flush drop): so", "c();")[1], None);
        assert!(with("b\n    // persist-equivalent(flush drop): so", "c();")[0].is_some());
    }
}
