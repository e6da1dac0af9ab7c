//! Commands that are run together: GETs, SETs without conditions, and DELs and UNLINKs of a single key; and memcached's `get`, `set` and `delete`, and `mg`,
//! `ms` and `md` with flags by which they do no more than these. Where a write waits for a device, MSETs are, too: those that follow one another, of whatever
//! clients, become one batch, which is all or nothing as each of them is.
//!
//! The store gets them together, from one client or from several ([`Namespace::act_many`]). It looks up keys before it writes. So replies are written as if all
//! went well, each when the next value is known or all is done, and then corrected where necessary: the digit of a DEL, and the reply to a command that failed.
//! Values found after that are looked up again.

use crate::calls::{Calls, SlowLog, clip};
use crate::client::Client;
use crate::command::{Arguments, Spec};
use crate::database::OVER;
use crate::executor::{Failure, expiry};
use crate::memcached::execute::Outcome;
use crate::memcached::item;
use crate::memcached::meta::{Flags, Plain, Told, Verb};
use crate::memcached::request::{Request, Storing};
use crate::reply::Reply;
use crate::resp::Span;
use crate::shared::{Counters, Shared};
use everleaf::{Act, Error, Found, Namespace};
use std::borrow::Cow;
use std::ops::{ControlFlow, Range};
use std::time::{Duration, Instant};

/// Commands given to the store at once.
const ACTS_AT_ONCE: usize = 1024;
/// Pairs of an MSET that is run together with others, and of all of these, and the bytes of all, approximately.
const PAIRS_MAX: usize = 256;
const PAIRS_AT_ONCE: usize = 4096;
const PAIR_BYTES_AT_ONCE: usize = 256 << 10;
/// Bytes of values in the replies to commands that are run together, approximately. Beyond that, other clients wait until those before them were answered.
const VALUES_AT_ONCE: usize = 4 << 20;

/// What a command does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Get,
    Set {
        /// In milliseconds since 1970; `None`: it does not expire.
        expiry_ms: Option<u64>,
    },
    Delete,
}

/// A command and its position in the input.
pub(crate) struct Place {
    pub(crate) kind: Kind,
    /// Start of its frame.
    pub(crate) frame: usize,
    key: Range<usize>,
    /// The value to set, if any. For memcached it is a range of the data made from the input.
    value: Range<usize>,
    /// The keys and values that an MSET sets, all or none, of which the first are `key` and `value`.
    pairs: Option<Box<[[Range<usize>; 2]]>>,
    /// Flags of a meta command.
    flags: Range<usize>,
    style: Style,
    /// The command, if it is one of Redis.
    spec: Option<&'static Spec>,
}

/// How a command is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Redis,
    Memcached {
        /// Whether the unique number of the version is shown.
        with_unique: bool,
        /// Whether writes get no reply.
        quiet: bool,
    },
    /// As the flags of the command say.
    Meta,
}

/// A client's commands to run, and its replies.
pub(crate) struct Part<'p> {
    input: &'p [u8],
    /// Data made from the input: the values of memcached.
    made: &'p [u8],
    places: &'p [Place],
    reply: &'p mut Reply,
    /// Size of the output beyond which no further value is added, except for the first command.
    output_size_max: usize,
    /// Start of each reply written so far.
    starts: Vec<usize>,
    /// Number of commands done.
    done: usize,
    /// Those that have failed.
    failed: Vec<usize>,
    client: Option<&'p Client>,
}

impl Place {
    /// The place of a command, if it is one that is run in groups. Its frame begins at `frame`. `shares_waits`: a write waits for a device.
    pub(crate) fn of(
        spec: &'static Spec,
        arguments: Arguments<'_>,
        spans: &[Span],
        frame: usize,
        shares_waits: bool,
        now_ms: impl FnOnce() -> u64,
    ) -> Option<Self> {
        // With a time that is over it removes the key, or is an error.
        let set_until = |time: usize, notation| expiry::time_to_come(arguments.at(time), notation, now_ms()).map(|at| Kind::Set { expiry_ms: Some(at) });
        let (kind, value) = match (spec.name, spans.len()) {
            ("get", 2) => (Kind::Get, None),
            ("set", 3) => (Kind::Set { expiry_ms: None }, Some(2)),
            ("set", 5) => (set_until(4, expiry::notation(arguments, 3)?)?, Some(2)),
            ("setex", 4) => (set_until(2, expiry::EX)?, Some(3)),
            ("psetex", 4) => (set_until(2, expiry::PX)?, Some(3)),
            ("del" | "unlink", 2) => (Kind::Delete, None),
            ("mset", count) if shares_waits && count % 2 == 1 && count <= 1 + 2 * PAIRS_MAX => (Kind::Set { expiry_ms: None }, Some(2)),
            _ => return None,
        };
        let place = |index: usize| {
            let range = spans[index].range();
            frame + range.start..frame + range.end
        };
        let pairs = (spec.name == "mset").then(|| (1..spans.len()).step_by(2).map(|key| [place(key), place(key + 1)]).collect());
        Some(Self { kind, frame, key: place(1), value: value.map_or(0..0, place), pairs, flags: 0..0, style: Style::Redis, spec: Some(spec) })
    }

    /// The keys and values that it sets, if it sets several.
    fn pairs<'i>(&self, input: &'i [u8]) -> impl Iterator<Item = (&'i [u8], &'i [u8])> {
        self.pairs.iter().flatten().map(|[key, value]| (&input[key.clone()], &input[value.clone()]))
    }

    /// Counts the setting of its key, or keys.
    fn count_set(&self, counters: &Counters) {
        counters.changes.add(self.pairs.as_ref().map_or(1, |pairs| pairs.len()) as u64);
        counters.stores.add((!matches!(self.style, Style::Redis)).into());
    }

    /// Counts the deletion of its key, if that was `found`.
    fn count_delete(&self, found: bool, counters: &Counters) {
        counters.changes.add(found.into());
        if !matches!(self.style, Style::Redis) {
            counters.delete(found);
        }
    }

    /// The place of a request of memcached that begins at `frame`. Its value is appended to `made`.
    pub(crate) fn of_item(single: &Single<'_>, input: &[u8], frame: usize, made: &mut Vec<u8>) -> Self {
        let place = |range: &Range<usize>| frame + range.start..frame + range.end;
        let start = made.len();
        if let Some((flags, data)) = single.item {
            item::make(flags, &input[place(data)], made);
        }
        Self {
            kind: single.kind,
            frame,
            key: place(single.key),
            value: start..made.len(),
            pairs: None,
            flags: place(&single.flags),
            style: single.style,
            spec: None,
        }
    }

    fn act<'i>(&self, input: &'i [u8], made: &'i [u8]) -> (&'i [u8], Act<'i>) {
        let value = &(if self.style == Style::Redis { input } else { made })[self.value.clone()];
        let act = match self.kind {
            Kind::Get => Act::Get,
            Kind::Set { expiry_ms: None } => Act::Put(value),
            Kind::Set { expiry_ms: Some(expiry_ms) } => Act::PutUntil(value, expiry_ms),
            Kind::Delete => Act::Delete,
        };
        (&input[self.key.clone()], act)
    }
}

impl Place {
    /// Replies that it is set.
    fn set(&self, input: &[u8], reply: &mut Reply) {
        match self.style {
            Style::Redis => reply.ok(),
            Style::Memcached { quiet: true, .. } => {}
            Style::Memcached { .. } => reply.raw(b"STORED\r\n"),
            Style::Meta => self.told(input, Outcome::Done, None).write(&mut reply.out),
        }
    }

    /// The reply that the key is removed; `found`: it was there.
    fn deleted(&self, input: &[u8], found: bool) -> Cow<'static, [u8]> {
        Cow::Borrowed(match (self.style, found) {
            (Style::Redis, true) => b":1\r\n",
            (Style::Redis, false) => b":0\r\n",
            (Style::Memcached { quiet: true, .. }, _) => b"",
            (Style::Memcached { .. }, true) => b"DELETED\r\n",
            (Style::Memcached { .. }, false) => b"NOT_FOUND\r\n",
            (Style::Meta, found) => {
                let mut told = Vec::new();
                self.told(input, if found { Outcome::Done } else { Outcome::NotFound }, None).write(&mut told);
                return Cow::Owned(told);
            }
        })
    }

    /// Replies with the value that `append` appends, if there is one; returns whether there is.
    fn value(&self, input: &[u8], reply: &mut Reply, append: impl FnOnce(&mut Vec<u8>) -> Result<Option<usize>, Error>) -> Result<bool, Error> {
        match self.style {
            Style::Redis => reply.bulk_with(append),
            Style::Memcached { with_unique, .. } => {
                let is_there = item::show(&mut reply.out, &input[self.key.clone()], with_unique, append)?;
                reply.raw(b"END\r\n");
                Ok(is_there)
            }
            Style::Meta => {
                let mut value = Vec::new();
                let is_there = append(&mut value)?.is_some();
                let (outcome, value) = if is_there { (Outcome::Done, Some(&*value)) } else { (Outcome::NotFound, None) };
                self.told(input, outcome, value).write(&mut reply.out);
                Ok(is_there)
            }
        }
    }

    /// The reply to a meta command.
    fn told<'t>(&self, input: &'t [u8], outcome: Outcome, value: Option<&'t [u8]>) -> Told<'t> {
        let verb = match self.kind {
            Kind::Get => Verb::Get,
            Kind::Set { .. } => Verb::Set,
            Kind::Delete => Verb::Delete,
        };
        Told { verb, outcome, key: &input[self.key.clone()], flags: Flags(&input[self.flags.clone()]), value, unique: None, left_ms: None }
    }
}

/// A request of memcached that is run in groups.
pub(crate) struct Single<'r> {
    kind: Kind,
    key: &'r Range<usize>,
    /// Flags and data to set, if any.
    item: Option<(u32, &'r Range<usize>)>,
    /// The flags of a meta command.
    flags: Range<usize>,
    style: Style,
}

impl<'r> Single<'r> {
    /// The group command that a request amounts to: a `get` of one key, a `set` that is not over from the start, a `delete`, or an equivalent meta command.
    pub(crate) fn of(request: &'r Request, quiet: bool, frame: &[u8], now_ms: impl FnOnce() -> u64) -> Option<Self> {
        let set = |exptime| match item::expiry_ms(exptime, now_ms()) {
            Some(OVER) => None,
            expiry_ms => Some(Kind::Set { expiry_ms }),
        };
        let style = |with_unique| Style::Memcached { with_unique, quiet };
        let (kind, key, item, flags, style) = match request {
            Request::Get { keys, with_unique, exptime: None } if !frame[keys.clone()].contains(&b' ') => (Kind::Get, keys, None, 0..0, style(*with_unique)),
            Request::Store { how: Storing::Set, unique: None, key, flags, exptime, data } => (set(*exptime)?, key, Some((*flags, data)), 0..0, style(false)),
            Request::Delete { key } => (Kind::Delete, key, None, 0..0, style(false)),
            Request::Meta(meta) => {
                let (kind, item) = match meta.plain(frame)? {
                    Plain::Get => (Kind::Get, None),
                    Plain::Set { flags, exptime } => (set(exptime)?, Some((flags, &meta.data))),
                    Plain::Delete => (Kind::Delete, None),
                };
                (kind, &meta.key, item, meta.flags.clone(), Style::Meta)
            }
            _ => return None,
        };
        Some(Self { kind, key, item, flags, style })
    }
}

impl Style {
    fn failed(self, reply: &mut Reply, error: Error) {
        match self {
            Self::Redis => Failure::from(error).write(reply),
            Self::Memcached { quiet: true, .. } => {}
            Self::Memcached { .. } | Self::Meta => item::refuse(&mut reply.out, &error),
        }
    }
}

impl<'p> Part<'p> {
    pub(crate) fn new(input: &'p [u8], made: &'p [u8], places: &'p [Place], reply: &'p mut Reply, output_size_max: usize) -> Self {
        Self { input, made, places, reply, output_size_max, starts: Vec::new(), done: 0, failed: Vec::new(), client: None }
    }

    /// The same, as commands of this client.
    pub(crate) fn of(self, client: &'p Client) -> Self {
        Self { client: Some(client), ..self }
    }

    /// Counts the commands that are done, of which each took so long.
    fn count(&self, calls: &Calls, each: Duration) {
        let Some(client) = self.client else { return };
        let spec_of = |number: usize| self.places[number].spec;
        (0..self.done).filter_map(spec_of).for_each(|spec| calls.count(client.thread, spec, 1, each));
        self.failed.iter().filter_map(|number| spec_of(*number)).for_each(|spec| calls.fail(client.thread, spec));
    }

    /// Notes the first command that is done, if it is one of Redis, for all of `done`, if they took long together. Returns `None` if there is none.
    fn note(&self, slow: &SlowLog, took: Duration, done: usize) -> Option<()> {
        let place = self.places[..self.done].first()?;
        let (client, spec) = (self.client?, place.spec?);
        slow.note(client, spec, took, || {
            let (key, act) = place.act(self.input, self.made);
            let value = if let Act::Put(value) | Act::PutUntil(value, _) = act { Some(value) } else { None };
            let others = (done > 1).then(|| format!("... ({done} commands together)").into_bytes());
            [spec.name.as_bytes(), key].into_iter().chain(value).map(clip).chain(others).collect()
        });
        Some(())
    }

    fn acts(&self) -> impl Iterator<Item = (&'p [u8], Act<'p>)> + use<'p> {
        let (input, made) = (self.input, self.made);
        self.places.iter().map(move |place| place.act(input, made))
    }

    /// Number of commands done. The others had no room for their replies.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// Replies to the writes that have no reply yet, up to the command `number`, as if they were done. Reads were visited.
    fn foretell(&mut self, number: usize) {
        for place in &self.places[self.starts.len().min(number)..number] {
            self.starts.push(self.reply.out.len());
            match place.kind {
                Kind::Get => {}
                Kind::Set { .. } => place.set(self.input, self.reply),
                Kind::Delete => self.reply.raw(&place.deleted(self.input, false)),
            }
        }
    }

    /// Removes the replies from that to the command `number` on.
    fn take_back(&mut self, number: usize) {
        if let Some(start) = self.starts.get(number) {
            self.reply.out.truncate(*start);
            self.starts.truncate(number);
        }
    }

    /// Answers a GET, if there is room.
    fn visit(&mut self, number: usize, found: Option<Found<'_>>) -> Result<ControlFlow<()>, Error> {
        self.take_back(number);
        self.foretell(number);
        if number > 0 && self.reply.out.len() + found.as_ref().map_or(0, Found::size) > self.output_size_max {
            return Ok(ControlFlow::Break(()));
        }
        let start = self.reply.out.len();
        self.starts.push(start);
        let answered = self.places[number].value(self.input, self.reply, |out| found.map(|found| found.copy_to(out)).transpose());
        answered.map(|_| ControlFlow::Continue(())).inspect_err(|_| self.take_back(number))
    }

    /// Notes that the next command is done; `found`: the key was there.
    fn accept(&mut self, found: bool, counters: &Counters) {
        let number = self.done;
        self.foretell(number + 1);
        match self.places[number].kind {
            Kind::Get => counters.lookup(found),
            Kind::Set { .. } => self.places[number].count_set(counters),
            Kind::Delete => {
                self.places[number].count_delete(found, counters);
                if found {
                    self.rewrite(number, &self.places[number].deleted(self.input, true));
                }
            }
        }
        self.done += 1;
    }

    /// Replaces the reply to the command `number`.
    fn rewrite(&mut self, number: usize, told: &[u8]) {
        let (start, end) = (self.starts[number], self.starts.get(number + 1).copied().unwrap_or(self.reply.out.len()));
        if told.len() != end - start {
            self.starts[number + 1..].iter_mut().for_each(|later| *later = *later - (end - start) + told.len());
        }
        self.reply.out.splice(start..end, told.iter().copied());
    }

    /// Notes that the next command has failed, though later commands may already be done.
    fn refuse(&mut self, error: Error, counters: &Counters) {
        let number = self.done;
        self.foretell(number + 1);
        let mut told = Reply::new(self.reply.protocol);
        counters.fail_with(&error);
        self.places[number].style.failed(&mut told, error);
        self.rewrite(number, &told.out);
        self.failed.push(number);
        self.done += 1;
    }

    /// Runs the only command, without the means to correct replies.
    fn run_alone(&mut self, place: &Place, database: &Namespace, counters: &Counters) {
        let (start, input) = (self.reply.out.len(), self.input);
        let set = |outcome: Result<(), Error>, reply: &mut Reply| {
            outcome.map(|()| {
                place.count_set(counters);
                place.set(input, reply);
            })
        };
        let outcome = match place.act(input, self.made) {
            (key, Act::Get) => place.value(input, self.reply, |out| database.get_into(key, out)).map(|found| counters.lookup(found)),
            (key, Act::Put(value)) => set(database.put(key, value), self.reply),
            (key, Act::PutUntil(value, expiry_ms)) => set(database.put_until(key, value, expiry_ms), self.reply),
            (key, Act::Delete) => database.delete(key).map(|found| {
                place.count_delete(found, counters);
                self.reply.raw(&place.deleted(input, found));
            }),
        };
        if let Err(error) = outcome {
            self.reply.out.truncate(start);
            self.failed.push(0);
            counters.fail_with(&error);
            place.style.failed(self.reply, error);
        }
        self.done = 1;
    }
}

/// [`run_together`], and notes how long it took.
pub(crate) fn run_for_clients(server: &Shared, database: usize, counters: &Counters, parts: &mut [Part<'_>]) -> usize {
    let begun = Instant::now();
    let count = run_together(server.namespace(database), counters, parts);
    let (took, done) = (begun.elapsed(), parts.iter().map(Part::done).sum::<usize>());
    let each = took / u32::try_from(done).unwrap_or(u32::MAX).max(1);
    for part in &*parts {
        part.count(&server.calls, each);
    }
    let _ = parts.iter().find_map(|part| part.note(&server.calls.slow, took, done));
    count
}

/// Runs the first of these MSETs, as many as make a batch, and returns the outcome of each. If the batch fails, each is tried on its own.
fn set_all(database: &Namespace, parts: &[Part<'_>], owners: impl Iterator<Item = (usize, usize)>) -> Vec<Result<(), Error>> {
    let (mut pairs, mut ends, mut size) = (Vec::new(), Vec::new(), 0);
    for (part, number) in owners {
        let Part { input, places, .. } = &parts[part];
        if !ends.is_empty() && (pairs.len() >= PAIRS_AT_ONCE || size >= PAIR_BYTES_AT_ONCE) {
            break;
        }
        pairs.extend(places[number].pairs(input).inspect(|(key, value)| size += key.len() + value.len()));
        ends.push(pairs.len());
    }
    match database.put_together(&pairs) {
        Err(error) if ends.len() == 1 => vec![Err(error)],
        Err(_) => (0..ends.len()).map(|at| database.put_together(&pairs[at.checked_sub(1).map_or(0, |before| ends[before])..ends[at]])).collect(),
        Ok(()) => ends.iter().map(|_| Ok(())).collect(),
    }
}

/// Runs the commands of `parts`, each on its own, as if one after the other; returns for how many parts. Of the other parts no command is done, because many
/// values are to be sent first.
pub(crate) fn run_together(database: &Namespace, counters: &Counters, parts: &mut [Part<'_>]) -> usize {
    if let [part] = parts
        && let [place] = part.places
        && place.pairs.is_none()
    {
        part.run_alone(place, database, counters);
        counters.commands.add(1);
        return 1;
    }
    let acts: Vec<_> = parts.iter().flat_map(Part::acts).collect();
    let owners: Vec<_> = parts.iter().enumerate().flat_map(|(part, Part { places, .. })| (0..places.len()).map(move |number| (part, number))).collect();
    let mut found = Vec::with_capacity(acts.len().min(ACTS_AT_ONCE));
    let (mut at, mut at_once, mut is_enough) = (0, ACTS_AT_ONCE, false);
    // How many values were counted, and their size: after a failed attempt they may be found again.
    let (mut counted, mut size) = (0, 0);
    while at < acts.len() && !is_enough {
        let sets_all = |(part, number): &(usize, usize)| parts[*part].places[*number].pairs.is_some();
        let singles = owners[at..].iter().position(sets_all).unwrap_or(acts.len() - at);
        if singles == 0 {
            let outcomes = set_all(database, parts, owners[at..].iter().copied().take_while(sets_all));
            for outcome in outcomes {
                let (part, _) = owners[at];
                match outcome {
                    Ok(()) => parts[part].accept(false, counters),
                    Err(error) => parts[part].refuse(error, counters),
                }
                at += 1;
            }
            continue;
        }
        let next = &acts[at..at + singles.min(at_once)];
        let outcome = database.act_many(next, &mut found, |number, found| {
            if at + number >= counted {
                size += found.as_ref().map_or(0, Found::size);
                counted = at + number + 1;
            }
            is_enough = at + number > 0 && size > VALUES_AT_ONCE;
            if is_enough {
                return Ok(ControlFlow::Break(()));
            }
            let (part, number) = owners[at + number];
            parts[part].visit(number, found)
        });
        let (was_at, was_whole) = (at, found.len() == next.len());
        at += found.len();
        for (found, (part, _)) in found.drain(..).zip(&owners[was_at..]) {
            match found {
                Ok(found) => parts[*part].accept(found, counters),
                Err(error) => parts[*part].refuse(error, counters),
            }
        }
        match outcome {
            // The next command may fail, too: if many fail, or find no room, none of them is tried often.
            Err(error) => {
                let is_by_itself = matches!(error, Error::KeyTooLong { .. } | Error::ValueTooLong { .. });
                parts[owners[at].0].refuse(error, counters);
                (at, at_once, is_enough) = (at + 1, if is_by_itself { at_once } else { 1 }, false);
            }
            Ok(()) if was_whole => (at_once, is_enough) = ((2 * at_once).min(ACTS_AT_ONCE), false),
            Ok(()) if is_enough => {}
            // The output of that client is full; the output of others is not.
            Ok(()) => {
                let part = &parts[owners[at].0];
                at += part.places.len() - part.done;
            }
        }
    }
    for part in parts.iter_mut() {
        part.take_back(part.done);
        counters.commands.add(part.done as u64);
    }
    parts.iter().position(|part| part.done == 0 && !part.places.is_empty()).unwrap_or(parts.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use everleaf::{Options, Store};

    const SET: Kind = Kind::Set { expiry_ms: None };

    /// Commands, each with a key of one letter that is also its value, and the input that contains them.
    fn commands(of: &[(Kind, u8)]) -> (Vec<u8>, Vec<Place>) {
        let place = |(at, &(kind, _)): (usize, &(Kind, u8))| Place {
            kind,
            frame: at,
            key: at..at + 1,
            value: at..at + 1,
            pairs: None,
            flags: 0..0,
            style: Style::Redis,
            spec: None,
        };
        (of.iter().map(|(_, key)| *key).collect(), of.iter().enumerate().map(place).collect())
    }

    fn database() -> (Store, Namespace) {
        let store = Store::anonymous(Options { size_max: 64 << 20, ..Options::default() }).unwrap();
        let database = store.namespace("0").unwrap();
        (store, database)
    }

    /// All replies of all clients were made before one was sent.
    #[test]
    fn clients_wait_behind_many_values() {
        const SIZE: usize = VALUES_AT_ONCE / 2 - 1;
        let (_store, database) = database();
        database.put(b"l", &vec![b'v'; SIZE]).unwrap();
        let counters = Counters::default();
        let clients: Vec<_> = (b'a'..b'e').map(|own| commands(&[(Kind::Get, b'l'), (SET, own)])).collect();
        let mut replies: Vec<_> = clients.iter().map(|_| Reply::default()).collect();
        let (mut rest, mut counts) = (0, Vec::new());
        while rest < clients.len() {
            let waiting = clients.iter().zip(&mut replies).skip(rest);
            let mut parts: Vec<_> = waiting.map(|((input, places), reply)| Part::new(input, &[], places, reply, usize::MAX)).collect();
            let count = run_together(&database, &counters, &mut parts);
            assert!(parts[..count].iter().all(|part| part.done() == 2) && parts[count..].iter().all(|part| part.done() == 0 && part.reply.out.is_empty()));
            rest += count;
            counts.push(count);
            assert_eq!(database.count(), 1 + rest as u64);
        }
        assert_eq!(counts, [2, 2]);
        assert!(replies.iter().all(|reply| reply.out.len() == format!("${SIZE}\r\n\r\n+OK\r\n").len() + SIZE));
    }

    /// Replies that a failed attempt had foretold to clients that came to wait were sent to them, besides their proper replies.
    #[test]
    fn clients_of_a_full_database_wait_behind_many_values() {
        const SIZE: usize = VALUES_AT_ONCE / 64 - 1;
        let (_store, database) = database();
        database.put(b"l", &vec![b'v'; SIZE]).unwrap();
        for size in [SIZE, 1 << 12, 500, 100, 0] {
            (0..1 << 16).find(|n: &u32| database.put(&[&size.to_le_bytes()[..], &n.to_le_bytes()].concat(), &vec![0; size]).is_err()).expect("a full pool");
        }
        let counters = Counters::default();
        let clients: Vec<_> = (128..228).map(|own| commands(&[(Kind::Get, b'l'), (SET, own)])).collect();
        let mut replies: Vec<_> = clients.iter().map(|_| (Reply::default(), 0)).collect();
        while replies.iter().any(|(_, done)| *done < 2) {
            let waiting = clients.iter().zip(&mut replies).filter(|(_, (_, done))| *done < 2);
            let (mut parts, dones): (Vec<_>, Vec<_>) =
                waiting.map(|((input, places), (reply, done))| (Part::new(input, &[], &places[*done..], reply, usize::MAX), done)).unzip();
            assert!(run_together(&database, &counters, &mut parts) > 0);
            dones.into_iter().zip(&parts).for_each(|(done, part)| *done += part.done());
        }
        assert_eq!((counters.errors.get(), counters.commands.get()), (100, 200), "each SET is refused, and each GET is done, once");
        for (reply, _) in replies {
            let text = String::from_utf8(reply.out).unwrap();
            assert!(text.starts_with('$') && text.lines().count() == 3, "{:?}", text.lines().map(|line| &line[..line.len().min(40)]).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_has_failed_is_answered_in_its_place() {
        let (input, places) = commands(&[(SET, b'a'), (Kind::Delete, b'b'), (Kind::Get, b'c'), (Kind::Delete, b'd')]);
        let (mut reply, counters) = (Reply::default(), Counters::default());
        let mut part = Part::new(&input, &[], &places, &mut reply, usize::MAX);
        assert!(part.visit(2, None).unwrap().is_continue());
        part.accept(false, &counters);
        part.refuse(Error::KeyTooLong { size: 70_000 }, &counters);
        part.accept(false, &counters);
        part.accept(true, &counters);
        let text = String::from_utf8(reply.out).unwrap();
        let lines: Vec<_> = text.split("\r\n").collect();
        assert!(matches!(lines[..], ["+OK", refusal, "$-1", ":1", ""] if refusal.starts_with("-ERR key of 70000 bytes")), "{text}");
        assert_eq!((counters.errors.get(), counters.changes.get()), (1, 2));
    }

    /// One command alone is answered as it would be among others.
    #[test]
    fn a_command_alone_is_answered_like_others() {
        let (_store, database) = database();
        let counters = Counters::default();
        let kinds = [Kind::Get, Kind::Delete, SET, Kind::Get, Kind::Delete, Kind::Get];
        let run = |of: &[(Kind, u8)], reply: &mut Reply| {
            let (input, places) = commands(of);
            assert_eq!(run_together(&database, &counters, &mut [Part::new(&input, &[], &places, reply, usize::MAX)]), 1);
        };
        let (mut alone, mut among) = (Reply::default(), Reply::default());
        kinds.iter().for_each(|kind| run(&[(*kind, b'k')], &mut alone));
        run(&kinds.map(|kind| (kind, b'k')), &mut among);
        assert_eq!(String::from_utf8(alone.out).unwrap(), "$-1\r\n:0\r\n+OK\r\n$1\r\nk\r\n:1\r\n$-1\r\n");
        assert_eq!(String::from_utf8(among.out).unwrap(), "$-1\r\n:0\r\n+OK\r\n$1\r\nk\r\n:1\r\n$-1\r\n");
        assert_eq!((counters.commands.get(), counters.changes.get()), (12, 4));
    }
}
