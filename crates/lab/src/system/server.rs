//! Everleaf's server through a local socket: a client's view.
//!
//! The server runs in this process, with as many threads as there are clients; each handle is a connection. Batches are pipelines.

use super::medium::{create_pool, durability};
use super::{Capabilities, Handle, Instance, Reopened, Setting, Shutdown, Space, System, Visit, append_found};
use crate::Error;
use everleaf::{Options, Store};
use everleaf_server::{Config, Server, Stop};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::slice::ChunksExact;
use std::sync::Arc;
use std::thread::JoinHandle;

pub(super) const NAME: &str = "server";

/// Maximum size of a line or value in a reply.
const REPLY_SIZE_MAX: usize = 512 << 20;
/// Entries requested at once by a scan.
const SCAN_GROUP: usize = 128;

/// A server on an index of the registry.
pub(super) struct Servers {
    /// `server:`, and the name of the index.
    pub(super) name: String,
    pub(super) index: String,
}

impl System for Servers {
    fn name(&self) -> &str {
        &self.name
    }

    fn summary(&self) -> String {
        format!("Everleaf's server on index {}, over a socket of this machine", self.index)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { scans: true, persistent: true, threads: true, write_latency: true, any_size: true, by_requests: true, ..Capabilities::NONE }
    }

    fn durability(&self, setting: &Setting) -> String {
        durability(setting)
    }

    fn create(&self, setting: &Setting) -> Result<Box<dyn Instance>, Error> {
        let (pool, _) = create_pool(setting).map_err(failed)?;
        let store = Arc::new(Store::on(pool, &Options { index: self.index.clone(), ..Options::default() }).map_err(failed)?);
        let config = Config { port: Some(0), threads: setting.threads.into(), ..Config::default() };
        let server = Server::bind(config, store.clone()).map_err(failed)?;
        let address = server.local_addr().ok_or_else(|| failed("it has no port"))?;
        let stop = server.stop_handle();
        let thread = std::thread::spawn(move || server.run());
        Ok(Box::new(Running { address, stop, thread: Some(thread), store }))
    }
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::system(NAME, error)
}

/// A running server.
struct Running {
    address: SocketAddr,
    stop: Stop,
    thread: Option<JoinHandle<Result<(), everleaf_server::Error>>>,
    store: Arc<Store>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        // Its result does not change figures taken before.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Instance for Running {
    fn handle(&self) -> Result<Box<dyn Handle + '_>, Error> {
        let socket = TcpStream::connect(self.address).map_err(failed)?;
        socket.set_nodelay(true).map_err(failed)?;
        let reader = BufReader::with_capacity(64 << 10, socket.try_clone().map_err(failed)?);
        Ok(Box::new(Connection { socket, reader, request: Vec::new() }))
    }

    fn space(&self) -> Result<Space, Error> {
        Ok(Space { pool_bytes: Some(self.store.fill().used as u64), leaves: None })
    }

    fn reopen(self: Box<Self>, _: Shutdown, _: u16) -> Result<Reopened, Error> {
        Err(Error::Missing { system: NAME.into(), operation: "reopening; that of the store is the same" })
    }
}

/// A connection.
struct Connection {
    socket: TcpStream,
    reader: BufReader<TcpStream>,
    request: Vec<u8>,
}

/// A reply, of the types used here.
enum Reply {
    Text,
    Number(i64),
    Bytes(Option<Vec<u8>>),
    List(Vec<Reply>),
}

impl Connection {
    /// Adds a command to the next request.
    fn push(&mut self, arguments: &[&[u8]]) {
        self.request.extend_from_slice(format!("*{}\r\n", arguments.len()).as_bytes());
        for argument in arguments {
            self.request.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            self.request.extend_from_slice(argument);
            self.request.extend_from_slice(b"\r\n");
        }
    }

    fn send(&mut self) -> Result<(), Error> {
        self.socket.write_all(&self.request).map_err(failed)?;
        self.request.clear();
        Ok(())
    }

    fn ask(&mut self, arguments: &[&[u8]]) -> Result<Reply, Error> {
        self.push(arguments);
        self.send()?;
        self.reply()
    }

    /// Appends the value in the reply to a GET. Returns whether there is one.
    fn take_value(&mut self, value: &mut Vec<u8>) -> Result<bool, Error> {
        match self.reply()? {
            Reply::Bytes(bytes) => Ok(bytes.map(|bytes| value.extend_from_slice(&bytes)).is_some()),
            _ => Err(unexpected("GET")),
        }
    }

    fn reply(&mut self) -> Result<Reply, Error> {
        let mut line = String::new();
        self.reader.by_ref().take(REPLY_SIZE_MAX as u64).read_line(&mut line).map_err(failed)?;
        let line = line.strip_suffix("\r\n").ok_or_else(|| failed(io::Error::from(io::ErrorKind::UnexpectedEof)))?;
        let (kind, rest) = line.split_at(line.len().min(1));
        let number = || rest.parse::<i64>().map_err(|_| unexpected(line));
        match kind {
            "+" => Ok(Reply::Text),
            "-" => Err(failed(rest.to_owned())),
            ":" => Ok(Reply::Number(number()?)),
            "$" => match number()? {
                -1 => Ok(Reply::Bytes(None)),
                size => {
                    let size = usize::try_from(size).ok().filter(|size| *size <= REPLY_SIZE_MAX).ok_or_else(|| unexpected(line))?;
                    let mut bytes = vec![0; size + 2];
                    self.reader.read_exact(&mut bytes).map_err(failed)?;
                    bytes.truncate(size);
                    Ok(Reply::Bytes(Some(bytes)))
                }
            },
            "*" => (0..number()?.max(0)).map(|_| self.reply()).collect::<Result<_, _>>().map(Reply::List),
            _ => Err(unexpected(line)),
        }
    }
}

fn unexpected(line: &str) -> Error {
    failed(format!("an unexpected reply: {line}"))
}

impl Handle for Connection {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.update(key, value)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        self.push(&[b"GET", key]);
        self.send()?;
        self.take_value(value)
    }

    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        match self.ask(&[b"SET", key, value])? {
            Reply::Text => Ok(()),
            _ => Err(unexpected("SET")),
        }
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        match self.ask(&[b"DEL", key])? {
            Reply::Number(count) => Ok(count == 1),
            _ => Err(unexpected("DEL")),
        }
    }

    fn scan(&mut self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), Error> {
        let mut from = [b"[", from].concat();
        loop {
            let Reply::List(entries) = self.ask(&[b"RANGE", &from, b"+", b"LIMIT", SCAN_GROUP.to_string().as_bytes()])? else {
                return Err(unexpected("RANGE"));
            };
            for pair in entries.chunks(2) {
                let [Reply::Bytes(Some(key)), Reply::Bytes(Some(value))] = pair else { return Err(unexpected("RANGE")) };
                if visit(key, value) == ControlFlow::Break(()) {
                    return Ok(());
                }
                from = [b"(", key.as_slice()].concat();
            }
            if entries.len() < 2 * SCAN_GROUP {
                return Ok(());
            }
        }
    }

    fn get_many(&mut self, keys: ChunksExact<'_, u8>, value_size: usize, values: &mut Vec<u8>) -> Result<u64, Error> {
        let count = keys.len();
        keys.for_each(|key| self.push(&[b"GET", key]));
        self.send()?;
        let mut found = 0;
        for _ in 0..count {
            found += append_found(values, value_size, |values| self.take_value(values))?;
        }
        Ok(found)
    }

    fn insert_many(&mut self, keys: ChunksExact<'_, u8>, values: ChunksExact<'_, u8>) -> Result<(), Error> {
        let count = keys.len();
        keys.zip(values).for_each(|(key, value)| self.push(&[b"SET", key, value]));
        self.send()?;
        (0..count).try_for_each(|_| self.reply().map(drop))
    }
}
