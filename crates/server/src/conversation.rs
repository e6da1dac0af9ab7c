//! A conversation: what a client says and what it is answered, without the socket.
//!
//! 1. Replies come in the order of the commands.
//! 2. A slice of a conversation is bounded by the arguments it handles, the output it makes and the values it looks at, so that one client's pipeline does not
//!    keep the others waiting. As long as more waits for the client than a slice makes, there is no other: so a pipeline costs the memory of two slices, or of
//!    one reply, however slow its reader is. Who has not shown the password gets far less.
//! 3. Consecutive plain SETs of what was read at once are given to the store together, which makes them durable together: a pipeline pays for few fences. So
//!    are consecutive GETs, which wait for memory together. Before any other command runs, those that are waiting are run, and so are they when the slice
//!    ends; but where a write waits for a device, SETs that end a slice are held, to be run with those of other clients at the end of the event loop's turn: a
//!    wait for all. Nobody can tell the difference, except by the time.
//! 4. After MULTI commands are queued, and run by EXEC in one slice.

use crate::client::{Closing, Replies, Session};
use crate::command::{Arguments, Flags, Spec};
use crate::executor::{Call, Failure, Slice, execute, resolve};
use crate::reply::Reply;
use crate::resp::{FrameLimits, Parser, Progress, Span};
use crate::shared::{Counters, Shared};
use arrayvec::ArrayVec;
use everleaf::{Found, Namespace};
use std::ops::Range;

/// Arguments that a slice handles, about.
const SLICE_ARGUMENT_COUNT: usize = 4096;
/// Output that a slice makes, and values that it looks at, about, in bytes. So much output may wait for the client when another slice begins.
const SLICE_OUTPUT_SIZE: usize = 1 << 20;
/// The same, as long as the client owes a password.
const UNAUTHENTICATED_OUTPUT_SIZE: usize = 4 * 1024;
/// SETs or GETs of a client that are run together at most.
const GROUP_COUNT: usize = 64;
/// The same of SETs, where a write waits for a device.
const SHARED_GROUP_COUNT: usize = 256;
/// SETs of all clients that the store is given at once.
const SETS_AT_ONCE: usize = 1024;

/// Why a slice ended, or has not ended yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// All whole frames are answered; at least so many bytes are missing for the next.
    Input { missing: usize },
    /// There is more to do.
    Turn,
    /// SETs wait to be run with those of other clients.
    Held,
    /// No command will be run any more.
    End,
    /// A command has made more output than may wait.
    Overflow,
}

/// A client's side of the protocol.
pub(crate) struct Conversation {
    pub(crate) session: Session,
    pub(crate) reply: Reply,
    parser: Parser,
    held: Option<Held>,
}

/// SETs that are to be run with those of other clients. All of the slice's input stays where it is until then, and nothing is done for the client.
struct Held {
    places: Vec<Place>,
    /// Bytes that are done then, and why the slice stopped.
    end: (usize, Pause),
}

/// What a slice works with.
struct Work<'a> {
    server: &'a Shared,
    counters: &'a Counters,
    /// Size of the output at which the slice ends.
    output_size_max: usize,
    group: Group,
}

/// Plain SETs, or GETs, that wait to be run together.
struct Group {
    kind: Kind,
    places: ArrayVec<Place, SHARED_GROUP_COUNT>,
}

/// Commands that are run in groups.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Get,
    Set,
}

/// Where a command lies in the input.
#[derive(Clone)]
struct Place {
    /// Where its frame begins.
    frame: usize,
    key: Range<usize>,
    /// Of a GET: nothing.
    value: Range<usize>,
}

impl Work<'_> {
    /// Whether the commands that wait had better be run with those of other clients.
    fn is_to_be_held(&self) -> bool {
        self.server.shares_waits && self.group.kind == Kind::Set && !self.group.places.is_empty()
    }

    /// Whether no other command joins them.
    fn is_full(&self) -> bool {
        self.group.places.len() >= if self.is_to_be_held() { SHARED_GROUP_COUNT } else { GROUP_COUNT }
    }
}

impl Conversation {
    pub(crate) fn new(session: Session) -> Self {
        Self { session, reply: Reply::default(), parser: Parser::new(), held: None }
    }

    fn output_size(&self) -> usize {
        if self.session.authenticated { SLICE_OUTPUT_SIZE } else { UNAUTHENTICATED_OUTPUT_SIZE }
    }

    /// Whether the client is to take replies before it gets more.
    pub(crate) fn is_held_up(&self) -> bool {
        self.reply.waiting() > self.output_size()
    }

    /// Goes on with a command whose reply is short, though replies wait: a backup that nobody finishes stands in the way of others. Whether more is to be done.
    pub(crate) fn go_on_unread(&mut self, server: &Shared, counters: &Counters) -> bool {
        if !self.session.unfinished.as_ref().is_some_and(|unfinished| unfinished.is_awaited_by_others()) {
            return false;
        }
        let _working = server.gate.enter(self.session.client.thread);
        self.go_on(server, counters);
        self.session.unfinished.is_some()
    }

    /// Answers what `input` holds, for a slice; the number of bytes that are done, and why it stopped.
    pub(crate) fn advance(&mut self, server: &Shared, counters: &Counters, input: &mut [u8]) -> (usize, Pause) {
        let _working = server.gate.enter(self.session.client.thread);
        let group = Group { kind: Kind::Get, places: ArrayVec::new() };
        let mut work = Work { server, counters, output_size_max: self.reply.out.len() + self.output_size(), group };
        let (mut done, mut pause) = self.run_slice(&mut work, input);
        if work.is_to_be_held() {
            self.held = Some(Held { places: work.group.places.drain(..).collect(), end: (done, pause) });
            return (0, Pause::Held);
        }
        if let Some(rest) = self.run_group(&mut work, input) {
            self.parser.restart();
            (done, pause) = (rest, Pause::Turn);
        }
        let waiting = self.reply.waiting() + self.session.unfinished.as_ref().map_or(0, |unfinished| unfinished.size());
        // The longest reply may stand behind what waited when the slice began, and what the slice has made before.
        let waiting_max = server.config.limits.output_buffer_size_max.saturating_add(2 * self.output_size());
        (done, if waiting > waiting_max { Pause::Overflow } else { pause })
    }

    /// The database of the SETs that are held.
    pub(crate) fn held_database(&self) -> Option<usize> {
        self.held.is_some().then_some(self.session.database)
    }

    /// Keys and values of the SETs that are held, of which `input` is as it was.
    pub(crate) fn held_pairs<'i>(&self, input: &'i [u8]) -> impl Iterator<Item = (&'i [u8], &'i [u8])> {
        self.held.iter().flat_map(|held| &held.places).map(|place| place.pair(input))
    }

    /// Answers the SETs that were held; what [`Conversation::advance`] would have told without.
    pub(crate) fn answer_held(&mut self, counters: &Counters, outcomes: &mut impl Iterator<Item = Result<(), Failure>>) -> (usize, Pause) {
        let Some(Held { places, end }) = self.held.take() else { return (0, Pause::Turn) };
        counters.commands.add(places.len() as u64);
        outcomes.take(places.len()).for_each(|outcome| self.reply.ok_or(counters, outcome));
        end
    }

    /// Runs whole frames, until something says that the slice is over; a group may be left to be run.
    fn run_slice(&mut self, work: &mut Work<'_>, input: &mut [u8]) -> (usize, Pause) {
        let mut done = 0;
        let mut arguments_left = SLICE_ARGUMENT_COUNT;
        let looked_at_before = work.counters.looked_at.get();
        let limits = FrameLimits::with_bulk_size_max(work.server.config.limits.bulk_size_max);
        loop {
            if self.session.closing != Closing::No {
                return (done, Pause::End);
            }
            if self.session.unfinished.is_some() {
                self.go_on(work.server, work.counters);
                return (done, Pause::Turn);
            }
            let looked_at = work.counters.looked_at.get().wrapping_sub(looked_at_before) as usize;
            if arguments_left == 0 || self.reply.out.len() + looked_at >= work.output_size_max {
                return (done, Pause::Turn);
            }
            // An inline command is parsed only when nothing before it can have to be parsed again, for that unescapes it.
            if input.get(done).is_some_and(|&byte| byte != b'*')
                && let Some(rest) = self.run_group(work, input)
            {
                return (rest, Pause::Turn);
            }
            let limits = if self.session.authenticated { &limits } else { &FrameLimits::UNAUTHENTICATED };
            let size = match self.parser.parse(&mut input[done..], limits) {
                Ok(Progress::Frame { size }) => size,
                Ok(Progress::Incomplete { missing }) => return (done, Pause::Input { missing }),
                Err(error) => {
                    if let Some(rest) = self.run_group(work, input) {
                        return (rest, Pause::Turn);
                    }
                    self.reply.error_text(format_args!("ERR {error}"));
                    work.counters.errors.add(1);
                    self.session.closing = Closing::AfterReplies;
                    continue;
                }
            };
            let frame = done..done + size;
            let spans = self.parser.spans();
            arguments_left = arguments_left.saturating_sub(spans.len().max(1));
            if spans.is_empty() {
                done = frame.end;
                continue;
            }
            let resolved = resolve(Arguments::new(&input[frame.clone()], spans), &self.session);
            let kind = resolved
                .as_ref()
                .ok()
                .and_then(|spec| Kind::of(spec, spans.len()))
                .filter(|_| self.session.replies == Replies::On && self.session.queue.is_none());
            let is_full = work.is_full();
            if is_full && kind == Some(Kind::Set) && work.is_to_be_held() {
                return (done, Pause::Turn);
            }
            if (kind != Some(work.group.kind) || is_full)
                && let Some(rest) = self.run_group(work, input)
            {
                return (rest, Pause::Turn);
            }
            if let Some(kind) = kind {
                self.session.command = resolved.ok();
                work.group.push(kind, frame.start, self.parser.spans());
            } else {
                self.run(work.server, work.counters, &input[frame.clone()], resolved);
            }
            done = frame.end;
        }
    }

    fn run(&mut self, server: &Shared, counters: &Counters, frame: &[u8], resolved: Result<&'static Spec, Failure>) {
        let start = self.reply.out.len();
        let replies = self.session.replies;
        let arguments = Arguments::new(frame, self.parser.spans());
        match resolved {
            Ok(spec) if self.session.queue.is_some() && !spec.flags.contains(Flags::AT_ONCE) => self.enqueue(server, counters, spec, frame),
            Ok(spec) => {
                let databases = server.databases(counters);
                execute(&mut Call { server, databases, counters, session: &mut self.session, reply: &mut self.reply, arguments, spec });
            }
            // The beginning of an HTTP request: somebody makes a browser talk to us. What follows may be commands in its body.
            Err(_) if arguments.is(0, "post") || arguments.is(0, "host:") => self.session.closing = Closing::AfterReplies,
            // Whatever is wrong with an EXEC, it ends the transaction.
            Err(failure) if arguments.is(0, "exec") => {
                counters.errors.add(1);
                self.session.end_transaction();
                failure.of_exec().write(&mut self.reply);
            }
            Err(failure) => {
                counters.errors.add(1);
                failure.write(&mut self.reply);
                if let Some(queue) = &mut self.session.queue {
                    queue.break_off();
                }
            }
        }
        if replies != Replies::On && self.session.replies == replies && self.session.unfinished.is_none() {
            self.reply.out.truncate(start);
            if replies == Replies::SkipNext {
                self.session.replies = Replies::On;
            }
        }
    }

    /// Leaves a command to EXEC.
    fn enqueue(&mut self, server: &Shared, counters: &Counters, spec: &'static Spec, frame: &[u8]) {
        let Some(queue) = &mut self.session.queue else { return };
        queue.push(spec, frame, self.parser.spans());
        if queue.size() <= server.config.limits.query_buffer_size_max {
            self.reply.simple("QUEUED");
            return;
        }
        queue.break_off();
        counters.errors.add(1);
        Failure::fixed("ERR the transaction is longer than the query buffer may be; split it up").write(&mut self.reply);
    }

    /// Takes the next slice of the command that is not done.
    fn go_on(&mut self, server: &Shared, counters: &Counters) {
        let Some(mut unfinished) = self.session.unfinished.take() else { return };
        let start = self.reply.out.len();
        match unfinished.advance(server.databases(counters), counters) {
            Ok(Slice::More) => {
                self.session.unfinished = Some(unfinished);
                return;
            }
            Ok(Slice::Last) => unfinished.finish(&mut self.reply),
            Err(failure) => {
                counters.errors.add(1);
                failure.write(&mut self.reply);
            }
        }
        if self.session.replies != Replies::On {
            self.reply.out.truncate(start);
            if self.session.replies == Replies::SkipNext {
                self.session.replies = Replies::On;
            }
        }
    }

    /// Runs the commands that wait. If the slice has made its output before all are run: where in the input the rest begins.
    fn run_group(&mut self, work: &mut Work<'_>, input: &[u8]) -> Option<usize> {
        let Work { server, counters, output_size_max, ref group } = *work;
        let places = &group.places;
        if places.is_empty() {
            return None;
        }
        let database = &server.databases[self.session.database];
        let done = match group.kind {
            Kind::Get => {
                let keys: ArrayVec<_, GROUP_COUNT> = places.iter().map(|place| &input[place.key.clone()]).collect();
                self.run_gets(database, counters, &keys, output_size_max)
            }
            Kind::Set => {
                let pairs: Vec<_> = places.iter().map(|place| place.pair(input)).collect();
                set_all(database, counters, &pairs, |outcome| self.reply.ok_or(counters, outcome));
                places.len()
            }
        };
        counters.commands.add(done as u64);
        let rest = places.get(done).map(|place| place.frame);
        work.group.places.clear();
        rest
    }

    /// Answers GETs, at least one, until there is enough output; how many.
    fn run_gets(&mut self, database: &Namespace, counters: &Counters, keys: &[&[u8]], output_size_max: usize) -> usize {
        /// Why a visit ended.
        enum End {
            Enough,
            Failed,
        }
        impl From<everleaf::Error> for End {
            fn from(_: everleaf::Error) -> Self {
                Self::Failed
            }
        }
        let reply = &mut self.reply;
        let mut done = 0;
        while done < keys.len() {
            let outcome = database.visit_many(&keys[done..], |found| {
                if done > 0 && reply.out.len() + found.as_ref().map_or(0, Found::size) > output_size_max {
                    return Err(End::Enough);
                }
                answer(reply, counters, |out| found.as_ref().map(|found| found.copy_to(out)).transpose());
                done += 1;
                Ok(())
            });
            match outcome {
                Ok(()) => {}
                Err(End::Enough) => break,
                // One of them cannot be looked up: one at a time finds out which.
                Err(End::Failed) => {
                    answer(reply, counters, |out| database.get_into(keys[done], out));
                    done += 1;
                }
            }
        }
        done
    }
}

/// Sets pairs, each on its own, and tells in their order what has come of each.
pub(crate) fn set_all(database: &Namespace, counters: &Counters, pairs: &[(&[u8], &[u8])], mut tell: impl FnMut(Result<(), Failure>)) {
    let mut rest = pairs;
    while !rest.is_empty() {
        // Of many that fail, none is looked at often.
        let (done, outcome) = database.put_first(&rest[..rest.len().min(SETS_AT_ONCE)]);
        counters.changes.add(done as u64);
        (0..done).for_each(|_| tell(Ok(())));
        rest = &rest[done..];
        if let (Err(error), Some((_, after))) = (outcome, rest.split_first()) {
            tell(Err(error.into()));
            rest = after;
        }
    }
}

impl Reply {
    /// Answers a SET.
    fn ok_or(&mut self, counters: &Counters, outcome: Result<(), Failure>) {
        match outcome {
            Ok(()) => self.ok(),
            Err(failure) => {
                counters.errors.add(1);
                failure.write(self);
            }
        }
    }
}

impl Place {
    /// Key and value of a SET.
    fn pair<'i>(&self, input: &'i [u8]) -> (&'i [u8], &'i [u8]) {
        (&input[self.key.clone()], &input[self.value.clone()])
    }
}

/// Answers a GET with what `value` writes.
fn answer(reply: &mut Reply, counters: &Counters, value: impl FnOnce(&mut Vec<u8>) -> Result<Option<usize>, everleaf::Error>) {
    let start = reply.out.len();
    match reply.bulk_with(value) {
        Ok(found) => counters.lookup(found),
        Err(error) => {
            reply.out.truncate(start);
            counters.errors.add(1);
            Failure::from(error).write(reply);
        }
    }
}

impl Kind {
    /// The kind of a command with so many arguments, if it is one that is run in groups.
    fn of(spec: &Spec, argument_count: usize) -> Option<Self> {
        match (spec.name, argument_count) {
            ("get", 2) => Some(Self::Get),
            ("set", 3) => Some(Self::Set),
            _ => None,
        }
    }
}

impl Group {
    /// Adds a command of kind `kind`, that of all others, with the arguments `spans` of the frame that begins at `frame`.
    fn push(&mut self, kind: Kind, frame: usize, spans: &[Span]) {
        let place = |index: usize| {
            let range = spans.get(index).map_or(0..0, |span| span.range());
            frame + range.start..frame + range.end
        };
        self.kind = kind;
        self.places.push(Place { frame, key: place(1), value: place(2) });
    }
}
