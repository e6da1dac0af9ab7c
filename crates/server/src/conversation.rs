//! A conversation: a client's commands and the replies to them, without the socket.
//!
//! 1. Replies come in the order of the commands.
//! 2. A slice of a conversation is bounded by the arguments it handles, the output it makes, the values it looks at and the times it waits for a device, so
//!    that one client's pipeline does not keep the others waiting. While more output waits for the client than a slice makes, no other slice runs: so a
//!    pipeline costs the memory of two slices, or of one reply, however slow its reader is. A client that owes the password gets far less.
//! 3. Consecutive GETs, SETs without conditions, and DELs of one key, as far as they were read at once, are given to the store together
//!    ([`group`](crate::group)), which looks up keys together and makes writes durable together: a pipeline pays for few fences. They are run before any other
//!    command runs, and when the slice ends. But where a write waits for a device, a group with writes that ends a slice is held, and run with those of other
//!    clients at the end of the event loop's turn: one wait for all. Its client notices no difference except in time, and neither do others, except that a
//!    client which looks at several keys from another event loop meanwhile may see a later write of the group, and not yet an earlier one. In the same way,
//!    consecutive GETs, with no write between them, may see a later key as it was before another client's command changed it together with an earlier one.
//! 4. After MULTI commands are queued, and run by EXEC in one slice.
//!
//! The protocol depends on the port to which the client has connected ([`Dialect`]); all of this except 4 applies to both protocols.

use crate::client::{Closing, Replies, Session};
use crate::command::{Arguments, Flags, Spec};
use crate::executor::{Call, Failure, Slice, execute, resolve};
use crate::group::{Kind, Part, Place, Single, run_for_clients};
use crate::memcached::execute::{Asked, data_size_max};
use crate::memcached::request::{LINE_SIZE_MAX, Limits, Progress as Asking, Request, parse, words};
use crate::memcached::{self, item};
use crate::reply::Reply;
use crate::resp::{FrameLimits, Parser, Progress};
use crate::shared::{Counters, Shared};
use arrayvec::ArrayVec;
use std::time::Instant;

/// Arguments that a slice handles, approximately.
const SLICE_ARGUMENT_COUNT: usize = 4096;
/// Number of arguments as which a command counts that waits for a device by itself.
const WAIT_ARGUMENT_COUNT: usize = SLICE_ARGUMENT_COUNT / 16;
/// Bytes of arguments after which the slice ends.
const SLICE_INPUT_SIZE: usize = 4 << 20;
/// Bytes of output that a slice makes, and of values that it looks at, approximately. That much output may wait for the client when another slice begins.
const SLICE_OUTPUT_SIZE: usize = 1 << 20;
/// The same while the client owes a password.
const UNAUTHENTICATED_OUTPUT_SIZE: usize = 4 * 1024;
/// Largest number of a client's commands that are run together.
const GROUP_COUNT: usize = 64;
/// The same if one of them writes, and a write waits for a device.
const SHARED_GROUP_COUNT: usize = 256;

/// Why a slice ended, or has not ended yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// All whole frames are answered; the next one lacks at least this many bytes.
    Input { missing: usize },
    /// There is more to do.
    Turn,
    /// Commands wait to be run with those of other clients.
    Held,
    /// No further command will be run.
    End,
    /// A command has made more output than may wait.
    Overflow,
}

/// The protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Redis,
    Memcached,
}

/// A client's side of the protocol.
pub(crate) struct Conversation {
    pub(crate) session: Session,
    pub(crate) reply: Reply,
    dialect: Dialect,
    /// For Redis.
    parser: Parser,
    /// Bytes of data of a request of memcached that are still to be skipped.
    skipped: usize,
    held: Option<Held>,
}

/// Commands that are to be run with those of other clients. Until then, the slice's input stays in place, and nothing else is done for the client.
struct Held {
    places: Vec<Place>,
    /// Data made from the input for them.
    made: Vec<u8>,
    /// Approximate size of the output that they may make.
    output_size_left: usize,
    /// Input bytes that are done afterwards, and why the slice stopped.
    end: (usize, Pause),
}

/// The context of a slice.
struct Work<'a> {
    server: &'a Shared,
    counters: &'a Counters,
    /// Size of the output at which the slice ends.
    output_size_max: usize,
    group: Group,
}

/// Commands that wait to be run together.
#[derive(Default)]
struct Group {
    places: ArrayVec<Place, SHARED_GROUP_COUNT>,
    /// Data made from the input for them.
    made: Vec<u8>,
    /// Whether one of them writes.
    has_writes: bool,
}

impl Work<'_> {
    /// Whether the waiting commands should be run with those of other clients.
    fn is_to_be_held(&self) -> bool {
        self.server.shares_waits && self.group.has_writes
    }

    /// Whether no further command joins them.
    fn is_full(&self) -> bool {
        let count_max = if self.is_to_be_held() { SHARED_GROUP_COUNT } else { GROUP_COUNT };
        self.group.places.len() >= count_max || self.group.made.len() >= SLICE_OUTPUT_SIZE
    }
}

impl Conversation {
    pub(crate) fn new(session: Session, dialect: Dialect) -> Self {
        Self { session, reply: Reply::default(), dialect, parser: Parser::new(), skipped: 0, held: None }
    }

    fn output_size(&self, server: &Shared) -> usize {
        if self.session.owes_password(server) { UNAUTHENTICATED_OUTPUT_SIZE } else { SLICE_OUTPUT_SIZE }
    }

    /// Whether the client must take replies before it gets more.
    pub(crate) fn is_held_up(&self, server: &Shared) -> bool {
        self.reply.waiting() > self.output_size(server)
    }

    /// Continues a command that other clients wait for, though replies wait. Returns how the slice ended, if there is such a command.
    pub(crate) fn go_on_unread(&mut self, server: &Shared, counters: &Counters) -> Option<Pause> {
        self.session.unfinished.as_ref().filter(|unfinished| unfinished.is_awaited_by_others())?;
        let _working = server.gate.enter(self.session.client.thread);
        self.go_on(server, counters);
        Some(self.end_slice(server, 0, Pause::Turn).1)
    }

    /// Answers the commands in `input`, for one slice; returns the number of bytes that are done, and why it stopped.
    pub(crate) fn advance(&mut self, server: &Shared, counters: &Counters, input: &mut [u8]) -> (usize, Pause) {
        let _working = server.gate.enter(self.session.client.thread);
        let mut work = Work { server, counters, output_size_max: self.reply.out.len() + self.output_size(server), group: Group::default() };
        let (mut done, mut pause) = self.run_slice(&mut work, input);
        if work.is_to_be_held() {
            let output_size_left = work.output_size_max.saturating_sub(self.reply.out.len());
            let (places, made) = (work.group.places.drain(..).collect(), std::mem::take(&mut work.group.made));
            self.held = Some(Held { places, made, output_size_left, end: (done, pause) });
            return (0, Pause::Held);
        }
        if let Some(rest) = self.run_group(&mut work, input) {
            self.parser.restart();
            (done, pause) = (rest, Pause::Turn);
        }
        self.end_slice(server, done, pause)
    }

    /// Ends a slice: as it is, or with an overflow if it has made too much output.
    fn end_slice(&self, server: &Shared, done: usize, pause: Pause) -> (usize, Pause) {
        let waiting = self.reply.waiting() + self.session.unfinished.as_ref().map_or(0, |unfinished| unfinished.size());
        // The longest reply may follow what waited when the slice began, and what the slice has made before.
        let waiting_max = server.config.limits.output_buffer_size_max.saturating_add(2 * self.output_size(server));
        (done, if waiting > waiting_max { Pause::Overflow } else { pause })
    }

    /// The database of the held commands.
    pub(crate) fn held_database(&self) -> Option<usize> {
        self.held.is_some().then_some(self.session.database)
    }

    /// The held commands. `input` is as it was, and `reply` was taken from the conversation.
    pub(crate) fn held_part<'p>(&'p self, input: &'p [u8], reply: &'p mut Reply) -> Part<'p> {
        let (places, made, output_size_left) = self.held.as_ref().map_or((&[][..], &[][..], 0), |held| (&held.places, &held.made, held.output_size_left));
        let output_size_max = reply.out.len() + output_size_left;
        Part::new(input, made, places, reply, output_size_max).of(&self.session.client)
    }

    /// Notes that `count` of the held commands are done; returns what [`Conversation::advance`] would have returned without holding.
    pub(crate) fn end_held(&mut self, server: &Shared, count: usize) -> (usize, Pause) {
        let Some(Held { places, end: (mut done, mut pause), .. }) = self.held.take() else { return (0, Pause::Turn) };
        if let Some(rest) = places.get(count) {
            self.parser.restart();
            (done, pause) = (rest.frame, Pause::Turn);
        }
        self.end_slice(server, done, pause)
    }

    /// Runs whole frames until the slice is over; a group may be left to be run.
    fn run_slice(&mut self, work: &mut Work<'_>, input: &mut [u8]) -> (usize, Pause) {
        let mut done = 0;
        let mut arguments_left = SLICE_ARGUMENT_COUNT;
        let looked_at_before = work.counters.looked_at.get();
        loop {
            if self.session.closing != Closing::No {
                return (done, Pause::End);
            }
            if self.session.unfinished.is_some() {
                self.go_on(work.server, work.counters);
                return (done, Pause::Turn);
            }
            let looked_at = work.counters.looked_at.get().wrapping_sub(looked_at_before) as usize;
            if arguments_left == 0 || done >= SLICE_INPUT_SIZE || self.reply.out.len() + looked_at >= work.output_size_max {
                return (done, Pause::Turn);
            }
            let changes_before = work.counters.changes.get();
            let next = match self.dialect {
                Dialect::Redis => self.take_command(work, input, done),
                Dialect::Memcached => self.take_request(work, input, done),
            };
            match next {
                Ok((end, argument_count)) => {
                    done = end;
                    let has_waited = work.server.shares_waits && work.counters.changes.get() != changes_before;
                    arguments_left = arguments_left.saturating_sub(argument_count.max(if has_waited { WAIT_ARGUMENT_COUNT } else { 1 }));
                }
                Err(end) => return end,
            }
        }
    }

    /// Runs the Redis command that begins at `done`, or leaves it to a group. Returns where it ends and its number of arguments, or how the slice ends.
    fn take_command(&mut self, work: &mut Work<'_>, input: &mut [u8], done: usize) -> Result<(usize, usize), (usize, Pause)> {
        // An inline command is parsed only when nothing before it can have to be parsed again, because parsing unescapes it.
        if input.get(done).is_some_and(|&byte| byte != b'*') {
            self.run_before(work, input)?;
        }
        let limits = match self.session.owes_password(work.server) {
            true => FrameLimits::UNAUTHENTICATED,
            false => FrameLimits::with_bulk_size_max(work.server.config.limits.bulk_size_max),
        };
        let size = match self.parser.parse(&mut input[done..], &limits) {
            Ok(Progress::Frame { size }) => size,
            Ok(Progress::Incomplete { missing }) => return Err((done, Pause::Input { missing })),
            Err(error) => {
                self.run_before(work, input)?;
                let start = self.reply.out.len();
                self.reply.error(&[b"ERR ", &error.bytes()[..]].concat());
                self.withhold(start);
                work.counters.errors.add(1);
                self.session.closing = Closing::AfterReplies;
                return Ok((done, 1));
            }
        };
        let frame = done..done + size;
        let spans = self.parser.spans();
        let count = spans.len();
        if count == 0 {
            return Ok((frame.end, 0));
        }
        let arguments = Arguments::new(&input[frame.clone()], spans);
        let resolved = resolve(arguments, &self.session, work.server);
        let may_join = self.session.replies == Replies::On && self.session.queue.is_none();
        let spec = resolved.as_ref().ok().filter(|_| may_join);
        let place = spec.and_then(|spec| Place::of(spec, arguments, spans, frame.start, work.server.shares_waits, || work.server.store.time_ms()));
        self.make_room(work, input, done, place.is_some())?;
        if let Some(place) = place {
            self.session.command = resolved.ok();
            work.group.push(place);
        } else {
            self.run(work.server, work.counters, &input[frame.clone()], resolved);
        }
        Ok((frame.end, count))
    }

    /// [`Conversation::take_command`] for memcached.
    fn take_request(&mut self, work: &mut Work<'_>, input: &[u8], done: usize) -> Result<(usize, usize), (usize, Pause)> {
        if self.skipped > 0 {
            let size = self.skipped.min(input.len() - done);
            self.skipped -= size;
            return if size > 0 { Ok((done + size, 1)) } else { Err((done, Pause::Input { missing: 1 })) };
        }
        let (server, counters) = (work.server, work.counters);
        let owes_password = self.session.owes_password(server);
        let unauthenticated_max = FrameLimits::UNAUTHENTICATED.bulk_size_max;
        let limits = match owes_password {
            true => Limits { line_size_max: unauthenticated_max, data_size_max: unauthenticated_max },
            false => Limits { line_size_max: LINE_SIZE_MAX, data_size_max: data_size_max(server) },
        };
        let (size, quiet, request) = match parse(&input[done..], limits) {
            Asking::Incomplete { missing } => return Err((done, Pause::Input { missing })),
            Asking::Request { size, quiet, request } => (size, quiet, request),
        };
        let end = done + size;
        let count = if let Request::Get { keys, .. } = &request { words(&input[done..end][keys.clone()]).count() } else { 1 };
        let frame = &input[done..end];
        let single = if owes_password { None } else { Single::of(&request, quiet, frame, || server.store.time_ms()) };
        self.make_room(work, input, done, single.is_some())?;
        if let Some(single) = single {
            let place = Place::of_item(&single, input, done, &mut work.group.made);
            work.group.push(place);
        } else {
            if let Request::Wrong { skip, .. } = request {
                self.skipped = skip;
            }
            let (session, out) = (&mut self.session, &mut self.reply.out);
            memcached::execute::execute(&mut Asked { server, counters, session, out, frame }, &request, quiet);
        }
        Ok((end, count))
    }

    /// Runs the waiting commands before a command that begins at `done`, unless that may join them.
    fn make_room(&mut self, work: &mut Work<'_>, input: &[u8], done: usize, may_join: bool) -> Result<(), (usize, Pause)> {
        let is_full = work.is_full();
        if is_full && may_join && work.is_to_be_held() {
            return Err((done, Pause::Turn));
        }
        if may_join && !is_full { Ok(()) } else { self.run_before(work, input) }
    }

    /// Runs the waiting commands. If the slice has made its output before all are run: how it ends.
    fn run_before(&mut self, work: &mut Work<'_>, input: &[u8]) -> Result<(), (usize, Pause)> {
        self.run_group(work, input).map_or(Ok(()), |rest| Err((rest, Pause::Turn)))
    }

    fn run(&mut self, server: &Shared, counters: &Counters, frame: &[u8], resolved: Result<&'static Spec, Failure>) {
        let start = self.reply.out.len();
        if self.session.replies == Replies::SkipNext {
            self.session.replies = Replies::Skip;
        }
        let replies = self.session.replies;
        let arguments = Arguments::new(frame, self.parser.spans());
        match resolved {
            Ok(spec) if self.session.queue.is_some() && !spec.flags.contains(Flags::AT_ONCE) => self.enqueue(server, counters, spec, frame),
            Ok(spec) => {
                let databases = server.databases(counters);
                execute(&mut Call { server, databases, counters, session: &mut self.session, reply: &mut self.reply, arguments, spec });
            }
            // The beginning of an HTTP request: somebody makes a browser talk to this port. What follows may be commands in its body.
            Err(_) if arguments.is(0, "post") || arguments.is(0, "host:") => self.session.closing = Closing::AfterReplies,
            // An EXEC ends the transaction, whatever is wrong with it.
            Err(failure) if arguments.is(0, "exec") => {
                self.session.end_transaction();
                let failure = failure.of_exec();
                counters.fail(&failure);
                failure.write(&mut self.reply);
            }
            Err(failure) => {
                counters.fail(&failure);
                failure.write(&mut self.reply);
                if let Some(queue) = &mut self.session.queue {
                    queue.break_off();
                }
            }
        }
        if self.session.replies == replies && self.session.unfinished.is_none() {
            self.withhold(start);
        }
    }

    /// Removes the reply from `start` on if the client does not want it.
    fn withhold(&mut self, start: usize) {
        if self.session.replies != Replies::On {
            self.reply.out.truncate(start);
        }
        if self.session.replies == Replies::Skip {
            self.session.replies = Replies::On;
        }
    }

    /// Queues a command for EXEC.
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

    /// Runs the next slice of the command in progress.
    fn go_on(&mut self, server: &Shared, counters: &Counters) {
        let Some(mut unfinished) = self.session.unfinished.take() else { return };
        let (start, begun) = (self.reply.out.len(), Instant::now());
        let advanced = unfinished.advance(server.databases(counters), counters);
        unfinished.hand_out(&mut self.reply);
        let (calls, client, took) = (&server.calls, &self.session.client, begun.elapsed());
        if let Some(ongoing) = &mut self.session.ongoing {
            ongoing.go_on(calls, client, took);
        }
        match advanced {
            Ok(Slice::More) => {
                self.session.unfinished = Some(unfinished);
                return;
            }
            Ok(Slice::Last) => unfinished.finish(&mut self.reply),
            Err(failure) => {
                counters.fail(&failure);
                self.session.ongoing.iter().for_each(|ongoing| calls.fail(client.thread, ongoing.spec));
                match self.dialect {
                    Dialect::Redis => failure.write(&mut self.reply),
                    Dialect::Memcached => item::fail(&mut self.reply.out, failure.shown()),
                }
            }
        }
        if let Some(ongoing) = self.session.ongoing.take() {
            ongoing.end(calls, client);
        }
        self.withhold(start);
    }

    /// Runs the waiting commands. If the slice has made its output before all are run: where in the input the rest begins.
    fn run_group(&mut self, work: &mut Work<'_>, input: &[u8]) -> Option<usize> {
        let Work { server, counters, output_size_max, ref group } = *work;
        if group.places.is_empty() {
            return None;
        }
        let mut part = Part::new(input, &group.made, &group.places, &mut self.reply, output_size_max).of(&self.session.client);
        run_for_clients(server, self.session.database, counters, std::slice::from_mut(&mut part));
        let rest = group.places.get(part.done()).map(|place| place.frame);
        work.group.places.clear();
        work.group.made.clear();
        work.group.has_writes = false;
        rest
    }
}

impl Group {
    fn push(&mut self, place: Place) {
        self.has_writes |= place.kind != Kind::Get;
        self.places.push(place);
    }
}
