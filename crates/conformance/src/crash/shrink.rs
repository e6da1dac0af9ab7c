//! Shrinks a violation: to as few steps as possible, with as few of them as possible in the life that crashes.

use super::checker::{Checker, STUCK};
use super::report::{Report, Violation};
use super::world::{Step, World};
use super::{Case, Options, made_up, spell};
use everleaf_pmem::CrashOptions;
use std::sync::Arc;

/// Number of attempts per violation.
const ATTEMPTS_MAX: usize = 500;

/// Returns the report with its violation, if any, shrunk if `options` want that. A run that does not end is not shrunk, because nothing here would stop it.
pub(super) fn shrink_report<W: World>(world: &Arc<W>, options: &Options, report: Report) -> Report {
    if !options.shrinks || report.violation.as_ref().is_some_and(|violation| violation.broken.rule == STUCK) {
        return report;
    }
    let violation = report.violation.map(|violation| shrink(world, options, &violation).unwrap_or(violation));
    Report { violation, ..report }
}

fn shrink<W: World>(world: &Arc<W>, options: &Options, found: &Violation) -> Option<Violation> {
    // A violation is shrunk however long the run was to be. All earlier images influence which images get another life. Here all do, so that removing a step
    // cannot lose a violation that needs one.
    let options = &Options { progress: None, second_life_every: 1, follow_up_every: 1, ..options.clone() };
    let mut steps = steps_of(world, options, found)?;
    let shrinker = Shrinker { world, options, case: found.case };
    let mut best = shrinker.fails(&[], &steps)?;
    let mut attempts = 0;
    // First whole ranges, then single steps. The last step is the one that crashes.
    let mut length = steps.len().saturating_sub(1);
    while length > 0 {
        let mut at = 0;
        while at + length < steps.len() && attempts < ATTEMPTS_MAX {
            attempts += 1;
            let without: Vec<_> = steps[..at].iter().chain(&steps[at + length..]).cloned().collect();
            match shrinker.fails(&[], &without) {
                Some(violation) => (best, steps) = (violation, without),
                None => at += length,
            }
        }
        length /= 2;
    }
    // Steps that need not be in the balance come before it.
    for count in (1..steps.len()).rev() {
        if let Some(violation) = shrinker.fails(&steps[..count], &steps[count..]) {
            best = Violation { setup: steps[..count].iter().map(Step::to_string).collect(), ..violation };
            break;
        }
    }
    // As few crashes as possible, this time with the full story. Only one run may take a trace.
    let (setup, steps) = steps.split_at(best.setup.len());
    let extents = (0..=options.lives).flat_map(|lives| (0..=options.depth).map(move |depth| (depth, lives)));
    let violation = extents.into_iter().find_map(|(depth, lives)| {
        let life = CrashOptions { trace: Some(Arc::default()), ..options.life.clone() };
        Shrinker { options: &Options { depth, lives, life, ..options.clone() }, ..shrinker }
            .fails(setup, steps)
            .filter(|violation| violation.broken.rule == best.broken.rule)
    })?;
    Some(Violation { setup: best.setup, replay: found.replay.clone(), ..violation })
}

/// The steps of the case, up to the one in which the violation was found.
fn steps_of<W: World>(world: &Arc<W>, options: &Options, violation: &Violation) -> Option<Vec<Step<W::Change>>> {
    let start = world.starts().into_iter().nth(violation.case.start())?;
    let checker = Checker::new(Arc::clone(world), Arc::new(options.clone()), start, &[], Arc::default()).ok()?;
    if let Some(symbols) = violation.case.symbols() {
        return spell(&**world, options, checker.start(), checker.model(), &symbols).map(|(steps, _)| steps);
    }
    let mut model = checker.model().clone();
    let mut next = made_up(world, options, violation.case);
    let mut steps = Vec::new();
    for number in 0..violation.steps.len() as u64 {
        let step = next(number, &model)?;
        if let Step::Change(change) = &step {
            world.model(&mut model, change);
        }
        steps.push(step);
    }
    Some(steps)
}

struct Shrinker<'a, W> {
    world: &'a Arc<W>,
    options: &'a Options,
    case: Case,
}

impl<W: World> Shrinker<'_, W> {
    /// The violation, if any, when the last of `steps` crashes and all of `setup` is durable.
    fn fails(&self, setup: &[Step<W::Change>], steps: &[Step<W::Change>]) -> Option<Violation> {
        let start = self.world.starts().into_iter().nth(self.case.start())?;
        if !start.pool && !setup.is_empty() {
            return None;
        }
        let checker = Checker::new(Arc::clone(self.world), Arc::new(self.options.clone()), start, setup, Arc::default()).ok()?;
        checker.run(self.case, steps);
        checker.report().violation
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::{Index, every_crash, list};

    #[test]
    fn what_does_not_end_is_not_run_again() {
        let world = Arc::new(Index::new(list::entry::<u64, _, { list::UPDATE_NOT_FLUSHED }>()));
        let mut report = every_crash(&world, &Options { shrinks: false, ..Options::default() });
        let is_run_again = |report: &Report| {
            let shrunk = shrink_report(&world, &Options::default(), report.clone());
            !shrunk.violation.expect("it stays").end.is_empty()
        };
        assert!(is_run_again(&report), "what it did is told");
        report.violation.as_mut().expect("an update is not flushed").broken.rule = STUCK;
        assert!(!is_run_again(&report));
    }
}
