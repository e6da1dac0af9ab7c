//! Commands: what every front end makes of its input, and what the executor takes.
//!
//! One table ([`TABLE`]) has a line per command. Dispatch, the check of the number of arguments, COMMAND and its subcommands all derive from it.

use crate::executor::{Call, Failure};
use crate::resp::Span;
use std::sync::LazyLock;

mod table;

pub(crate) use table::TABLE;

/// The arguments of a command, the first being its name: spans of the bytes that a client sent.
#[derive(Clone, Copy)]
pub(crate) struct Arguments<'a> {
    frame: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Arguments<'a> {
    /// The parts `spans` of `frame`.
    pub(crate) fn new(frame: &'a [u8], spans: &'a [Span]) -> Self {
        Self { frame, spans }
    }

    /// Their number, including the name.
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// The argument at `index`, if there is one.
    pub(crate) fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.spans.get(index).map(|span| span.of(self.frame))
    }

    /// The argument at `index`, with the lifetime of the bytes and not of this copy of the spans. The number of arguments was checked before.
    pub(crate) fn at(&self, index: usize) -> &'a [u8] {
        self.spans[index].of(self.frame)
    }

    /// Arguments from `index` on.
    pub(crate) fn from(&self, index: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let frame = self.frame;
        self.spans[index..].iter().map(move |span| span.of(frame))
    }

    /// Whether the argument at `index` exists and equals `word`, ignoring case.
    pub(crate) fn is(&self, index: usize, word: &str) -> bool {
        self.get(index).is_some_and(|argument| argument.eq_ignore_ascii_case(word.as_bytes()))
    }
}

/// A set of [`Flag`]s.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Flags(u16);

/// Names of the flags in COMMAND INFO, in its order.
const FLAG_NAMES: [(Flags, &str); 13] = [
    (Flags::WRITE, "write"),
    (Flags::READONLY, "readonly"),
    (Flags::DENYOOM, "denyoom"),
    (Flags::ADMIN, "admin"),
    (Flags::NOSCRIPT, "noscript"),
    (Flags::LOADING, "loading"),
    (Flags::STALE, "stale"),
    (Flags::SKIP_SLOWLOG, "skip_slowlog"),
    (Flags::FAST, "fast"),
    (Flags::NO_AUTH, "no_auth"),
    (Flags::NO_ASYNC_LOADING, "no_async_loading"),
    (Flags::NO_MULTI, "no_multi"),
    (Flags::ALLOW_BUSY, "allow_busy"),
];

impl Flags {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const WRITE: Self = Self(1);
    pub(crate) const READONLY: Self = Self(2);
    pub(crate) const DENYOOM: Self = Self(4);
    pub(crate) const ADMIN: Self = Self(8);
    pub(crate) const NOSCRIPT: Self = Self(16);
    pub(crate) const LOADING: Self = Self(32);
    pub(crate) const STALE: Self = Self(64);
    pub(crate) const FAST: Self = Self(128);
    /// May be called without a password.
    pub(crate) const NO_AUTH: Self = Self(256);
    pub(crate) const ALLOW_BUSY: Self = Self(512);
    /// Shown only as a category, not as a flag, like the next one.
    pub(crate) const DANGEROUS: Self = Self(1024);
    pub(crate) const ADMINISTRATIVE: Self = Self(32768);
    /// Cannot be part of a transaction.
    pub(crate) const NO_MULTI: Self = Self(2048);
    /// Runs at once even after MULTI. Not shown.
    pub(crate) const AT_ONCE: Self = Self(4096);
    pub(crate) const SKIP_SLOWLOG: Self = Self(8192);
    pub(crate) const NO_ASYNC_LOADING: Self = Self(16384);

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        FLAG_NAMES.iter().filter(move |(flag, _)| self.contains(*flag)).map(|(_, name)| *name)
    }
}

/// The group of a command in its documentation and access category.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    Connection,
    Generic,
    Scripting,
    Server,
    String,
    Transactions,
}

impl Group {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Generic => "generic",
            Self::Scripting => "scripting",
            Self::Server => "server",
            Self::String => "string",
            Self::Transactions => "transactions",
        }
    }
}

/// Which arguments are keys.
#[derive(Clone, Copy)]
pub(crate) struct Keys {
    /// Index of the first one; zero if there is none.
    pub(crate) first: i64,
    /// Index of the last one, from the end if negative.
    pub(crate) last: i64,
    /// Distance from one to the next.
    pub(crate) step: i64,
}

impl Keys {
    pub(crate) const NONE: Self = Self { first: 0, last: 0, step: 0 };
    pub(crate) const FIRST: Self = Self { first: 1, last: 1, step: 1 };
    pub(crate) const FIRST_TWO: Self = Self { first: 1, last: 2, step: 1 };
    pub(crate) const ALL: Self = Self { first: 1, last: -1, step: 1 };
    pub(crate) const PAIRS: Self = Self { first: 1, last: -1, step: 2 };
    pub(crate) const SECOND: Self = Self { first: 2, last: 2, step: 1 };
}

/// A function that runs a command and writes its reply.
pub(crate) type Run = fn(&mut Call<'_>) -> Result<(), Failure>;

/// A line of the table.
pub(crate) struct Spec {
    /// Name in lower case; for a subcommand with the parent's name: `client|id`.
    pub(crate) name: &'static str,
    /// Number of arguments, including the name; if negative, the minimum.
    pub(crate) arity: i64,
    pub(crate) flags: Flags,
    pub(crate) keys: Keys,
    pub(crate) group: Group,
    /// Version of Redis (of Everleaf, for additions to Redis) that introduced it.
    pub(crate) since: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) subcommands: &'static [Spec],
    pub(crate) run: Run,
}

impl Spec {
    /// Whether a command may have `count` arguments.
    pub(crate) fn accepts(&self, count: usize) -> bool {
        let count = count as i64;
        if self.arity >= 0 { count == self.arity } else { count >= -self.arity }
    }

    /// The subcommand `name`.
    pub(crate) fn subcommand(&self, name: &[u8]) -> Option<&'static Spec> {
        self.subcommands.iter().find(|spec| spec.short_name().as_bytes().eq_ignore_ascii_case(name))
    }

    /// A subcommand's name without its parent's.
    pub(crate) fn short_name(&self) -> &'static str {
        self.name.split_once('|').map_or(self.name, |(_, name)| name)
    }

    /// Access categories.
    pub(crate) fn categories(&self) -> Vec<&'static str> {
        let fast = self.flags.contains(Flags::FAST);
        let admin = [Flags::ADMIN, Flags::ADMINISTRATIVE].into_iter().any(|flag| self.flags.contains(flag));
        let all = [
            (self.group == Group::Generic, "@keyspace"),
            (self.flags.contains(Flags::READONLY), "@read"),
            (self.flags.contains(Flags::WRITE), "@write"),
            (self.group == Group::String, "@string"),
            (admin, "@admin"),
            (fast, "@fast"),
            (!fast, "@slow"),
            (admin || self.flags.contains(Flags::DANGEROUS), "@dangerous"),
            (self.group == Group::Connection, "@connection"),
            (self.group == Group::Transactions, "@transaction"),
            (self.group == Group::Scripting, "@scripting"),
        ];
        all.into_iter().filter(|(applies, _)| *applies).map(|(_, name)| name).collect()
    }
}

/// Longest command name that the hash table holds; a longer name is no command.
const NAME_SIZE_MAX: usize = 16;
const SLOT_COUNT: usize = 512;

/// Positions in [`TABLE`] by hash of the name, plus one; zero is empty.
static SLOTS: LazyLock<[u8; SLOT_COUNT]> = LazyLock::new(|| {
    let mut slots = [0_u8; SLOT_COUNT];
    for (position, spec) in TABLE.iter().enumerate() {
        let mut slot = pack(spec.name.as_bytes()).map(slot_of).expect("no command has a longer name");
        while slots[slot] != 0 {
            slot = (slot + 1) % SLOT_COUNT;
        }
        slots[slot] = u8::try_from(position + 1).expect("fewer than 255 commands");
    }
    slots
});

fn pack(name: &[u8]) -> Option<u128> {
    let mut packed = [0_u8; NAME_SIZE_MAX];
    packed.get_mut(..name.len())?.copy_from_slice(name);
    packed.make_ascii_lowercase();
    Some(u128::from_le_bytes(packed))
}

fn slot_of(packed: u128) -> usize {
    let folded = packed as u64 ^ ((packed >> 64) as u64).rotate_left(29);
    // Fibonacci hashing: the highest bits of the product depend on all of the name.
    (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SLOT_COUNT.ilog2())) as usize
}

/// The command `name`, ignoring case.
pub(crate) fn lookup(name: &[u8]) -> Option<&'static Spec> {
    let mut slot = slot_of(pack(name)?);
    loop {
        let spec = &TABLE[usize::from(SLOTS[slot]).checked_sub(1)?];
        if spec.name.as_bytes().eq_ignore_ascii_case(name) {
            return Some(spec);
        }
        slot = (slot + 1) % SLOT_COUNT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_in_any_case() {
        for spec in TABLE {
            assert_eq!(lookup(spec.name.as_bytes()).map(|found| found.name), Some(spec.name));
            assert_eq!(lookup(spec.name.to_uppercase().as_bytes()).map(|found| found.name), Some(spec.name));
        }
        for name in ["", "ge", "gett", "get ", "a name that is far too long to be one"] {
            assert!(lookup(name.as_bytes()).is_none(), "{name:?}");
        }
    }

    #[test]
    fn the_table_is_sorted_and_subcommands_carry_their_parent() {
        assert!(TABLE.is_sorted_by(|left, right| left.name < right.name));
        for spec in TABLE {
            assert!(spec.subcommands.iter().all(|subcommand| subcommand.name.split_once('|').is_some_and(|(parent, _)| parent == spec.name)));
        }
    }
}
