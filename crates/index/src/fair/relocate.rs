//! Moving nodes, so that free room between blocks becomes whole slabs (`crates/pmem/src/alloc/evacuation.rs`); see the head of the tree's module.
//!
//! A node is latched, then the one before it, then the one above. Threads may wait leftwards and upwards, because no thread that has a node waits for one below
//! it or to its right.

use super::node::{Birth, Node};
use super::structure::linked;
use super::{ASIDE, Fair, Found, Held};
use crate::latch::until_done;
use crate::selective::router::Target;
use crate::{Error, Key, Relocated};
use everleaf_pmem::{Durable, Medium, Off};
use std::borrow::Borrow;
use std::sync::atomic::Ordering::Release;

/// What was done with a node.
struct Passed<K: Key + ?Sized> {
    low: K::Owned,
    high: Option<K::Owned>,
    has_moved: bool,
}

impl<K: Key + ?Sized, M: Medium, N: Node, const SENTINELS: usize> Fair<K, M, N, SENTINELS> {
    /// See [`OrderedIndex::relocate`](crate::OrderedIndex::relocate).
    pub(super) fn relocate_leaves(&self, from: &K, leaves_max: usize, is_leaving: &dyn Fn(u64) -> bool) -> Result<Relocated<K>, Error> {
        Relocated::walk(from, leaves_max, |key| {
            let Passed { low, high, mut has_moved } = self.relocate_node(key, 0, is_leaving)?.expect("every tree has leaves");
            // A leaf is taken together with the nodes above it that begin where it does, so each node is met once.
            for level in 1.. {
                match self.relocate_node(low.borrow(), level, is_leaving)? {
                    Some(above) if above.low == low => has_moved |= above.has_moved,
                    _ => break,
                }
            }
            Ok((has_moved, high))
        })
    }

    /// Moves the node of a level that `key` belongs to, if it is to leave; `None` if the tree is not so high.
    fn relocate_node(&self, key: &K, level: usize, is_leaving: &dyn Fn(u64) -> bool) -> Result<Option<Passed<K>>, Error> {
        let found = until_done(|| {
            let reached = match self.reach(Target::At(key), level)? {
                Ok(Some(reached)) => reached,
                Ok(None) => return Ok(Ok(None)),
                Err(error) => return Ok(Err(error)),
            };
            let Found { off, node, .. } = reached.at;
            let read = K::read_fence(&*self.pool, node.low()).and_then(|(low, fence)| Ok((low, fence, self.high_above(node, key)?)));
            let (low, fence, high) = match read {
                Ok(read) => read,
                Err(error) => return reached.validate().map(|()| Err(error)),
            };
            let has_moved = is_leaving(off) || fence.is_some_and(|(fence, _)| is_leaving(fence.bytes()));
            let passed = Passed { low, high, has_moved };
            // Only a node that leaves is latched.
            match has_moved {
                true => Ok(self.lock(reached)?.map(|held| Some((passed, Some((held, fence)))))),
                false => reached.validate().map(|()| Ok(Some((passed, None)))),
            }
        })?;
        let (passed, held, fence) = match found {
            Some((passed, Some((held, fence)))) => (passed, held, fence),
            left => return Ok(left.map(|(passed, _)| passed)),
        };
        match self.replace(&held, passed.low.borrow(), level) {
            Ok(()) => {
                self.give_up(held, fence);
                Ok(Some(passed))
            }
            Err(error) => {
                held.lock.release_unchanged();
                Err(error)
            }
        }
    }

    /// Replaces a latched node by a copy.
    fn replace(&self, held: &Held<'_, N, SENTINELS>, low: &K, level: usize) -> Result<(), Error> {
        let before = if *low == *K::LOWEST { None } else { Some(self.hold_before(held, low, level)?) };
        let (replaced, parent) = match self.hold(Target::At(low), level + 1) {
            Ok(parent) => (self.replace_between(held, low, level, before.as_ref().map(|before| before.node), parent.as_ref()), parent),
            Err(error) => (Err(error), None),
        };
        for Held { lock, .. } in [before, parent].into_iter().flatten() {
            if replaced.is_ok() { drop(lock) } else { lock.release_unchanged() }
        }
        replaced
    }

    /// Latches the node before a latched one. If damage makes keys below its range lead to the node itself, this fails and does not wait.
    fn hold_before(&self, held: &Held<'_, N, SENTINELS>, low: &K, level: usize) -> Result<Held<'_, N, SENTINELS>, Error> {
        let way = until_done(|| {
            let above = match self.reach(Target::Below(low), level + 1)? {
                Ok(Some(above)) => above,
                Ok(None) => return Ok(Ok(None)),
                Err(error) => return Ok(Err(error)),
            };
            let way = self.child(&above.at, Target::Below(low));
            above.validate().map(|()| way.map(Some))
        })?;
        if way.is_none_or(|link| link == Off::<N>::new(held.off).link()) {
            return Err(self.damage(held.node, ASIDE));
        }
        Ok(self.hold(Target::Below(low), level)?.expect("the level has a node"))
    }

    /// Replaces a node between the latched nodes before it and above it, as far as there are any.
    fn replace_between(
        &self,
        &Held { at: Found { off, node, .. }, .. }: &Held<'_, N, SENTINELS>,
        low: &K,
        level: usize,
        before: Option<&N>,
        parent: Option<&Held<'_, N, SENTINELS>>,
    ) -> Result<(), Error> {
        let pool = &*self.pool;
        let link = linked(Off::<N>::new(off));
        let rank = parent.map(|parent| parent.rank(pool, low).map(|(rank, is_there)| (parent, rank, is_there))).transpose()?;
        let is_entered = match rank {
            Some((parent, rank, is_there)) => is_there && parent.node.value(rank) == Some(link),
            None => self.is_top(off),
        };
        if !is_entered || before.is_some_and(|before| before.next().get() != link.get()) {
            return Err(self.damage(node, "a node that its neighbours do not lead to"));
        }
        node.check_order::<K, M>(pool)?;
        let (low, fence) = low.fence(pool)?;
        let copy = pool.alloc::<N>()?;
        copy.build(pool, &Birth { next: node.next().get(), low, level }, node.entries());
        let (copy, fence) = pool.fence_all((copy.flush_first(N::BUILT), fence.map(|fence| fence.flush())));
        // This is the last step that can fail.
        self.latches.begin(&[copy.off().bytes()])?;
        fence.map(Durable::release);
        let Some((parent, rank, _)) = rank else {
            self.raise(copy);
            return Ok(());
        };
        let copy = copy.release();
        if let Some(before) = before {
            pool.store(before.next(), copy.link(), Release);
            pool.flush(before.next());
        }
        parent.node.update(pool, rank, linked(copy));
        Ok(())
    }
}
