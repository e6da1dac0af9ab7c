//! Commands between MULTI and EXEC.

use crate::command::{Arguments, Spec};
use crate::resp::Span;
use std::ops::Range;

/// Commands that wait for EXEC.
#[derive(Default)]
pub(crate) struct Queue {
    commands: Vec<Queued>,
    /// Their frames, concatenated.
    bytes: Vec<u8>,
    /// The arguments of all commands, each relative to its frame.
    spans: Vec<Span>,
    /// Whether one of them could not be queued: then EXEC refuses.
    is_broken: bool,
}

struct Queued {
    spec: &'static Spec,
    bytes: Range<usize>,
    spans: Range<usize>,
}

impl Queue {
    /// Adds a command. A broken queue keeps nothing.
    pub(crate) fn push(&mut self, spec: &'static Spec, frame: &[u8], spans: &[Span]) {
        if self.is_broken {
            return;
        }
        let (bytes, at) = (self.bytes.len(), self.spans.len());
        self.bytes.extend_from_slice(frame);
        self.spans.extend_from_slice(spans);
        self.commands.push(Queued { spec, bytes: bytes..self.bytes.len(), spans: at..self.spans.len() });
    }

    /// Notes that a command could not be queued, and forgets the others.
    pub(crate) fn break_off(&mut self) {
        *self = Self { is_broken: true, ..Self::default() };
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken
    }

    pub(crate) fn len(&self) -> usize {
        self.commands.len()
    }

    /// Memory in use, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + size_of_val(self.spans.as_slice()) + size_of_val(self.commands.as_slice())
    }

    /// The commands and their arguments, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static Spec, Arguments<'_>)> {
        self.commands.iter().map(|queued| (queued.spec, Arguments::new(&self.bytes[queued.bytes.clone()], &self.spans[queued.spans.clone()])))
    }
}
