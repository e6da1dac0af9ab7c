//! Splits and joins; see the head of the tree's module.

use super::node::{Birth, Node};
use super::{Fair, Found, Held};
use crate::key::FenceBlock;
use crate::latch::Latch;
use crate::selective::leaf::{self, Entry};
use crate::selective::router::Target;
use crate::selective::structure::are_worth_merging;
use crate::{Error, Key};
use everleaf_pmem::{Durable, Medium, Off, Pm};
use std::borrow::Borrow;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::Release;

impl<K: Key + ?Sized, M: Medium, N: Node, const SENTINELS: usize> Fair<K, M, N, SENTINELS> {
    /// Splits the node of a level that `key` belongs to, if it is full.
    #[cold]
    pub(super) fn split(&self, key: &K, level: usize) -> Result<(), Error> {
        loop {
            let Some(full) = self.hold(Target::At(key), level)? else { return Ok(()) };
            if full.count() < N::CAPACITY {
                full.lock.release_unchanged();
                return Ok(());
            }
            let parent = match self.hold(Target::At(key), level + 1) {
                Ok(parent) => parent,
                Err(error) => {
                    full.lock.release_unchanged();
                    return Err(error);
                }
            };
            match parent {
                None if !self.is_top(full.off) => full.lock.release_unchanged(),
                Some(parent) if parent.count() == N::CAPACITY => {
                    parent.lock.release_unchanged();
                    full.lock.release_unchanged();
                    self.split(key, level + 1)?;
                }
                parent => {
                    let divided = self.divide(&full, parent.as_ref(), level);
                    if divided.is_err() {
                        full.lock.release_unchanged();
                        parent.into_iter().for_each(|parent| parent.lock.release_unchanged());
                    }
                    return divided;
                }
            }
        }
    }

    /// Moves the upper half of a latched node to a new one. Its parent, if it has one, is latched, and has room.
    fn divide(&self, full: &Held<'_, N, SENTINELS>, parent: Option<&Held<'_, N, SENTINELS>>, level: usize) -> Result<(), Error> {
        let (pool, node) = (&*self.pool, full.node);
        let middle = N::CAPACITY / 2;
        let separator = self.separator(node, level, middle)?;
        let above = parent.map(|parent| Ok::<_, Error>((parent, self.rank_behind(parent, separator.borrow(), full.off)?))).transpose()?;
        let (low, fence) = separator.borrow().fence(pool)?;
        let upper = pool.alloc::<N>()?;
        upper.build(pool, &Birth { next: node.next().get(), low, level }, node.entries().skip(middle));
        let entry = Entry { head: separator.borrow().head(0), value: linked(upper.off()) };
        let top = match above {
            Some(_) => None,
            None => {
                let first = Entry { head: K::LOWEST.head(0), value: linked(Off::<N>::new(full.off)) };
                let top = pool.alloc::<N>()?;
                top.build(pool, &Birth { next: 0, low: 0, level: level + 1 }, [first, entry].into_iter());
                Some(top)
            }
        };
        let (upper, fence, top) = pool.fence_all((upper.flush_first(N::BUILT), fence.map(|fence| fence.flush()), top.map(|top| top.flush_first(N::BUILT))));
        // This is the last step that can fail.
        let places: Vec<u64> = top.iter().map(|top| top.off().bytes()).chain([upper.off().bytes()]).collect();
        self.latches.begin(&places)?;
        fence.map(Durable::release);
        pool.link(node.next(), upper);
        node.cut(pool, middle);
        full.sentinels.forget();
        if let Some((parent, at)) = above {
            parent.insert::<K, M>(pool, at, parent.count(), entry);
        }
        if let Some(top) = top {
            self.raise(top);
        }
        if level == 0 {
            self.leaves.add(1);
            self.splits.add(1);
        }
        Ok(())
    }

    /// Makes a new node the top. It is latched until that is durable: a crash before could take back what others write to it and below.
    pub(super) fn raise(&self, top: Durable<'_, N, M>) {
        let lock = self.latches.of(top.off().bytes()).and_then(Latch::try_lock);
        let lock = lock.expect("nobody knows of a new node");
        self.pool.link(&self.root().top, top);
        // The node itself has not changed.
        lock.release_unchanged();
    }

    /// The key that divides a latched, full node before a rank.
    fn separator(&self, node: &N, level: usize, rank: usize) -> Result<K::Owned, Error> {
        node.check_order::<K, M>(&self.pool)?;
        let entry = |rank| node.entries().nth(rank).ok_or_else(|| self.damage(node, "a full node with fewer entries than it counts"));
        let separator = if level > 0 {
            self.low(self.place(entry(rank)?.value.get())?.node)?
        } else {
            let [below, above] = [rank - 1, rank].map(|rank| leaf::read::<K, M>(&self.pool, &entry(rank)?));
            let (below, above) = (below?, above?);
            if below >= above {
                return Err(self.damage(node, "a leaf with the same key twice"));
            }
            K::separator(below.borrow(), above.borrow())
        };
        if separator <= self.low(node)? || self.high(node)?.is_some_and(|high| separator >= high) {
            return Err(self.damage(node, "a node with keys beyond its range"));
        }
        Ok(separator)
    }

    /// The rank for the entry of a low fence in a latched node, behind the entry of `before`.
    fn rank_behind(&self, parent: &Held<'_, N, SENTINELS>, low: &K, before: u64) -> Result<usize, Error> {
        match parent.rank(&self.pool, low)? {
            (at, false) if at > 0 && parent.node.value(at - 1) == Some(linked(Off::<N>::new(before))) => Ok(at),
            _ => Err(self.damage(parent.node, "a node that does not lead to its child")),
        }
    }

    /// Joins the node of a level that `key` belongs to and a neighbour, if that is worthwhile and their latches are free. Then goes on a level above.
    #[cold]
    pub(super) fn join(&self, key: &K, level: usize) {
        // Readers also meet any damage that is met here.
        let Ok(Some(parent)) = self.hold(Target::At(key), level + 1) else { return };
        if parent.count() == 1 && !self.is_top(parent.off) {
            // The node has no neighbour under this parent, but may get one.
            parent.lock.release_unchanged();
            self.join(key, level + 1);
            match self.hold(Target::At(key), level + 1) {
                Ok(Some(parent)) => self.join_under(key, level, parent),
                _ => false,
            };
        } else if self.join_under(key, level, parent) {
            self.join(key, level + 1);
        }
    }

    /// Joins two children of a latched node, if possible. Returns whether it did, and the node has become so small that it may be joined itself.
    fn join_under(&self, key: &K, level: usize, parent: Held<'_, N, SENTINELS>) -> bool {
        let is_joined = self.join_children(key, level, &parent).unwrap_or(false);
        let left = parent.count();
        match (left, is_joined) {
            (1, _) if self.is_top(parent.off) => self.lower(parent),
            (_, true) => drop(parent.lock),
            (_, false) => parent.lock.release_unchanged(),
        }
        is_joined && left <= N::CAPACITY / 2
    }

    /// Replaces a latched top by its only child.
    fn lower(&self, top: Held<'_, N, SENTINELS>) {
        // The child is one level lower; otherwise there is damage that others will meet.
        let is_sound = |child: &NonZeroU64| self.place(child.get()).is_ok_and(|child| child.node.level().map(|level| level + 1) == top.node.level());
        let Some(child) = top.node.value(0).filter(is_sound) else { return drop(top.lock) };
        // The former top has one child and stays valid until its block is used again. The worlds of the checker end before that: see the tests.
        // persist-equivalent(store late): as above.
        self.pool.store(&self.root().top, child.get(), Release);
        // persist-equivalent(flush drop, flush neighbour, fence drop): as above.
        self.pool.persist(&self.root().top);
        self.give_up(top, None);
    }

    /// Retires a latched node to which, durably, nothing leads any more, and its low fence.
    pub(super) fn give_up(&self, Held { at: Found { off, sentinels, .. }, lock }: Held<'_, N, SENTINELS>, fence: FenceBlock) {
        // The next node in this place begins without known sentinels, as the first one did.
        sentinels.forget();
        lock.release_obsolete();
        let guard = self.pool.pin();
        self.pool.retire(Off::<N>::new(off), &guard);
        if let Some((fence, _)) = fence {
            self.pool.retire(fence, &guard);
        }
    }

    fn join_children(&self, key: &K, level: usize, parent: &Held<'_, N, SENTINELS>) -> Result<bool, Error> {
        let (below, is_there) = parent.rank(&self.pool, key)?;
        // The child is joined with the one behind it; the last child, with the one before it.
        let at = (below + usize::from(is_there)).min(parent.count().saturating_sub(1));
        let Some((left, right)) = at.checked_sub(1).and_then(|before| Some((parent.node.value(before)?, parent.node.value(at)?))) else { return Ok(false) };
        let Some(left) = self.try_hold(left)? else { return Ok(false) };
        let right = match self.try_hold(right) {
            Ok(Some(right)) => right,
            prevented => {
                left.lock.release_unchanged();
                return prevented.map(|_| false);
            }
        };
        let is_worth_it = are_worth_merging(left.count(), right.count(), N::CAPACITY);
        let disown = || _ = parent.remove::<K, M>(&self.pool, at);
        let joined = match K::read_fence(&*self.pool, right.node.low()) {
            Ok((_, fence)) if is_worth_it => take_over::<K, M, N>(&self.pool, left.node, (right.off, right.node), disown).map(|()| Some(fence)),
            fence => fence.map(|_| None),
        };
        match joined {
            Ok(Some(fence)) => {
                left.sentinels.forget();
                drop(left.lock);
                self.give_up(right, fence);
                self.leaves.add(if level == 0 { -1 } else { 0 });
                Ok(true)
            }
            left_alone => {
                right.lock.release_unchanged();
                left.lock.release_unchanged();
                left_alone.map(|_| false)
            }
        }
    }

    /// Latches the node of a link, if its latch is free.
    fn try_hold(&self, link: NonZeroU64) -> Result<Option<Held<'_, N, SENTINELS>>, Error> {
        let at = self.place(link.get())?;
        Ok(at.latch.try_lock().ok().map(|lock| Held { at, lock }))
    }
}

/// Moves the entries of the next node to a node that has room for them, and takes the next node out of the list. `disown` takes it out of the node above,
/// durably. After an error nothing has changed.
pub(super) fn take_over<K: Key + ?Sized, M: Medium, N: Node>(pm: &Pm<M>, node: &N, (next_off, next): (u64, &N), disown: impl FnOnce()) -> Result<(), Error> {
    [node, next].into_iter().try_for_each(|node| node.check_order::<K, M>(pm))?;
    if node.next().get() != Off::<N>::new(next_off).link() || node.level() != next.level() || node.count() + next.count() > N::CAPACITY {
        return Err(everleaf_pmem::Error::corrupt(next_off, "a node that does not go with the one before").into());
    }
    node.append(pm, next);
    disown();
    pm.store(node.next(), next.next().get(), Release);
    pm.persist(node.next());
    Ok(())
}

/// The value of a child's entry in an inner node.
pub(super) fn linked<N: Node>(child: Off<N>) -> NonZeroU64 {
    NonZeroU64::new(child.link()).expect("a node does not lie at the beginning of a pool")
}
