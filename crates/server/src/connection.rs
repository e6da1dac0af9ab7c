//! A connection: a socket, the input that was read and not yet processed, and the replies that were not yet sent.
//!
//! A turn is one read, one slice of the conversation, and as many writes as the socket takes; if commands wait to be run with those of other connections, these
//! have their turns in between. Buffers are lent only while there is something in them: ten thousand idle connections have none, and the buffer used last,
//! which the cache still holds, is used next.
//!
//! While a client leaves its replies unread, none of its commands is run, except one in progress that other clients wait for. Its input is read all the same,
//! up to the limit for that: many clients send a whole pipeline before they read the first reply, and each side would wait for the other. Only the input of a
//! client that owes a password is not read meanwhile.

use crate::client::{Closing, Session};
use crate::conversation::{Conversation, Dialect, Pause};
use crate::group::Part;
use crate::reply::Reply;
use crate::shared::{Counters, Shared};
use crate::socket::Socket;
use std::io::{self, ErrorKind, Read, Write};

/// Size of a lent input buffer.
const INPUT_SIZE: usize = 32 * 1024;
/// Bytes that one read takes at most, for fairness.
const READ_SIZE_MAX: usize = 1 << 20;
/// An output buffer that grew beyond this is not lent again.
const OUTPUT_CAPACITY_MAX: usize = 256 * 1024;
/// Buffers of a kind that are kept for lending.
const KEPT_COUNT_MAX: usize = 64;

/// Buffers to lend.
#[derive(Default)]
pub(crate) struct Buffers {
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
}

impl Buffers {
    fn lend_input(&mut self) -> Vec<u8> {
        self.inputs.pop().unwrap_or_else(|| vec![0; INPUT_SIZE])
    }

    fn take_back_input(&mut self, bytes: Vec<u8>) {
        if bytes.len() == INPUT_SIZE && self.inputs.len() < KEPT_COUNT_MAX {
            self.inputs.push(bytes);
        }
    }

    fn lend_output(&mut self) -> Vec<u8> {
        self.outputs.pop().unwrap_or_default()
    }

    fn take_back_output(&mut self, mut bytes: Vec<u8>) {
        if bytes.capacity() <= OUTPUT_CAPACITY_MAX && self.outputs.len() < KEPT_COUNT_MAX {
            bytes.clear();
            self.outputs.push(bytes);
        }
    }
}

/// Bytes that were read and not yet processed: `bytes[start..end]`. All of `bytes` is initialised, so that the socket can write into the rest.
#[derive(Default)]
struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes that the frame at `start` lacks at least.
    missing: usize,
}

impl Input {
    /// Room for the next read. The buffer at most doubles, whatever size a header promises, and never beyond what the frame needs.
    fn room(&mut self) -> &mut [u8] {
        // No more bytes are moved than were processed since the last move.
        if self.end == self.bytes.len() && self.start >= self.size() && self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.bytes.len() {
            let size = (self.bytes.len() * 2).min(self.end + self.missing.max(INPUT_SIZE).max(self.size() / 2));
            self.bytes.reserve_exact(size - self.bytes.len());
            self.bytes.resize(size, 0);
        }
        let room = &mut self.bytes[self.end..];
        let size = room.len().min(READ_SIZE_MAX);
        &mut room[..size]
    }

    fn size(&self) -> usize {
        self.end - self.start
    }
}

/// What a connection needs after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing until the socket is ready.
    Wait,
    /// Another turn, after the others have had theirs.
    Again,
    /// [`Connection::settle`], when all others have had their turns.
    Held,
    /// Closing.
    Close,
}

/// A connection.
pub(crate) struct Connection {
    pub(crate) socket: Socket,
    conversation: Conversation,
    input: Input,
    /// Whether whole frames, or a part of a long command, wait for a turn.
    busy: bool,
    /// Whether the socket may have bytes. Edge-triggered: stays set until a read comes back short.
    readable: bool,
    /// Whether the peer has sent its last byte, which only reading on finds.
    read_closed: bool,
    /// Whether the last byte was read.
    ended: bool,
    /// Whether the socket may take bytes.
    writable: bool,
    /// Whether the peer is gone, or at least takes nothing any more.
    broken: bool,
    /// The server stops and the client, which has sent more than is answered, has been told.
    parting: bool,
    /// Whether it waits in the queue for another turn, or to be settled first.
    pub(crate) queued: bool,
}

impl Connection {
    pub(crate) fn new(socket: Socket, session: Session, dialect: Dialect) -> Self {
        Self {
            socket,
            conversation: Conversation::new(session, dialect),
            input: Input::default(),
            busy: false,
            readable: false,
            read_closed: false,
            ended: false,
            writable: true,
            broken: false,
            parting: false,
            queued: false,
        }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.conversation.session
    }

    /// Notes what the poll reported about the socket.
    pub(crate) fn note(&mut self, event: &mio::event::Event) {
        self.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        self.read_closed |= event.is_read_closed() || event.is_error();
        self.writable |= event.is_writable();
        self.broken |= event.is_error() || event.is_write_closed();
    }

    /// Reads, answers, sends.
    pub(crate) fn turn(&mut self, server: &Shared, counters: &Counters, buffers: &mut Buffers) -> Turn {
        self.with_buffers(server, buffers, |connection, buffers| connection.try_turn(server, counters, buffers))
    }

    /// The database of the held commands, if there are any.
    pub(crate) fn held_database(&self) -> Option<usize> {
        self.conversation.held_database()
    }

    /// Takes the replies, so that those to held commands can be added.
    pub(crate) fn take_reply(&mut self, buffers: &mut Buffers) -> Reply {
        self.lend_output(buffers);
        std::mem::take(&mut self.conversation.reply)
    }

    /// The held commands, with the replies that were taken.
    pub(crate) fn held_part<'p>(&'p self, reply: &'p mut Reply) -> Part<'p> {
        self.conversation.held_part(&self.input.bytes[self.input.start..self.input.end], reply)
    }

    /// Continues the turn when `done` of the held commands are run and answered.
    pub(crate) fn settle(&mut self, server: &Shared, counters: &Counters, buffers: &mut Buffers, reply: Reply, done: usize) -> Turn {
        self.conversation.reply = reply;
        self.with_buffers(server, buffers, |connection, _| {
            let end = connection.conversation.end_held(server, done);
            connection.end_turn(server, counters, Some(end))
        })
    }

    fn lend_output(&mut self, buffers: &mut Buffers) {
        if self.conversation.reply.out.capacity() == 0 {
            self.conversation.reply.out = buffers.lend_output();
        }
    }

    fn with_buffers(&mut self, server: &Shared, buffers: &mut Buffers, act: impl FnOnce(&mut Self, &mut Buffers) -> io::Result<Turn>) -> Turn {
        self.lend_output(buffers);
        let turn = act(self, buffers).unwrap_or(Turn::Close);
        self.conversation.session.publish(server, self.input.size(), &self.conversation.reply);
        if self.input.size() == 0 && !self.input.bytes.is_empty() {
            buffers.take_back_input(std::mem::take(&mut self.input).bytes);
        }
        if self.conversation.reply.out.is_empty() {
            buffers.take_back_output(std::mem::take(&mut self.conversation.reply.out));
        }
        turn
    }

    fn try_turn(&mut self, server: &Shared, counters: &Counters, buffers: &mut Buffers) -> io::Result<Turn> {
        // A command in progress may have much left to do, and no client to tell.
        if self.broken && self.conversation.session.unfinished.is_some() {
            return Ok(Turn::Close);
        }
        // First, since the rest depends on how much the client has not taken.
        self.write(counters)?;
        let stopping = server.is_stopping();
        let is_held_up = self.conversation.is_held_up(server);
        let may_read = if is_held_up { !self.conversation.session.owes_password(server) } else { !self.busy };
        let reads = self.readable && may_read && !self.ended && !stopping && self.conversation.session.closing == Closing::No;
        if reads {
            self.read(server, counters, buffers)?;
        }
        if is_held_up {
            return Ok(match self.conversation.go_on_unread(server, counters) {
                Some(Pause::Overflow) => Self::overflow(counters),
                Some(_) => Turn::Again,
                None if reads => Turn::Again,
                // The socket takes nothing now, and will report when it does.
                None => Turn::Wait,
            });
        }
        let input = &mut self.input.bytes[self.input.start..self.input.end];
        let end = (!input.is_empty() || self.busy).then(|| self.conversation.advance(server, counters, input));
        self.end_turn(server, counters, end)
    }

    /// The client leaves more replies waiting than it may.
    fn overflow(counters: &Counters) -> Turn {
        counters.output_overflows.add(1);
        Turn::Close
    }

    /// Sends the replies. `end`: how much of the input is done, and why no more of it.
    fn end_turn(&mut self, server: &Shared, counters: &Counters, end: Option<(usize, Pause)>) -> io::Result<Turn> {
        let stopping = server.is_stopping();
        if let Some((done, pause)) = end {
            self.input.start += done;
            self.busy = pause == Pause::Turn;
            match pause {
                Pause::Input { missing } => self.input.missing = missing,
                Pause::Turn | Pause::End => {}
                Pause::Held => {
                    self.conversation.session.publish(server, self.input.size(), &self.conversation.reply);
                    return self.write(counters).map(|()| Turn::Held);
                }
                Pause::Overflow => return Ok(Self::overflow(counters)),
            }
        }
        // Before the reply shows that the command was done: a client that has it may ask about this one on another connection.
        self.conversation.session.publish(server, self.input.size(), &self.conversation.reply);
        self.write(counters)?;
        let sent_all = self.conversation.reply.out.is_empty();
        if self.conversation.session.closing != Closing::No {
            return Ok(if sent_all { Turn::Close } else { Turn::Wait });
        }
        if self.busy {
            return Ok(Turn::Again);
        }
        if self.ended || stopping {
            return match sent_all {
                true if self.ended => Ok(Turn::Close),
                true => self.part(),
                false => Ok(Turn::Wait),
            };
        }
        Ok(if self.readable { Turn::Again } else { Turn::Wait })
    }

    fn read(&mut self, server: &Shared, counters: &Counters, buffers: &mut Buffers) -> io::Result<()> {
        if self.input.bytes.is_empty() {
            self.input.bytes = buffers.lend_input();
        }
        if self.input.size() >= server.config.limits.query_buffer_size_max {
            counters.query_overflows.add(1);
            return Err(ErrorKind::QuotaExceeded.into());
        }
        let room = self.input.room();
        let room_size = room.len();
        match self.socket.read(room) {
            Ok(0) => self.ended = true,
            Ok(size) => {
                self.input.end += size;
                counters.input_size.add(size as u64);
                // A short read has emptied the socket, unless the end of the stream comes next, which no further edge reports.
                self.readable = size == room_size || self.read_closed || self.socket.has_more();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Ends a conversation in which the client may have sent more than was read: a socket that is closed with unread bytes discards replies not delivered yet.
    /// So a client that has sent more is told that nothing follows, and its input is read until it has ended, too.
    fn part(&mut self) -> io::Result<Turn> {
        let mut unheard = [0; 16 * 1024];
        for _ in 0..READ_SIZE_MAX / unheard.len() {
            match self.socket.read(&mut unheard) {
                Ok(0) => return Ok(Turn::Close),
                Ok(_) if self.parting => {}
                Ok(_) => {
                    self.parting = true;
                    self.socket.end_writing()?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(if self.parting { Turn::Wait } else { Turn::Close }),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Turn::Again)
    }

    fn write(&mut self, counters: &Counters) -> io::Result<()> {
        if self.writable
            && let Err(error) = self.socket.flush()
        {
            match error.kind() {
                ErrorKind::WouldBlock => self.writable = false,
                _ => return Err(error),
            }
        }
        let Reply { out, sent, .. } = &mut self.conversation.reply;
        while self.writable && *sent < out.len() {
            match self.socket.write(&out[*sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(size) => {
                    *sent += size;
                    counters.output_size.add(size as u64);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if *sent == out.len() {
            out.clear();
            *sent = 0;
        } else if *sent >= OUTPUT_CAPACITY_MAX && *sent * 2 >= out.len() {
            // More was sent than is left, so moving the rest costs no more than sending did.
            out.drain(..*sent);
            *sent = 0;
        }
        Ok(())
    }
}
