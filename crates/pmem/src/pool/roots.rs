//! The root directory: blocks found by name.
//!
//! ```text
//! block (2048 bytes; the first is part of the header, others come from the allocator)
//!    0 +------+--------+------+--------------+
//!      | next | number | zero                |  a link to the next block, or 0; 0 for the first, 1 for the second ...
//!   64 +------+--------+------+--------------+
//!      | root | kind | name's check, length | name, 40 bytes |  31 entries of one line each
//!      +------+------+----------------------+----------------+
//! ```
//!
//! An entry is in use if and only if its `root` link is not 0. The bytes of a name after its length are 0.
//!
//! Invariants, whatever image a crash leaves:
//! 1. An entry in use has kind and name that match its check, because the link is stored last, in the same line.
//! 2. No name is in use twice.
//! 3. Blocks of the chain are numbered 0, 1, 2 ..., so a cycle is recognised at the first repeated block.
//!
//! Adding ([`Pool::link_root`]): store kind, name, then the link, the commit point; flush once, fence once. When every block is full, a new block that already
//! holds the entry is sealed, and linked to the last by its `next` word, the commit point. Removing: store 0 in the link. Replacing: store another link. Each
//! is one word, so a crash leaves the old or the new state.

use super::{Pool, Root};
use crate::word::{self, Word};
use crate::{Durable, Error, Medium, Off, Resident, schedule};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

const ENTRIES: usize = 31;
/// Words of a name.
const NAME_WORDS: usize = 5;
/// Bytes of the longest name.
pub const ROOT_NAME_SIZE_MAX: usize = NAME_WORDS * 8;

crate::resident! {
    /// A block of the directory. See the module documentation.
    pub(crate) struct Directory {
        next: Word,
        number: Word,
        zero: [Word; 6],
        entries: [Entry; ENTRIES],
    }
}

crate::resident! {
    /// A name and its root, in one line.
    struct Entry {
        root: Word,
        kind: Word,
        check: Word,
        name: [Word; NAME_WORDS],
    }
}

const _: () = assert!(size_of::<Directory>() == 2048 && size_of::<Entry>() == crate::LINE);

impl Directory {
    /// Whether nothing was ever stored here.
    pub(super) fn is_empty(&self) -> bool {
        let head = [&self.next, &self.number].into_iter().chain(&self.zero);
        let entries = self.entries.iter().flat_map(|entry| [&entry.root, &entry.kind, &entry.check].into_iter().chain(&entry.name));
        head.chain(entries).all(|word| word.get() == 0)
    }
}

/// A name as it is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Name {
    words: [u64; NAME_WORDS],
    length: usize,
}

impl Name {
    fn new(name: &str) -> Result<Self, Error> {
        // A name that ends with a zero byte could not be told from its padding.
        if name.is_empty() || name.len() > ROOT_NAME_SIZE_MAX || name.ends_with('\0') {
            return Err(Error::RootName { name: name.to_owned(), length_max: ROOT_NAME_SIZE_MAX });
        }
        let mut words = [0; NAME_WORDS];
        for (word, bytes) in words.iter_mut().zip(name.as_bytes().chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(padded);
        }
        Ok(Self { words, length: name.len() })
    }

    /// The word that proves kind and name: their checksum above, the length below.
    fn check(&self, kind: u64) -> u64 {
        let [first, second, third, fourth, fifth] = self.words;
        let crc = word::checksum(&[kind, first, second, third, fourth, fifth]);
        u64::from(crc) << 32 | self.length as u64
    }

    /// Length without the padding: the check does not cover the stored length.
    fn unpadded_length(&self) -> usize {
        let last = self.words.iter().rposition(|word| *word != 0);
        last.map_or(0, |at| (at + 1) * size_of::<u64>() - self.words[at].leading_zeros() as usize / 8)
    }

    fn text(&self) -> Option<String> {
        let bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).take(self.length).collect();
        String::from_utf8(bytes).ok()
    }
}

impl Entry {
    /// Name and root of an entry in use; `None` for a free one.
    fn read<M: Medium>(&self, pool: &Pool<M>) -> Result<Option<(Name, Root)>, Error> {
        let root = self.root.load(Ordering::Acquire);
        if root == 0 {
            return Ok(None);
        }
        let at = pool.offset_of(self).bytes();
        let (kind, check) = (self.kind.get(), self.check.get());
        let name = Name { words: self.name.each_ref().map(Word::get), length: check as u32 as usize };
        if name.length == 0 || name.length != name.unpadded_length() || check != name.check(kind) {
            return Err(Error::corrupt(at, "an entry of the root directory whose name or kind does not match its check"));
        }
        let off = Off::<u8>::from_link(root)?.bytes();
        if off < pool.slab_size() as u64 || off >= pool.length() as u64 {
            return Err(Error::corrupt(at, "an entry of the root directory that points out of the pool"));
        }
        Ok(Some((name, Root { kind, off })))
    }

    /// Stores all of the entry but its link. The entry must be free.
    #[track_caller]
    fn prepare<M: Medium>(&self, pool: &Pool<M>, name: &Name, kind: u64) {
        pool.store(&self.kind, kind, Ordering::Relaxed);
        pool.store(&self.check, name.check(kind), Ordering::Relaxed);
        for (word, value) in self.name.iter().zip(name.words) {
            pool.store(word, value, Ordering::Relaxed);
        }
    }
}

impl<M: Medium> Pool<M> {
    /// The root named `name`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when the directory is damaged; [`Error::RootName`].
    pub fn root(&self, name: &str) -> Result<Option<Root>, Error> {
        let _lock = schedule::lock(&self.roots);
        Ok(self.find_root(&Name::new(name)?)?.map(|(_, root)| root))
    }

    /// Names and roots of all entries, in no particular order.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when the directory is damaged.
    pub fn roots(&self) -> Result<Vec<(String, Root)>, Error> {
        let (roots, damages) = self.sound_roots();
        damages.into_iter().next().map_or(Ok(roots), Err)
    }

    /// Names and roots of the readable entries, and what is wrong with the directory.
    pub fn sound_roots(&self) -> (Vec<(String, Root)>, Vec<Error>) {
        let _lock = schedule::lock(&self.roots);
        let (mut roots, mut damages) = (Vec::new(), Vec::new());
        let mut note = |entry: &Entry| {
            let named = entry.read(self).and_then(|read| {
                let Some((name, root)) = read else { return Ok(None) };
                let name = name.text().ok_or_else(|| Error::corrupt(self.offset_of(entry).bytes(), "a root whose name is not UTF-8"))?;
                Ok(Some((name, root)))
            });
            match named {
                Ok(root) => roots.extend(root),
                Err(error) => damages.push(error),
            }
        };
        let first = &self.header().directory;
        let walked = self.each_entry(|entry| {
            note(entry);
            Ok(ControlFlow::<()>::Continue(()))
        });
        // Its place is known, whatever its number.
        if first.number.get() != 0 {
            first.entries.iter().for_each(note);
        }
        damages.extend(walked.err());
        (roots, damages)
    }

    /// Publishes `block` as the root named `name`, durably.
    ///
    /// # Errors
    /// [`Error::RootExists`]; [`Error::RootName`]; [`Error::Corrupt`]; [`Error::NoSpace`]; and those of [`Pool::writable`]. The block is given back, unless it
    /// was linked without that being known to be durable.
    pub fn link_root<T: Resident + ?Sized>(&self, name: &str, kind: u64, block: Durable<'_, T, M>) -> Result<Off<T>, Error> {
        let _lock = schedule::lock(&self.roots);
        self.writable()?;
        let stored = Name::new(name)?;
        let mut free = None;
        let mut taken = false;
        let last = self.each_block(|directory| {
            for entry in &directory.entries {
                match entry.read(self)? {
                    Some((other, _)) if other == stored => taken = true,
                    Some(_) => {}
                    None if free.is_none() => free = Some(entry),
                    None => {}
                }
            }
            Ok(ControlFlow::<()>::Continue(()))
        })?;
        if taken {
            return Err(Error::RootExists { name: name.to_owned() });
        }
        match free {
            Some(entry) => {
                entry.prepare(self, &stored, kind);
                let off = self.link(&entry.root, block);
                self.durable().map(|()| off)
            }
            None => self.link_in_new_block(last, &stored, kind, block),
        }
    }

    fn link_in_new_block<T: Resident + ?Sized>(&self, last: &Directory, name: &Name, kind: u64, block: Durable<'_, T, M>) -> Result<Off<T>, Error> {
        assert!(block.is_of(self), "a block of another pool");
        let fresh = self.alloc::<Directory>()?;
        for word in [&fresh.next].into_iter().chain(&fresh.zero) {
            self.store(word, 0, Ordering::Relaxed);
        }
        self.store(&fresh.number, last.number.get() + 1, Ordering::Relaxed);
        for entry in &fresh.entries[1..] {
            self.store(&entry.root, 0, Ordering::Relaxed);
        }
        fresh.entries[0].prepare(self, name, kind);
        self.store(&fresh.entries[0].root, block.off().link(), Ordering::Relaxed);
        let sealed = self.seal(fresh);
        self.link(&last.next, sealed);
        let off = block.release();
        self.durable().map(|()| off)
    }

    /// Publishes `block` in place of the root named `name`, durably. The caller must retire what was there before.
    ///
    /// # Errors
    /// [`Error::NoSuchRoot`]; [`Error::Corrupt`]; and those of [`Pool::writable`].
    pub fn replace_root<T: Resident + ?Sized>(&self, name: &str, block: Durable<'_, T, M>) -> Result<Root, Error> {
        let _lock = schedule::lock(&self.roots);
        self.writable()?;
        let (entry, old) = self.find_root(&Name::new(name)?)?.ok_or_else(|| Error::NoSuchRoot { name: name.to_owned() })?;
        self.link(&entry.root, block);
        self.durable().map(|()| old)
    }

    /// Removes the root named `name`, durably. The caller must retire what it led to.
    ///
    /// # Errors
    /// [`Error::NoSuchRoot`]; [`Error::Corrupt`]; and those of [`Pool::writable`].
    pub fn unlink_root(&self, name: &str) -> Result<Root, Error> {
        let _lock = schedule::lock(&self.roots);
        self.writable()?;
        let (entry, old) = self.find_root(&Name::new(name)?)?.ok_or_else(|| Error::NoSuchRoot { name: name.to_owned() })?;
        self.store(&entry.root, 0, Ordering::Release);
        self.persist(&entry.root);
        self.durable().map(|()| old)
    }

    /// The blocks that the directory takes from the allocator, which are reachable but belong to no structure: offset and size in bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when the directory is damaged.
    pub(crate) fn directory_blocks(&self) -> Result<Vec<(Off<Directory>, usize)>, Error> {
        let _lock = schedule::lock(&self.roots);
        let mut blocks = Vec::new();
        self.each_block(|directory| {
            if directory.number.get() > 0 {
                blocks.push((self.offset_of(directory), size_of::<Directory>()));
            }
            Ok(ControlFlow::<()>::Continue(()))
        })?;
        Ok(blocks)
    }

    fn find_root(&self, name: &Name) -> Result<Option<(&Entry, Root)>, Error> {
        self.each_entry(|entry| {
            Ok(match entry.read(self)? {
                Some((other, root)) if other == *name => ControlFlow::Break((entry, root)),
                _ => ControlFlow::Continue(()),
            })
        })
    }

    fn each_entry<'p, B>(&'p self, mut visit: impl FnMut(&'p Entry) -> Result<ControlFlow<B>, Error>) -> Result<Option<B>, Error> {
        let mut found = None;
        self.each_block(|directory| {
            for entry in &directory.entries {
                if let ControlFlow::Break(value) = visit(entry)? {
                    found = Some(value);
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    /// Visits the blocks in order, until `visit` breaks; returns the block visited last.
    fn each_block<'p, B>(&'p self, mut visit: impl FnMut(&'p Directory) -> Result<ControlFlow<B>, Error>) -> Result<&'p Directory, Error> {
        let mut directory = &self.header().directory;
        for number in 0.. {
            if directory.number.get() != number {
                return Err(Error::corrupt(self.offset_of(directory).bytes(), "a block of the root directory out of its place"));
            }
            if visit(directory)?.is_break() {
                break;
            }
            let next = Off::from_link(directory.next.load(Ordering::Acquire))?;
            if next.is_null() {
                break;
            }
            if next.bytes() < self.slab_size() as u64 {
                return Err(Error::corrupt(next.bytes(), "a block of the root directory inside the header"));
            }
            directory = self.at(next, "a block of the root directory out of the pool")?;
        }
        Ok(directory)
    }
}
