//! A conversation: what a client says and what it is answered, without the socket.
//!
//! 1. Replies come in the order of the commands.
//! 2. A slice of a conversation is bounded by the arguments it handles and the output it makes, so that one client's pipeline does not keep the others waiting.
//! 3. Consecutive plain SETs of what was read at once are given to the store together, which makes them durable together: a pipeline pays for few fences.
//!    Before any other command runs, and before the slice ends, those that are waiting are written; nobody can tell the difference, except by the time.

use crate::client::{Closing, Replies, Session};
use crate::command::{Arguments, Spec};
use crate::executor::{Call, Failure, Slice, execute, resolve};
use crate::reply::Reply;
use crate::resp::{FrameLimits, Parser, Progress, Span};
use crate::shared::{Counters, Shared};

/// Arguments that a slice handles, about.
const SLICE_ARGUMENT_COUNT: usize = 4096;
/// Output that a slice makes, about, in bytes.
const SLICE_OUTPUT_SIZE: usize = 1 << 20;
/// SETs that are written together at most.
const BATCH_COUNT: usize = 64;

/// Why a slice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// All whole frames are answered; at least so many bytes are missing for the next.
    Input { missing: usize },
    /// There is more to do.
    Turn,
    /// No command will be run any more.
    End,
    /// The client has more output waiting than it may.
    Overflow,
}

/// A client's side of the protocol.
pub(crate) struct Conversation {
    pub(crate) session: Session,
    pub(crate) reply: Reply,
    parser: Parser,
}

/// Plain SETs that wait to be written together: places of key and value in the input.
struct Sets {
    places: [(Place, Place); BATCH_COUNT],
    count: usize,
}

/// Bytes of the input from here to there.
type Place = (usize, usize);

impl Conversation {
    pub(crate) fn new(session: Session) -> Self {
        Self { session, reply: Reply::default(), parser: Parser::new() }
    }

    /// Answers what `input` holds, for a slice; the number of bytes that are done, and why it stopped.
    pub(crate) fn advance(&mut self, server: &Shared, counters: &Counters, input: &mut [u8]) -> (usize, Pause) {
        let mut sets = Sets { places: [((0, 0), (0, 0)); BATCH_COUNT], count: 0 };
        let (done, pause) = self.run_slice(server, counters, input, &mut sets);
        self.write_sets(server, counters, input, &mut sets);
        let waiting = self.reply.out.len() + self.session.unfinished.as_ref().map_or(0, |unfinished| unfinished.size());
        (done, if waiting > server.config.limits.output_buffer_size_max { Pause::Overflow } else { pause })
    }

    fn run_slice(&mut self, server: &Shared, counters: &Counters, input: &mut [u8], sets: &mut Sets) -> (usize, Pause) {
        let mut done = 0;
        let mut arguments_left = SLICE_ARGUMENT_COUNT;
        let output_size_max = self.reply.out.len() + SLICE_OUTPUT_SIZE;
        let limits = FrameLimits::with_bulk_size_max(server.config.limits.bulk_size_max);
        loop {
            if self.session.closing != Closing::No {
                return (done, Pause::End);
            }
            if self.session.unfinished.is_some() {
                self.go_on(server, counters);
                return (done, Pause::Turn);
            }
            if arguments_left == 0 || self.reply.out.len() >= output_size_max {
                return (done, Pause::Turn);
            }
            let limits = if self.session.authenticated { &limits } else { &FrameLimits::UNAUTHENTICATED };
            let size = match self.parser.parse(&mut input[done..], limits) {
                Ok(Progress::Frame { size }) => size,
                Ok(Progress::Incomplete { missing }) => return (done, Pause::Input { missing }),
                Err(error) => {
                    self.write_sets(server, counters, input, sets);
                    self.reply.error_text(format_args!("ERR {error}"));
                    counters.errors.add(1);
                    self.session.closing = Closing::AfterReplies;
                    continue;
                }
            };
            let frame = done..done + size;
            done += size;
            let spans = self.parser.spans();
            arguments_left = arguments_left.saturating_sub(spans.len().max(1));
            if spans.is_empty() {
                continue;
            }
            let resolved = resolve(Arguments::new(&input[frame.clone()], spans), &self.session);
            match resolved {
                Ok(spec) if spec.name == "set" && spans.len() == 3 && self.session.replies == Replies::On => {
                    self.session.command = Some(spec);
                    sets.push(place(frame.start, spans[1]), place(frame.start, spans[2]));
                    if sets.count == BATCH_COUNT {
                        self.write_sets(server, counters, input, sets);
                    }
                }
                resolved => {
                    self.write_sets(server, counters, input, sets);
                    self.run(server, counters, &input[frame], resolved);
                }
            }
        }
    }

    fn run(&mut self, server: &Shared, counters: &Counters, frame: &[u8], resolved: Result<&'static Spec, Failure>) {
        let start = self.reply.out.len();
        let replies = self.session.replies;
        let arguments = Arguments::new(frame, self.parser.spans());
        match resolved {
            Ok(spec) => execute(&mut Call { server, counters, session: &mut self.session, reply: &mut self.reply, arguments, spec }),
            // The beginning of an HTTP request: somebody makes a browser talk to us. What follows may be commands in its body.
            Err(_) if arguments.is(0, "post") || arguments.is(0, "host:") => self.session.closing = Closing::AfterReplies,
            Err(failure) => {
                counters.errors.add(1);
                failure.write(&mut self.reply);
            }
        }
        if replies != Replies::On && self.session.replies == replies && self.session.unfinished.is_none() {
            self.reply.out.truncate(start);
            if replies == Replies::SkipNext {
                self.session.replies = Replies::On;
            }
        }
    }

    /// Takes the next slice of the command that is not done.
    fn go_on(&mut self, server: &Shared, counters: &Counters) {
        let Some(mut unfinished) = self.session.unfinished.take() else { return };
        let start = self.reply.out.len();
        match unfinished.advance(server, counters) {
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

    fn write_sets(&mut self, server: &Shared, counters: &Counters, input: &[u8], sets: &mut Sets) {
        if sets.count == 0 {
            return;
        }
        let mut pairs = [(&[][..], &[][..]); BATCH_COUNT];
        for (pair, &(key, value)) in pairs.iter_mut().zip(sets.waiting()) {
            *pair = (&input[key.0..key.1], &input[value.0..value.1]);
        }
        let pairs = &pairs[..sets.count];
        sets.count = 0;
        counters.commands.add(pairs.len() as u64);
        let database = &server.databases[self.session.database];
        if database.put_many(pairs).is_ok() {
            pairs.iter().for_each(|_| self.reply.ok());
            return;
        }
        // Some may be written: to set them again, one by one, finds out which cannot be.
        for (key, value) in pairs {
            match database.put(key, value) {
                Ok(()) => self.reply.ok(),
                Err(error) => {
                    counters.errors.add(1);
                    Failure::from(error).write(&mut self.reply);
                }
            }
        }
    }
}

impl Sets {
    fn push(&mut self, key: Place, value: Place) {
        self.places[self.count] = (key, value);
        self.count += 1;
    }

    fn waiting(&self) -> &[(Place, Place)] {
        &self.places[..self.count]
    }
}

/// Where `span` of the frame that begins at `frame` lies in the input.
fn place(frame: usize, span: Span) -> Place {
    let range = span.range();
    (frame + range.start, frame + range.end)
}
