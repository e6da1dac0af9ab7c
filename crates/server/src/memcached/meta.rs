//! Meta commands: a verb, a key, and one-letter flags, some with an argument, which say what to do and what to show.
//!
//! ```text
//! mg <key> <flags>*\r\n                   look at an item      HD <flags>* | VA <size> <flags>*\r\n<data> | EN
//! ms <key> <size> <flags>*\r\n<data>\r\n  store it             HD | NS not stored | EX another version | NF absent
//! md <key> <flags>*\r\n                   delete it            HD | EX | NF
//! ma <key> <flags>*\r\n                   count with it        HD | VA | EX | NF
//! ```
//!
//! | flag | of | |
//! |---|---|---|
//! | `b` | all | the key is in base64, and is so shown, with a `b` behind it |
//! | `k`, `O<word>` | all | show the key, the word |
//! | `q` | all | no reply where all is as it mostly is: `EN` of `mg`, and what the others have done |
//! | `c`, `f`, `s`, `t`, `v` | `mg`; `c` of `ms`; `c`, `t`, `v` of `ma` | show what stands for the version, flags, size, seconds left (-1: no end), data |
//! | `T<n>` | `mg`, `ms`, `ma` | when it is to expire from now on |
//! | `C<n>` | what writes | only this version |
//! | `F<n>`, `M<mode>` | `ms` | flags; how: `S`et, `A`ppend, `P`repend, `R`eplace, add where there is nothing (`E`) |
//! | `N<n>` | `ms`, `ma` | make an item that is absent, which expires so |
//! | `D<n>`, `J<n>`, `M<mode>` | `ma` | by how much, with what a new one begins, and whether up (`I`, `+`) or down (`D`, `-`) |
//!
//! Flags of other verbs, and hints, have no effect. Flags whose function is missing are refused: stale items, access statistics, chosen versions.

use super::execute::{Asked, Counting, Outcome, Shown, Stored, touched};
use super::item::{expiry_ms, parts, unique};
use super::request::{BAD_LINE, Request, Storing, WithData, Words, data_size, key, signed, unsigned, words};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use everleaf::{Change, Entry, Error};
use std::borrow::Cow;
use std::ops::Range;

const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
const BAD_KEY: &str = "CLIENT_ERROR error decoding key";
const DUPLICATE: &str = "CLIENT_ERROR duplicate flag";
const INVALID: &str = "CLIENT_ERROR invalid flag";
const UNSUPPORTED: &str = "CLIENT_ERROR unsupported flag";
const OPAQUE_TOO_LONG: &str = "CLIENT_ERROR opaque token too long";
const OPAQUE_SIZE_MAX: usize = 31;
/// Letters that have a meaning with some verb.
const KNOWN: &[u8] = b"bkOqcfstvTCFMNDJSuPL";
/// Letters whose function is missing here.
const MISSING: &[u8] = b"EIRhlx";

/// A meta command. Ranges count from the first byte of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The verb.
    pub verb: Verb,
    /// Position of the key.
    pub key: Range<usize>,
    /// Position of the flags, which were checked for the verb.
    pub flags: Range<usize>,
    /// Position of the data, for `ms`.
    pub data: Range<usize>,
}

/// The verb of a meta command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `mg`.
    Get,
    /// `ms`.
    Set,
    /// `md`.
    Delete,
    /// `ma`.
    Count,
}

impl Verb {
    /// Letters of its flags.
    fn flags(self) -> &'static [u8] {
        match self {
            Self::Get => b"bkOqcfstvT",
            Self::Set => b"bkOqcTCFMN",
            Self::Delete => b"bkOqC",
            Self::Count => b"bkOqctvTCNDJM",
        }
    }

    /// Checks that the verb has this flag, with such an argument.
    fn check(self, letter: u8, token: &[u8]) -> Result<(), &'static str> {
        if !self.flags().contains(&letter) {
            let is_missing = MISSING.contains(&letter) || (self == Self::Get && letter == b'N');
            return if is_missing {
                Err(UNSUPPORTED)
            } else if KNOWN.contains(&letter) {
                Ok(())
            } else {
                Err(INVALID)
            };
        }
        let is_sound = match letter {
            b'T' | b'N' => signed(token).is_some(),
            b'C' | b'D' | b'J' => unsigned(token).is_some(),
            b'F' => unsigned(token).is_some_and(|flags| u32::try_from(flags).is_ok()),
            b'M' if self == Self::Set => storing(token).is_some(),
            b'M' => is_down(token).is_some(),
            b'O' if token.len() > OPAQUE_SIZE_MAX => return Err(OPAQUE_TOO_LONG),
            b'O' => true,
            _ => token.is_empty(),
        };
        if is_sound { Ok(()) } else { Err(BAD_TOKEN) }
    }
}

fn storing(mode: &[u8]) -> Option<Storing> {
    Some(match mode {
        b"S" | b"s" => Storing::Set,
        b"E" | b"e" => Storing::Add,
        b"R" | b"r" => Storing::Replace,
        b"A" | b"a" => Storing::Append,
        b"P" | b"p" => Storing::Prepend,
        _ => return None,
    })
}

fn is_down(mode: &[u8]) -> Option<bool> {
    match mode {
        b"I" | b"i" | b"+" => Some(false),
        b"D" | b"d" | b"-" => Some(true),
        _ => None,
    }
}

/// Parses the words after `ms`; the line has `size` bytes.
pub(super) fn store(line: &[u8], mut words: Words<'_>, size: usize) -> WithData {
    let name = words.next().ok_or("ERROR")?;
    let data_size = words.next().ok_or(BAD_LINE).and_then(|word| data_size(&line[word]))?;
    let data = size..size.saturating_add(data_size);
    Ok((data_size, key(&mut std::iter::once(name)).and_then(|key| command(Verb::Set, key, line, words, data))))
}

/// Parses the words after the other verbs.
pub(super) fn without_data(verb: Verb, line: &[u8], mut words: Words<'_>) -> Result<Request, &'static str> {
    let key = key(&mut words)?;
    command(verb, key, line, words, 0..0)
}

fn command(verb: Verb, key: Range<usize>, line: &[u8], words: Words<'_>, data: Range<usize>) -> Result<Request, &'static str> {
    let (mut seen, mut start) = (0_u128, line.len());
    for word in words {
        start = start.min(word.start);
        let (&letter, token) = line[word].split_first().ok_or(BAD_LINE)?;
        verb.check(letter, token)?;
        // Flag letters are ASCII, or they would not have passed.
        if seen >> letter & 1 == 1 {
            return Err(DUPLICATE);
        }
        seen |= 1 << letter;
    }
    Ok(Request::Meta(Meta { verb, key, flags: start..line.len(), data }))
}

/// A meta command equivalent to `get`, `set` or `delete`: its key is as it was sent, and it shows nothing that these do not know.
pub(crate) enum Plain {
    Get,
    Set { flags: u32, exptime: i64 },
    Delete,
}

impl Meta {
    /// The plain command that it is equivalent to, if any; `frame` is the request.
    pub(crate) fn plain(&self, frame: &[u8]) -> Option<Plain> {
        let flags = Flags(&frame[self.flags.clone()]);
        let has_any = |letters: &[u8]| letters.iter().any(|letter| flags.has(*letter));
        match self.verb {
            Verb::Get if !has_any(b"btT") => Some(Plain::Get),
            Verb::Set if !has_any(b"bcC") && flags.how() == Storing::Set => {
                Some(Plain::Set { flags: flags.client_flags(), exptime: flags.exptime(b'T').unwrap_or(0) })
            }
            Verb::Delete if !has_any(b"bC") => Some(Plain::Delete),
            _ => None,
        }
    }
}

/// The reply to a meta command.
#[derive(Clone, Copy)]
pub(crate) struct Told<'t> {
    pub(crate) verb: Verb,
    pub(crate) outcome: Outcome,
    /// As sent.
    pub(crate) key: &'t [u8],
    pub(crate) flags: Flags<'t>,
    /// The item's value, if it may be shown.
    pub(crate) value: Option<&'t [u8]>,
    /// The version's unique number, where the value is not at hand.
    pub(crate) unique: Option<u64>,
    /// Milliseconds until the item expires; the inner `None`: it does not.
    pub(crate) left_ms: Option<Option<u64>>,
}

impl Told<'_> {
    /// Writes the reply, unless none is wanted.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        let Self { verb, outcome, key, flags, value, .. } = self;
        let writes = verb != Verb::Get;
        if flags.has(b'q') && outcome == if writes { Outcome::Done } else { Outcome::NotFound } {
            return;
        }
        let data = value.filter(|_| flags.has(b'v')).map(|value| parts(value).1);
        match (outcome, data) {
            (Outcome::Done, Some(data)) => out.extend_from_slice(format!("VA {}", data.len()).as_bytes()),
            (Outcome::Done, None) => out.extend_from_slice(b"HD"),
            (Outcome::NotStored, _) => out.extend_from_slice(b"NS"),
            (Outcome::Exists, _) => out.extend_from_slice(b"EX"),
            (Outcome::NotFound, _) => out.extend_from_slice(if writes { b"NF" } else { b"EN" }),
            (Outcome::Refused(why), _) => return out.extend_from_slice(format!("{why}\r\n").as_bytes()),
        }
        for (letter, token) in flags.all() {
            let text = match letter {
                b'k' => Some([key, if flags.has(b'b') { b" b" } else { b"" }].concat()),
                b'O' => Some(token.to_vec()),
                b'c' => self.unique.or_else(|| value.map(unique)).map(digits),
                b'f' => value.map(|value| digits(parts(value).0.into())),
                b's' => value.map(|value| digits(parts(value).1.len() as u64)),
                b't' => self.left_ms.map(|left| left.map_or(b"-1".to_vec(), |left| digits(left.div_ceil(1000)))),
                _ => None,
            };
            if let Some(text) = text {
                out.extend_from_slice(&[b' ', letter]);
                out.extend_from_slice(&text);
            }
        }
        out.extend_from_slice(b"\r\n");
        if let Some(data) = data {
            out.extend_from_slice(data);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// The flags of a command.
#[derive(Clone, Copy)]
pub(crate) struct Flags<'f>(pub(crate) &'f [u8]);

impl<'f> Flags<'f> {
    fn all(self) -> impl Iterator<Item = (u8, &'f [u8])> {
        words(self.0).filter_map(|word| word.split_first().map(|(letter, token)| (*letter, token)))
    }

    fn token(self, wanted: u8) -> Option<&'f [u8]> {
        self.all().find(|(letter, _)| *letter == wanted).map(|(_, token)| token)
    }

    fn has(self, letter: u8) -> bool {
        self.token(letter).is_some()
    }

    fn number(self, letter: u8) -> Option<u64> {
        self.token(letter).and_then(unsigned)
    }

    /// The client's flags for the item.
    fn client_flags(self) -> u32 {
        self.number(b'F').unwrap_or(0) as u32
    }

    /// How to store.
    fn how(self) -> Storing {
        self.token(b'M').and_then(storing).unwrap_or(Storing::Set)
    }

    fn exptime(self, letter: u8) -> Option<i64> {
        self.token(letter).and_then(signed)
    }

    /// The expiry time that a flag gives.
    fn expiry_ms(self, letter: u8, now_ms: u64) -> Option<Option<u64>> {
        self.exptime(letter).map(|exptime| expiry_ms(exptime, now_ms))
    }
}

fn digits(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

impl Asked<'_> {
    /// Executes a meta command.
    pub(super) fn meta(&mut self, meta: &Meta) -> Result<(), Error> {
        let (sent, flags) = (self.bytes(&meta.key), Flags(self.bytes(&meta.flags)));
        let key = match flags.has(b'b').then(|| BASE64_STANDARD.decode(sent)) {
            Some(Ok(decoded)) => Cow::Owned(decoded),
            Some(Err(_)) => {
                self.say(BAD_KEY);
                return Ok(());
            }
            None => Cow::Borrowed(sent),
        };
        let mut version = None;
        let (outcome, shown) = match meta.verb {
            Verb::Get => self.look(&key, flags)?,
            Verb::Set => {
                let (outcome, unique) = self.meta_set(&key, flags, self.bytes(&meta.data))?;
                version = unique;
                (outcome, None)
            }
            Verb::Delete => (self.meta_delete(&key, flags)?, None),
            Verb::Count => self.meta_count(&key, flags)?,
        };
        let left_ms = shown.as_ref().map(|shown| shown.expiry_ms.map(|at| at.saturating_sub(self.now_ms())));
        let value = shown.as_ref().map(|shown| shown.value.as_slice());
        Told { verb: meta.verb, outcome, key: sent, flags, value, unique: version, left_ms }.write(self.out);
        Ok(())
    }

    fn look(&self, key: &[u8], flags: Flags<'_>) -> Result<(Outcome, Option<Shown>), Error> {
        let found = match flags.expiry_ms(b'T', self.now_ms()) {
            None => self.items().entry(key)?.map(|Entry { value, expiry_ms }| Shown { value, expiry_ms }),
            Some(expiry_ms) => {
                // Flags are obeyed in order: a value that is asked for before it is set is the old one.
                let is_told_first = flags.all().find(|(letter, _)| matches!(letter, b't' | b'T')).is_some_and(|(letter, _)| letter == b't');
                let mut shown = None;
                let show = |old: &Entry| shown = Some(Shown { value: old.value.clone(), expiry_ms: if is_told_first { old.expiry_ms } else { expiry_ms } });
                touched(self.items(), self.counters, key, expiry_ms, show)?;
                shown
            }
        };
        self.counters.lookup(found.is_some());
        Ok((if found.is_some() { Outcome::Done } else { Outcome::NotFound }, found))
    }

    /// Also returns the version's unique number, if it is to be shown.
    fn meta_set(&self, key: &[u8], flags: Flags<'_>, data: &[u8]) -> Result<(Outcome, Option<u64>), Error> {
        let (how, client_flags, tells_unique, now_ms) = (flags.how(), flags.client_flags(), flags.has(b'c'), self.now_ms());
        let store = |how, wanted, expiry_ms| self.store(&Stored { how, wanted, key, flags: client_flags, data, expiry_ms, tells_unique });
        let mut stored = store(how, flags.number(b'C'), flags.expiry_ms(b'T', now_ms).flatten())?;
        // Data appended to nothing begin an item, unless a version is required; if another client has begun one meanwhile, they are appended to that.
        if let Some(expiry_ms) = flags.expiry_ms(b'N', now_ms).filter(|_| matches!(how, Storing::Append | Storing::Prepend) && !flags.has(b'C')) {
            let mut begins = false;
            while stored.0 == Outcome::NotStored {
                begins = !begins;
                stored = store(if begins { Storing::Add } else { how }, None, expiry_ms)?;
            }
        }
        Ok(stored)
    }

    fn meta_delete(&self, key: &[u8], flags: Flags<'_>) -> Result<Outcome, Error> {
        let wanted = flags.number(b'C');
        let mut outcome = Outcome::Done;
        self.items().modify_entry(key, |entry| {
            outcome = match entry {
                None => Outcome::NotFound,
                Some(entry) if wanted.is_some_and(|wanted| unique(&entry.value) != wanted) => Outcome::Exists,
                Some(_) => Outcome::Done,
            };
            if outcome == Outcome::Done { Change::Delete } else { Change::Keep }
        })?;
        if let Some(found) = outcome.found() {
            self.counters.delete(found);
        }
        Ok(outcome)
    }

    fn meta_count(&self, key: &[u8], flags: Flags<'_>) -> Result<(Outcome, Option<Shown>), Error> {
        let now_ms = self.now_ms();
        self.count(
            key,
            &Counting {
                delta: flags.number(b'D').unwrap_or(1),
                down: flags.token(b'M').and_then(is_down).unwrap_or(false),
                wanted: flags.number(b'C'),
                initial: flags.expiry_ms(b'N', now_ms).map(|expiry_ms| (flags.number(b'J').unwrap_or(0), expiry_ms)),
                expiry_ms: flags.expiry_ms(b'T', now_ms),
            },
        )
    }
}
