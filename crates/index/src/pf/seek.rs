//! Finding the array with which a scan begins or continues: down by digits, and back up where nothing more is below. And gathering what scans visit.

use super::block;
use super::form::Form;
use super::{AHEAD, Array, Child, Inner, Pf, Step, Stop, Trail};
use crate::selective::leaf::Entry;
use crate::{Direction, Key};
use everleaf_pmem::{Medium, probe};
use std::borrow::Borrow;
use std::ops::Bound;

/// An array, and what leads to it.
pub(super) struct Sought<'a> {
    pub(super) array: Array<'a>,
    pub(super) node: Inner<'a>,
    pub(super) step: Step,
}

impl Sought<'_> {
    /// Number of digits with which all of its keys begin: those that lead to it.
    pub(super) fn depth(&self) -> usize {
        self.node.level + 1
    }
}

/// A scan gathers arrays of one node until it has this many entries.
const ENOUGH: usize = 16;

/// A key that lies where another one belongs, and the number of digits that both begin with.
pub(super) struct Parted<K: Key + ?Sized> {
    pub(super) sample: K::Owned,
    pub(super) shared: usize,
}

impl<K: Key + ?Sized, M: Medium, F: Form> Pf<K, M, F> {
    /// Gathers the array with which a scan begins or continues, and some beside it, in ascending order. Returns the bound behind them, if there may be more.
    pub(super) fn gather_arrays(&self, from: &Bound<K::Owned>, direction: Direction, entries: &mut Vec<Entry>) -> Result<Option<Bound<K::Owned>>, Stop> {
        // Nothing may be left of an earlier attempt.
        entries.clear();
        let Some(mut last) = self.seek(from, direction)? else { return Ok(None) };
        let mut records = Vec::with_capacity(super::RECORDS);
        self.read_array(&last, direction, &mut records, entries)?;
        // What was gathered is kept, whatever happens later: the scan continues behind it.
        while entries.len() < ENOUGH {
            let Ok(Some(beside)) = self.beside(&last, direction) else { break };
            let Ok(()) = self.read_array(&beside, direction, &mut records, entries) else { break };
            last = beside;
        }
        if direction == Direction::Reverse {
            entries.reverse();
        }
        let sample = last.array.validated(F::sample::<K, M>(&self.pool, &last.array))?;
        let next = self.bound_behind(sample.borrow(), last.depth(), direction);
        let place = |bound: &Bound<K::Owned>| match bound {
            Bound::Included(key) => Some((key.clone(), direction == Direction::Reverse)),
            Bound::Excluded(key) => Some((key.clone(), direction == Direction::Forward)),
            Bound::Unbounded => None,
        };
        let goes_on = match (next.as_ref().and_then(place), place(from)) {
            (Some(next), Some(from)) => {
                if direction == Direction::Forward {
                    next > from
                } else {
                    next < from
                }
            }
            _ => true,
        };
        if goes_on { Ok(next) } else { last.array.validated(Err(last.array.damage("an array of keys that do not belong there"))) }
    }

    /// Adds the entries of an array in the order of a scan, or none after an error.
    fn read_array<'a>(&self, sought: &Sought<'a>, direction: Direction, records: &mut Vec<F::Gathered<'a>>, entries: &mut Vec<Entry>) -> Result<(), Stop> {
        let (array, skip) = (&sought.array, sought.depth());
        records.clear();
        F::ask::<K, M>(&self.pool, array, skip);
        let read = F::live(array.side).try_for_each(|at| {
            records.push(F::gather::<K, M>(&self.pool, array, at, skip)?);
            Ok(())
        });
        array.validated(read)?;
        // For byte strings, the scanning thread has pinned what they are in.
        F::sort::<K, M>(&self.pool, records)?;
        let sorted = records.iter().map(F::gathered);
        if direction == Direction::Forward {
            entries.extend(sorted)
        } else {
            entries.extend(sorted.rev())
        }
        Ok(())
    }

    /// The array beside another one, if it is below the same node. Prefetches the one behind it there.
    fn beside<'a>(&'a self, sought: &Sought<'a>, direction: Direction) -> Result<Option<Sought<'a>>, Stop> {
        let Some(beside) = self.nearest(&sought.node, Some(sought.step.digit), direction)? else { return Ok(None) };
        if let Some(Step { child, .. }) = self.nearest_step(&beside.node, Some(beside.step.digit), direction)? {
            self.pool.prefetch::<AHEAD>(child.bytes());
            self.lines.rest_from(child.bytes()).into_iter().for_each(|places| probe::prefetch_one(places, 0));
        }
        Ok(Some(beside))
    }

    /// The bound behind all keys that begin with this many digits of `key`, if there may be others beyond.
    pub(super) fn bound_behind(&self, key: &K, depth: usize, direction: Direction) -> Option<Bound<K::Owned>> {
        match direction {
            // The last digit ends the key, so there is only this key.
            Direction::Forward if depth > block::length(key) => Some(Bound::Excluded(key.to_owned())),
            Direction::Forward => block::behind(key, depth).map(Bound::Included),
            Direction::Reverse => Some(block::prefix(key, depth)).filter(|low| *low.borrow() != *K::LOWEST).map(Bound::Excluded),
        }
    }

    /// The first array, in a direction, that may have keys from a bound on; `None` if there is none.
    pub(super) fn seek(&self, from: &Bound<K::Owned>, direction: Direction) -> Result<Option<Sought<'_>>, Stop> {
        let (key, is_excluded) = match from {
            Bound::Included(key) => (key.borrow(), false),
            Bound::Excluded(key) => (key.borrow(), true),
            Bound::Unbounded => {
                let top = self.top()?;
                return self.nearest(&top, None, direction);
            }
        };
        // Whether all keys that have the digit of the key, too, are on the wrong side.
        let is_beside = |node: &Inner<'_>| match direction {
            Direction::Forward => block::digit(key, node.level) == 0,
            Direction::Reverse => block::prefix(key, node.level + 1).borrow() == key,
        };
        let trail = self.trail(key, |node| is_excluded && is_beside(node))?;
        let last = trail.last();
        let Parted { sample, shared } = self.part(&trail, key)?;
        let beyond = match trail.array {
            Some(array) if shared > last.level => {
                let (node, Some(step)) = trail.nodes[trail.nodes.len() - 1] else { unreachable!("a way leads to its array") };
                return Ok(Some(Sought { array, node, step }));
            }
            None if shared >= last.level => trail.nodes.len(),
            // The key differs within a prefix: all that is below there is on one side of it.
            _ => {
                let (node, step) = self.above(&trail, shared)?;
                let (theirs, ours) = (block::digit::<K>(sample.borrow(), shared), block::digit(key, shared));
                if if direction == Direction::Forward { theirs > ours } else { theirs < ours } {
                    return self.edge(&node, step, direction).map(Some);
                }
                trail.nodes.partition_point(|(node, _)| node.level < shared)
            }
        };
        // Go up to where there is more. None of the nodes may have changed since it was passed.
        for (node, _) in trail.nodes[..beyond].iter().rev() {
            if let Some(sought) = self.nearest(node, Some(block::digit(key, node.level)), direction)? {
                return Ok(Some(sought));
            }
        }
        Ok(None)
    }

    /// How many digits a key shares with the keys to which its digits lead.
    pub(super) fn part(&self, trail: &Trail<'_>, key: &K) -> Result<Parted<K>, Stop> {
        let last = trail.last();
        let sample = match &trail.array {
            Some(array) => array.validated(F::sample::<K, M>(&self.pool, array))?,
            // Below the top there may be no keys; it has no prefix.
            None if last.level == 0 => key.to_owned(),
            None => self.sample_below(last)?,
        };
        Ok(Parted { shared: block::shared(sample.borrow(), key), sample })
    }

    /// The last node on the way of a key above a level at which it differs within a prefix, and the step that leads on.
    pub(super) fn above<'a>(&self, trail: &Trail<'a>, level: usize) -> Result<(Inner<'a>, Step), Stop> {
        let below = trail.nodes.partition_point(|(node, _)| node.level < level);
        match (below.checked_sub(1).map(|above| trail.nodes[above]), trail.nodes.get(below)) {
            (Some((node, Some(step))), Some((next, _))) if next.level > level => Ok((node, step)),
            _ => Err(Stop::Failed(trail.last().damage())),
        }
    }

    /// The nearest child of a node beyond a digit, or from the edge on.
    pub(super) fn nearest_step(&self, node: &Inner<'_>, beyond: Option<usize>, direction: Direction) -> Result<Option<Step>, Stop> {
        node.validated(node.nearest(beyond, direction))
    }

    /// The nearest array below a node beyond a digit, or from the edge on.
    fn nearest<'a>(&'a self, node: &Inner<'a>, beyond: Option<usize>, direction: Direction) -> Result<Option<Sought<'a>>, Stop> {
        let step = self.nearest_step(node, beyond, direction)?;
        step.map(|step| self.edge(node, step, direction)).transpose()
    }

    /// The outermost array that a step leads to.
    fn edge<'a>(&'a self, node: &Inner<'a>, step: Step, direction: Direction) -> Result<Sought<'a>, Stop> {
        let (mut node, mut step) = (*node, step);
        loop {
            match self.follow(&node, step)? {
                Child::Array(array) => return Ok(Sought { array, node, step }),
                Child::Inner(inner) => {
                    let Some(outermost) = self.nearest_step(&inner, None, direction)? else { return Err(Stop::Failed(inner.damage())) };
                    (node, step) = (inner, outermost);
                }
            }
        }
    }

    /// A key below a node other than the top.
    pub(super) fn sample_below(&self, node: &Inner<'_>) -> Result<K::Owned, Stop> {
        match self.nearest(node, None, Direction::Forward)? {
            Some(Sought { array, .. }) => array.validated(F::sample::<K, M>(&self.pool, &array)),
            None => Err(Stop::Failed(node.damage())),
        }
    }

    /// Levels on the way to the first key, arrays included.
    pub(super) fn depth(&self) -> u32 {
        let count = || {
            let mut node = self.top()?;
            for depth in 1.. {
                let step = node.steps().next().transpose();
                let Some(step) = node.validated(step)? else { return Ok(depth) };
                match self.follow(&node, step)? {
                    Child::Inner(inner) => node = inner,
                    Child::Array(_) => return Ok(depth + 1),
                }
            }
            unreachable!("levels end")
        };
        self.retry(count).unwrap_or(0)
    }

    /// The key with which a walk over all arrays continues behind one.
    pub(super) fn key_behind(&self, key: &K, depth: usize) -> Option<K::Owned> {
        match self.bound_behind(key, depth, Direction::Forward)? {
            // The key followed by the lowest byte is the next of all keys.
            Bound::Excluded(key) => Some(K::restore(0, &[key.borrow().bytes(), &[0]].concat())),
            Bound::Included(key) => Some(key),
            Bound::Unbounded => None,
        }
    }
}
