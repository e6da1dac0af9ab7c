//! Runs a plan: systems take turns, every figure is written as soon as it is there.
//!
//! ```text
//! check all cases and claims                    before a line is written
//! for each experiment
//!     warm up                                   each system once, with a tenth of the keys, or all where claims are judged; not recorded
//!     for each round
//!         measure memory                        what a store, a write-back, a read cost now
//!         for each case
//!             for each system                   in another order each round
//! ```
//!
//! So all systems of a case are measured within seconds of each other, five times or more, minutes apart: what the machine does meanwhile hits all of them.
//! What is counted, not timed, is done in the first round alone: it hardly varies, and no spread is told of it. A failure, like Ctrl-C, ends the measuring
//! alone: claims are judged by what there is, and the file gets its end.

use crate::driver::{self, Context, Place};
use crate::plan::{Case, Experiment, Measure, Memory, Plan};
use crate::result::{End, FORMAT, Header, Line, Machine, Measurement, MemoryCosts, Results, Skipped};
use crate::{Capabilities, Error, System, child, claims, raw, system};
use everleaf_pmem::Domain;
use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// How to run a plan.
pub struct Run<'a> {
    /// What there is to choose from.
    pub systems: &'a mut Vec<Box<dyn System>>,
    /// The command, for the header.
    pub command: Vec<String>,
    /// Set to end early; what has been measured stands.
    pub stop: &'a AtomicBool,
    /// How this program measures one case in a process of its own, if it can.
    pub child: Option<child::Program>,
    /// Whether to show how far it is, on standard error.
    pub progress: bool,
}

/// The version of Everleaf, the commit that it was built from, if that was known, and how it was built, if not as a release without flags.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), env!("EVERLEAF_BUILD"));
/// The largest area on which memory is measured, in lines: 512 MiB.
const RAW_LINES_MAX: u64 = 8 << 20;
/// Share of the keys with which systems are warmed up, and their least number.
const WARM_UP: (u64, u64) = (10, 500);
/// The least where claims are judged: there all keys of the default scale, of which LB+-Tree's study has four times as many, so that the first round differs
/// from the others by nothing.
const WARM_UP_OF_CLAIMS: u64 = 4 * claims::Scale::DEFAULT.0;

impl Run<'_> {
    /// Measures everything, and writes every line to `out`. What has failed in the middle leaves what was measured before, and is told beside it: by a system,
    /// or by wrong answers of it.
    ///
    /// # Errors
    /// Those of [`Run::check`]; memory that cannot be measured; an `out` that takes no more.
    pub fn plan(&mut self, plan: Plan, out: &mut dyn Write) -> Result<(Results, Result<(), Error>), Error> {
        let start = Instant::now();
        let plan = self.check(plan)?;
        let progress = self.bar(&plan);
        progress.set_message("memory");
        let mut machine = Machine::this();
        machine.raw_ns = measure_memory(plan.experiments.iter().flat_map(|experiment| &experiment.cases), plan.seed)?;
        let version = VERSION.to_owned();
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let header = Header { format: FORMAT, version, command: self.command.clone(), started, machine, plan };
        Line::Header(Box::new(header.clone())).write(out)?;
        let mut taken = Taken { results: Results::new(header), out };
        let experiments = taken.results.header.plan.experiments.clone();
        let measured = experiments.iter().try_for_each(|experiment| self.experiment(experiment, &mut taken, &progress));
        progress.finish_and_clear();
        for claim in claims::judge(&taken.results, &crate::names(self.systems))? {
            taken.add(Line::Claim(claim))?;
        }
        let complete = measured.is_ok() && !self.context(0).stopped();
        taken.add(Line::End(End { complete, seconds: start.elapsed().as_secs_f64() }))?;
        Ok((taken.results, measured))
    }

    /// Whether a plan can be done, before anything is; and the plan with all in it that will be done, so that it says the same when it is read again.
    ///
    /// # Errors
    /// An unknown system, or one to be compared with that is not measured; a case that makes no sense; an id that no claim has.
    pub fn check(&mut self, mut plan: Plan) -> Result<Plan, Error> {
        self.spell_out(&mut plan)?;
        plan.experiments.iter().flat_map(|experiment| &experiment.cases).try_for_each(driver::check)?;
        claims::check(&plan.claims)?;
        Ok(plan)
    }

    /// Writes into the plan what will be done: names in full, what counts are taken with, on which pages files lie.
    fn spell_out(&mut self, plan: &mut Plan) -> Result<(), Error> {
        for experiment in &mut plan.experiments {
            for name in experiment.systems.iter_mut().chain(&mut experiment.baseline) {
                *name = crate::find(self.systems, name)?.name().to_owned();
            }
            if let Some(name) = experiment.baseline.as_ref().filter(|name| !experiment.systems.contains(name)) {
                let systems = experiment.systems.join(", ");
                return Err(Error::Usage(format!("{name:?} is to be compared with, but not measured; add it to the systems: {systems}")));
            }
            let mut cases: Vec<Case> = Vec::new();
            for mut case in std::mem::take(&mut experiment.cases) {
                if case.parameters.measure == Measure::Instructions {
                    // Valgrind does not know all instructions that write back.
                    case.parameters.domain = Domain::PageCache.name().into();
                }
                if !case.parameters.measure.is_slowed() {
                    case.parameters.write_latency_ns = 0;
                }
                if let Memory::Directory(path) = case.parameters.memory {
                    case.parameters.memory = Memory::HugePages(path);
                }
                if !cases.contains(&case) {
                    cases.push(case);
                }
            }
            experiment.cases = cases;
        }
        Ok(())
    }

    fn context(&self, seed: u64) -> Context<'_> {
        Context { seed, stop: self.stop, child: self.child.as_ref() }
    }

    fn bar(&self, plan: &Plan) -> ProgressBar {
        if !self.progress {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("{elapsed} [{bar:40}] {percent} %, {eta} left: {msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
        ProgressBar::new(plan.experiments.iter().map(|experiment| steps(experiment, plan, self.systems.as_slice())).sum()).with_style(style)
    }

    fn experiment(&self, experiment: &Experiment, taken: &mut Taken<'_>, progress: &ProgressBar) -> Result<(), Error> {
        let Plan { rounds, seed, .. } = taken.results.header.plan;
        let systems: Vec<&dyn System> =
            experiment.systems.iter().filter_map(|name| self.systems.iter().find(|system| system.name() == name)).map(AsRef::as_ref).collect();
        for (system, case) in systems.iter().flat_map(|system| experiment.cases.iter().map(move |case| (system, case))) {
            if let Some(why) = driver::obstacle(case, &system.capabilities()) {
                taken.skip(experiment, case, *system, why.into())?;
            }
        }
        if let Some(case) = warm_up(experiment, least_of(&taken.results.header.plan)) {
            for system in &systems {
                if driver::obstacle(&case, &system.capabilities()).is_none() && !self.context(seed).stopped() {
                    progress.set_message(format!("{}, warm-up, {}", experiment.id, system.name()));
                    match driver::run(*system, &case, self.context(seed)) {
                        // The first round says so.
                        Ok(_) | Err(Error::Missing { .. }) => {}
                        Err(_) if self.context(seed).stopped() => {}
                        Err(other) => return Err(other),
                    }
                }
                progress.inc(driver::effort(&case, &system.capabilities()));
            }
        }
        // The same order would have each system follow the same other one in every round.
        let (mut turns, mut random) = (systems, SmallRng::seed_from_u64(seed));
        for round in 0..rounds {
            let timed = experiment.cases.iter().filter(|case| !case.parameters.measure.is_counted());
            if timed.clone().next().is_some() && !self.context(seed).stopped() {
                let raw_ns = measure_memory(timed, seed + u64::from(round))?;
                taken.add(Line::Memory(MemoryCosts { experiment: experiment.id.clone(), round, raw_ns }))?;
            }
            for case in experiment.cases.iter().filter(|case| round == 0 || !case.parameters.measure.is_counted()) {
                turns.shuffle(&mut random);
                for &system in &turns {
                    if self.context(seed).stopped() {
                        return Ok(());
                    }
                    progress.set_message(format!("{}, {}, {}, round {}", experiment.id, case.workload.name, system.name(), round + 1));
                    if driver::obstacle(case, &system.capabilities()).is_none() {
                        // Other keys each round: a figure must not hang on one lucky set.
                        self.case(experiment, case, system, round, seed + u64::from(round), taken)?;
                    }
                    progress.inc(driver::effort(case, &system.capabilities()));
                }
            }
        }
        Ok(())
    }

    fn case(&self, experiment: &Experiment, case: &Case, system: &dyn System, round: u32, seed: u64, taken: &mut Taken<'_>) -> Result<(), Error> {
        let durability = driver::describe(system, case)?;
        let measured = match driver::run(system, case, self.context(seed)) {
            Err(Error::Missing { operation, .. }) if round == 0 => return taken.skip(experiment, case, system, format!("it has no {operation}")),
            Err(Error::Missing { .. }) => return Ok(()),
            // What ends the lab may have ended what it measured, too.
            Err(_) if self.context(seed).stopped() => return Ok(()),
            // One claim of a paper needs valgrind, and the others are judged without.
            Err(error) if case.parameters.measure == Measure::Instructions && !taken.results.header.plan.claims.is_empty() => {
                return taken.skip(experiment, case, system, error.to_string());
            }
            other => other?,
        };
        for (phase, metrics) in measured {
            taken.add(Line::Measurement(Box::new(Measurement {
                experiment: experiment.id.clone(),
                system: system.name().into(),
                durability: durability.clone(),
                leaf_bytes: system.capabilities().leaf_bytes,
                workload: case.workload.name.clone(),
                phase,
                parameters: case.parameters.clone(),
                round,
                metrics,
            })))?;
        }
        Ok(())
    }
}

/// What has been taken, and where it is written as soon as it is.
struct Taken<'a> {
    results: Results,
    out: &'a mut dyn Write,
}

impl Taken<'_> {
    fn add(&mut self, line: Line) -> Result<(), Error> {
        line.write(self.out)?;
        self.results.add(line);
        Ok(())
    }

    /// Writes down that a case is not run on a system.
    fn skip(&mut self, experiment: &Experiment, case: &Case, system: &dyn System, why: String) -> Result<(), Error> {
        let (experiment, system, workload) = (experiment.id.clone(), system.name().to_owned(), case.workload.name.clone());
        self.add(Line::Skipped(Box::new(Skipped { experiment, system, workload, parameters: case.parameters.clone(), why })))
    }
}

/// The effort of an experiment, of all its systems, rounds and cases.
fn steps(experiment: &Experiment, plan: &Plan, systems: &[Box<dyn System>]) -> u64 {
    let rounds = |case: &Case| u64::from(if case.parameters.measure.is_counted() { 1 } else { plan.rounds });
    let warm_up = warm_up(experiment, least_of(plan));
    let of = |capabilities: Capabilities| {
        let all = experiment.cases.iter().map(|case| rounds(case) * driver::effort(case, &capabilities));
        all.chain(warm_up.iter().map(|case| driver::effort(case, &capabilities))).sum::<u64>()
    };
    systems.iter().filter(|system| experiment.systems.iter().any(|name| name == system.name())).map(|system| of(system.capabilities())).sum()
}

/// The least number of keys that systems are warmed up with.
fn least_of(plan: &Plan) -> u64 {
    if plan.claims.is_empty() { WARM_UP.1 } else { WARM_UP_OF_CLAIMS }
}

/// The first of the timed cases, with fewer keys, but not fewer than `least`: code is in the caches, the processor at its speed, the allocator has its memory.
fn warm_up(experiment: &Experiment, least: u64) -> Option<Case> {
    let mut case = experiment.cases.iter().find(|case| !case.parameters.measure.is_counted())?.clone();
    let numbers = case.workload.phases.iter_mut().filter_map(|phase| phase.operations.as_mut()).chain([&mut case.parameters.keys]);
    numbers.for_each(|number| *number = (*number / WARM_UP.0).max(least).min(*number));
    Some(case)
}

/// What memory costs where the largest index of these cases lies, as pages of files may be smaller than others, and on an area about as large as that index.
fn measure_memory<'a>(cases: impl Iterator<Item = &'a Case>, seed: u64) -> Result<BTreeMap<String, f64>, Error> {
    let largest = cases.max_by_key(|case| case.parameters.keys);
    let (keys, memory) = largest.map_or((0, &Memory::Anonymous), |case| (case.parameters.keys, &case.parameters.memory));
    let lines = (keys / 2).clamp(1 << 10, RAW_LINES_MAX);
    let place = Place::new(memory, false)?;
    let pool = system::pool(2 * lines, Domain::Adr, place.path(), memory.has_huge_pages())?;
    raw::measure(&pool, lines as usize, keys.clamp(1000, 1_000_000) as usize, seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was left was told as if a request took as long as an operation of a tree: half of the time, nearly all of the bar.
    #[test]
    fn a_request_weighs_as_many_operations_of_a_tree_as_take_as_long() {
        let mut systems = crate::systems();
        crate::find(&mut systems, "server:lb").unwrap();
        let names = crate::names(&systems);
        let plan = claims::plan("lb", claims::Scale::TINY, &names, 5, 1).unwrap();
        let served = plan.experiments.iter().find(|experiment| experiment.id == "lb-server").unwrap();
        let steps_of = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            steps(&Experiment { systems: names, ..served.clone() }, &plan, &systems)
        };
        let (tree, server, both) = (steps_of(&["lb"]), steps_of(&["server:lb"]), steps_of(&["lb", "server:lb"]));
        assert!((30..150).contains(&(server / tree)) && both == tree + server, "{tree}, {server}, {both}");
    }

    #[test]
    fn claims_are_warmed_up_with_all_keys_of_the_default_scale() {
        let names = crate::names(&crate::systems());
        let keys = |scale, least| {
            let experiments = claims::plan("lb", scale, &names, 5, 1).unwrap().experiments;
            let case = warm_up(&experiments[0], least).unwrap();
            (case.parameters.keys, case.workload.phases[0].operations.unwrap())
        };
        assert_eq!(keys(claims::Scale::DEFAULT, WARM_UP_OF_CLAIMS), (4_000_000, 5_000));
        assert_eq!(keys(claims::Scale::DEFAULT, WARM_UP.1), (400_000, 500));
        assert_eq!(keys(claims::Scale(50_000_000), WARM_UP_OF_CLAIMS).0, 20_000_000);
        assert_eq!(keys(claims::Scale::TINY, WARM_UP.1), (800, 100));
        assert_eq!(keys(claims::Scale::TINY, WARM_UP_OF_CLAIMS), (8_000, 100), "never more than are measured");
    }
}
