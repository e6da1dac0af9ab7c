//! Commands that are run together: plain GETs, plain SETs, and DELs of a single key.
//!
//! The store is given them together, of one client or of several ([`Namespace::act_many`]). It looks up what is to be read before it writes, so replies are
//! written as if all went well, each when the next value is known or all is done, and what turns out otherwise is put right: the digit of a DEL, and all
//! replies from the first command on that was not done.

use crate::executor::Failure;
use crate::reply::Reply;
use crate::resp::Span;
use crate::shared::Counters;
use everleaf::{Act, Error, Found, Namespace};
use std::ops::{ControlFlow, Range};

/// Commands that the store is given at once.
const ACTS_AT_ONCE: usize = 1024;

/// What a command does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Get,
    Set,
    Delete,
}

/// A command, and where it lies in the input.
pub(crate) struct Place {
    pub(crate) kind: Kind,
    /// Where its frame begins.
    pub(crate) frame: usize,
    key: Range<usize>,
    /// Of a SET; otherwise nothing.
    value: Range<usize>,
}

/// What a client has to be run, and its replies.
pub(crate) struct Part<'p> {
    input: &'p [u8],
    places: &'p [Place],
    reply: &'p mut Reply,
    /// Size of the output behind which no other value goes, unless it is that of the first command.
    output_size_max: usize,
    /// Where the replies begin, as far as there are any.
    starts: Vec<usize>,
    /// How many commands are done.
    done: usize,
}

impl Kind {
    /// The kind of the command of that name with so many arguments, if it is one that is run in groups.
    pub(crate) fn of(name: &str, argument_count: usize) -> Option<Self> {
        match (name, argument_count) {
            ("get", 2) => Some(Self::Get),
            ("set", 3) => Some(Self::Set),
            ("del" | "unlink", 2) => Some(Self::Delete),
            _ => None,
        }
    }
}

impl Place {
    /// That of a command with the arguments `spans` of the frame that begins at `frame`.
    pub(crate) fn new(kind: Kind, frame: usize, spans: &[Span]) -> Self {
        let place = |index: usize| {
            let range = spans.get(index).map_or(0..0, |span| span.range());
            frame + range.start..frame + range.end
        };
        Self { kind, frame, key: place(1), value: place(2) }
    }

    fn act<'i>(&self, input: &'i [u8]) -> (&'i [u8], Act<'i>) {
        let act = match self.kind {
            Kind::Get => Act::Get,
            Kind::Set => Act::Put(&input[self.value.clone()]),
            Kind::Delete => Act::Delete,
        };
        (&input[self.key.clone()], act)
    }
}

impl<'p> Part<'p> {
    pub(crate) fn new(input: &'p [u8], places: &'p [Place], reply: &'p mut Reply, output_size_max: usize) -> Self {
        Self { input, places, reply, output_size_max, starts: Vec::with_capacity(places.len()), done: 0 }
    }

    /// How many commands are done. The others had no room for their replies.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// Answers the writes that have no reply yet, up to the command `number`, as if they were done. Others have been visited.
    fn foretell(&mut self, number: usize) {
        for place in &self.places[self.starts.len().min(number)..number] {
            self.starts.push(self.reply.out.len());
            match place.kind {
                Kind::Get => {}
                Kind::Set => self.reply.ok(),
                Kind::Delete => self.reply.flag(false),
            }
        }
    }

    /// Takes the replies back from that to the command `number` on.
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
        let answered = self.reply.bulk_with(|out| found.map(|found| found.copy_to(out)).transpose());
        answered.map(|_| ControlFlow::Continue(())).inspect_err(|_| self.take_back(number))
    }

    /// The next command is done; `found`: the key was there.
    fn accept(&mut self, found: bool, counters: &Counters) {
        let number = self.done;
        self.foretell(number + 1);
        match self.places[number].kind {
            Kind::Get => counters.lookup(found),
            Kind::Set => counters.changes.add(1),
            Kind::Delete => {
                counters.changes.add(found.into());
                self.reply.out[self.starts[number] + 1] = if found { b'1' } else { b'0' };
            }
        }
        self.done += 1;
    }

    /// The next command has failed.
    fn refuse(&mut self, failure: &Failure, counters: &Counters) {
        self.take_back(self.done);
        self.foretell(self.done);
        self.starts.push(self.reply.out.len());
        failure.write(self.reply);
        counters.errors.add(1);
        self.done += 1;
    }
}

/// Runs the commands of `parts`, each on its own, as if one after the other.
pub(crate) fn run_together(database: &Namespace, counters: &Counters, parts: &mut [Part<'_>]) {
    let acts: Vec<_> = parts.iter().flat_map(|part| part.places.iter().map(|place| place.act(part.input))).collect();
    let owners: Vec<_> = parts.iter().enumerate().flat_map(|(part, Part { places, .. })| (0..places.len()).map(move |number| (part, number))).collect();
    let mut found = Vec::with_capacity(acts.len().min(ACTS_AT_ONCE));
    let mut at = 0;
    while at < acts.len() {
        // Of many that fail, none is looked at often.
        let next = &acts[at..acts.len().min(at + ACTS_AT_ONCE)];
        found.clear();
        let outcome = database.act_many(next, &mut found, |number, found| {
            let (part, number) = owners[at + number];
            parts[part].visit(number, found)
        });
        for (found, (part, _)) in found.iter().zip(&owners[at..]) {
            parts[*part].accept(*found, counters);
        }
        at += found.len();
        if found.len() < next.len() {
            let part = &mut parts[owners[at].0];
            match outcome {
                Err(error) => {
                    part.refuse(&error.into(), counters);
                    at += 1;
                }
                // Its output is full; that of others is not.
                Ok(()) => at += part.places.len() - part.done,
            }
        }
    }
    for part in parts {
        part.take_back(part.done);
        counters.commands.add(part.done as u64);
    }
}
