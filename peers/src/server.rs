//! Separate server programs: redis-server, valkey-server, memcached. Each instance starts one on a free local port, with its data in its own directory, and
//! ends it by its process id. Each handle is a connection; batches are pipelines.
//!
//! A crash is `kill -9`, after which the server is restarted on the same directory. It has recovered when it answers.

use everleaf_lab::machine::is_installed;
use everleaf_lab::{Capabilities, Error, Handle, Instance, Reopened, Setting, Shutdown, Space, System, Visit, append_found};
use redis::{Connection, ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::slice::ChunksExact;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a server may take to give its first answer, or to end.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of its log that are reported when it fails.
const LOG_END: usize = 1000;
/// The interval of checks.
const PAUSE: Duration = Duration::from_millis(2);

/// How keys and values get to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Redis,
    Memcached,
}

/// A server under a name.
struct Servers {
    name: &'static str,
    program: &'static str,
    protocol: Protocol,
    summary: &'static str,
    durability: &'static str,
    /// `appendonly` and `appendfsync` of Redis.
    append: Option<&'static str>,
    /// The version that its program reports.
    version: OnceLock<String>,
}

/// The servers whose programs are installed.
pub(crate) fn systems() -> Vec<Box<dyn System>> {
    let redis = |name, program, summary, durability, append| {
        let (protocol, version) = (Protocol::Redis, OnceLock::new());
        Servers { name, program, protocol, summary, durability, append, version }
    };
    let all = [
        redis("redis-memory", "redis-server", "redis-server without persistence, over a socket", "none", None),
        redis(
            "redis-everysec",
            "redis-server",
            "redis-server, its log synchronised every second",
            "within a second; each write against kill -9",
            Some("everysec"),
        ),
        redis("redis-always", "redis-server", "redis-server, its log synchronised at each write", "each write: fdatasync of the log", Some("always")),
        redis("valkey-memory", "valkey-server", "valkey-server without persistence, over a socket", "none", None),
        redis(
            "valkey-everysec",
            "valkey-server",
            "valkey-server, its log synchronised every second",
            "within a second; each write against kill -9",
            Some("everysec"),
        ),
        redis("valkey-always", "valkey-server", "valkey-server, its log synchronised at each write", "each write: fdatasync of the log", Some("always")),
        Servers {
            name: "memcached",
            program: "memcached",
            protocol: Protocol::Memcached,
            summary: "memcached, over a socket; keys in hexadecimal, as it takes no others",
            durability: "none",
            append: None,
            version: OnceLock::new(),
        },
    ];
    all.into_iter().filter(|server| is_installed(server.program)).map(|server| Box::new(server) as Box<dyn System>).collect()
}

impl System for Servers {
    fn name(&self) -> &str {
        self.name
    }

    fn summary(&self) -> String {
        self.summary.into()
    }

    fn capabilities(&self) -> Capabilities {
        let (threads, any_size, by_requests, needs_files) = (true, true, true, true);
        Capabilities { persistent: self.append.is_some(), threads, any_size, by_requests, needs_files, ..Capabilities::NONE }
    }

    /// Includes the version of the server, so that results name it.
    fn durability(&self, _setting: &Setting) -> String {
        format!("{}; {}", self.durability, self.version.get_or_init(|| version(self.program)))
    }

    fn create(&self, setting: &Setting) -> Result<Box<dyn Instance>, Error> {
        let home = setting.directory.clone().ok_or_else(|| Error::system(self.name, "it needs a directory"))?;
        let Self { name, program, protocol, append, .. } = *self;
        let launch = Launch { name, program, protocol, append, home, threads: setting.threads, keys_max: setting.keys_max, value_bytes: setting.value_bytes };
        let server = launch.start()?;
        Ok(Box::new(Running { server, launch }))
    }
}

/// The first line of a program's version output.
fn version(program: &str) -> String {
    let said = Command::new(program).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&said).lines().next().unwrap_or("of an unknown version").trim().to_owned()
}

/// A command whose program ends with this one, even after a second Ctrl-C, a closed terminal, or `kill -9`. Without `setpriv`, which Debian's util-linux has,
/// it ends only as [`Server`] says.
fn bound(program: &str) -> Command {
    if !is_installed("setpriv") {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]);
    command
}

/// The end of a server's log; its directory is removed with the instance.
fn end_of(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let end = String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_END)..]).trim().to_owned();
    if end.is_empty() { "it has said nothing".into() } else { format!("it said last: {end}") }
}

/// Everything needed to start and restart a server.
struct Launch {
    name: &'static str,
    program: &'static str,
    protocol: Protocol,
    append: Option<&'static str>,
    home: PathBuf,
    threads: u16,
    keys_max: u64,
    value_bytes: u32,
}

/// A server that answers. Dropping this ends it.
struct Server {
    process: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; the error does not matter.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Launch {
    fn failed(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::system(self.name, source)
    }

    /// Starts the server, and waits until it answers.
    fn start(&self) -> Result<Server, Error> {
        // The port is free when it is chosen. If another program takes it first, the server ends, and that is reported.
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).map_err(|error| self.failed(error))?.port();
        let log_path = self.home.join("server.log");
        let written = |source| Error::io("write", &log_path, source);
        let log = File::options().create(true).append(true).open(&log_path).map_err(written)?;
        let output = log.try_clone().map_err(written)?;
        let mut command = bound(self.program);
        match self.protocol {
            Protocol::Redis => {
                command.args(["--bind", "127.0.0.1", "--save", "", "--daemonize", "no", "--port", &port.to_string()]);
                command.args(["--appendonly", if self.append.is_some() { "yes" } else { "no" }]);
                command.args(self.append.map(|append| ["--appendfsync", append]).into_iter().flatten());
                command.arg("--dir").arg(&self.home);
            }
            Protocol::Memcached => {
                // Room for twice the data: it evicts what does not fit, or, with -M, reports an error.
                let megabytes = 128 + (self.keys_max.saturating_mul(2 * (u64::from(self.value_bytes) + 160)) >> 20);
                command.args(["-l", "127.0.0.1", "-U", "0", "-M", "-p", &port.to_string(), "-m", &megabytes.to_string(), "-t", &self.threads.to_string()]);
                // It runs as root only if told to.
                command.args(["-u", "root"]);
            }
        }
        // Ctrl-C in a terminal must reach only the lab: its current operation still needs this server.
        command.current_dir(&self.home).stdin(Stdio::null()).stdout(output).stderr(log).process_group(0);
        let process = command.spawn().map_err(|source| Error::Io { action: format!("start {}", self.program), source })?;
        let mut server = Server { process, port };
        let start = Instant::now();
        while let Err(why) = self.connect(&server) {
            if let Some(status) = server.process.try_wait().map_err(|error| self.failed(error))? {
                return Err(self.failed(format!("it ended with {status}; {}", end_of(&log_path))));
            }
            if start.elapsed() > PATIENCE {
                return Err(self.failed(format!("it does not answer: {why}; {}", end_of(&log_path))));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(server)
    }

    /// A connection to a server that is ready.
    fn connect(&self, server: &Server) -> Result<Box<dyn Handle>, Error> {
        match self.protocol {
            Protocol::Redis => {
                let address = ConnectionAddr::Tcp("127.0.0.1".into(), server.port);
                let info: ConnectionInfo = address.into_connection_info().map_err(|error| self.failed(error))?;
                let mut connection = redis::Client::open(info).and_then(|client| client.get_connection()).map_err(|error| self.failed(error))?;
                // While it loads its log, it answers that it is not ready.
                redis::cmd("DBSIZE").query::<u64>(&mut connection).map_err(|error| self.failed(error))?;
                Ok(Box::new(Redis { connection, name: self.name }))
            }
            Protocol::Memcached => {
                let mut connection = Memcached::connect(server.port, self.name).map_err(|error| self.failed(error))?;
                connection.request.extend_from_slice(b"version\r\n");
                connection.send().and_then(|()| connection.read_line().map(drop)).map_err(|error| self.failed(error))?;
                Ok(Box::new(connection))
            }
        }
    }
}

/// A server, and its data.
struct Running {
    server: Server,
    launch: Launch,
}

impl Instance for Running {
    fn handle(&self) -> Result<Box<dyn Handle + '_>, Error> {
        self.launch.connect(&self.server)
    }

    fn space(&self) -> Result<Space, Error> {
        let resident = fs::read_to_string(format!("/proc/{}/status", self.server.process.id())).unwrap_or_default();
        let kilobytes = resident.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        Ok(Space { pool_bytes: kilobytes.map(|kilobytes| kilobytes << 10), leaves: None })
    }

    fn reopen(self: Box<Self>, shutdown: Shutdown, _threads: u16) -> Result<Reopened, Error> {
        let Self { mut server, launch } = *self;
        if launch.append.is_none() {
            return Err(Error::Missing { system: launch.name.into(), operation: "recovery" });
        }
        if shutdown == Shutdown::Close {
            let address = ConnectionAddr::Tcp("127.0.0.1".into(), server.port).into_connection_info();
            let client = address.and_then(redis::Client::open).map_err(|error| launch.failed(error))?;
            let mut connection = client.get_connection().map_err(|error| launch.failed(error))?;
            // Its answer is to end.
            let _ = redis::cmd("SHUTDOWN").query::<()>(&mut connection);
            let start = Instant::now();
            while server.process.try_wait().map_err(|error| launch.failed(error))?.is_none() {
                if start.elapsed() > PATIENCE {
                    return Err(launch.failed("it does not end"));
                }
                std::thread::sleep(PAUSE);
            }
        }
        drop(server);
        let start = Instant::now();
        let server = launch.start()?;
        let time = start.elapsed();
        Ok(Reopened { instance: Box::new(Self { server, launch }), time })
    }
}

/// A connection with Redis's protocol.
struct Redis {
    connection: Connection,
    name: &'static str,
}

impl Redis {
    fn ask<T: redis::FromRedisValue>(&mut self, command: &redis::Cmd) -> Result<T, Error> {
        command.query(&mut self.connection).map_err(|error| Error::system(self.name, error))
    }
}

impl Handle for Redis {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.ask(redis::cmd("SET").arg(key).arg(value))
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        let found: Option<Vec<u8>> = self.ask(redis::cmd("GET").arg(key))?;
        value.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }

    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.insert(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        let count: u64 = self.ask(redis::cmd("DEL").arg(key))?;
        Ok(count == 1)
    }

    fn scan(&mut self, _: &[u8], _: &mut Visit<'_>) -> Result<(), Error> {
        Err(Error::Missing { system: self.name.into(), operation: "scans" })
    }

    fn get_many(&mut self, keys: ChunksExact<'_, u8>, value_size: usize, values: &mut Vec<u8>) -> Result<u64, Error> {
        let mut pipeline = redis::pipe();
        for key in keys {
            pipeline.cmd("GET").arg(key);
        }
        let all: Vec<Option<Vec<u8>>> = pipeline.query(&mut self.connection).map_err(|error| Error::system(self.name, error))?;
        let mut found = 0;
        for value in all {
            found += append_found(values, value_size, |values| Ok::<_, Error>(value.map(|value| values.extend_from_slice(&value)).is_some()))?;
        }
        Ok(found)
    }

    fn insert_many(&mut self, keys: ChunksExact<'_, u8>, values: ChunksExact<'_, u8>) -> Result<(), Error> {
        let mut pipeline = redis::pipe();
        for (key, value) in keys.zip(values) {
            pipeline.cmd("SET").arg(key).arg(value).ignore();
        }
        pipeline.query(&mut self.connection).map_err(|error| Error::system(self.name, error))
    }
}

/// A connection with memcached's text protocol: each request is written at once, and each answer is read through one buffer.
struct Memcached {
    socket: TcpStream,
    reader: BufReader<TcpStream>,
    request: Vec<u8>,
    line: Vec<u8>,
    name: &'static str,
}

/// Requests of a pipeline sent before their answers are read: too few to fill a socket's buffers.
const PIPELINE: usize = 256;

impl Memcached {
    fn connect(port: u16, name: &'static str) -> io::Result<Self> {
        let socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_nodelay(true)?;
        let reader = BufReader::with_capacity(64 << 10, socket.try_clone()?);
        Ok(Self { socket, reader, request: Vec::new(), line: Vec::new(), name })
    }

    fn failed(&self) -> impl Fn(io::Error) -> Error + use<> {
        let name = self.name;
        move |error| Error::system(name, error)
    }

    /// Appends a blank and a key, in hexadecimal: memcached's keys may not contain blanks or control characters.
    fn add_key(&mut self, key: &[u8]) {
        self.request.push(b' ');
        for byte in key {
            self.request.extend([byte >> 4, byte & 15].map(|half| b"0123456789abcdef"[usize::from(half)]));
        }
    }

    fn add_set(&mut self, key: &[u8], value: &[u8]) {
        self.request.extend_from_slice(b"set");
        self.add_key(key);
        self.request.extend_from_slice(format!(" 0 0 {}\r\n", value.len()).as_bytes());
        self.request.extend_from_slice(value);
        self.request.extend_from_slice(b"\r\n");
    }

    /// Sends what has been added.
    fn send(&mut self) -> io::Result<()> {
        let sent = self.socket.write_all(&self.request);
        self.request.clear();
        sent
    }

    /// Reads a line, without its end.
    fn read_line(&mut self) -> io::Result<&str> {
        self.line.clear();
        self.reader.read_until(b'\n', &mut self.line)?;
        let line = self.line.strip_suffix(b"\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        std::str::from_utf8(line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Reads an answer that must be one of these two. Returns whether it is the first.
    fn expect(&mut self, [yes, no]: [&str; 2]) -> io::Result<bool> {
        let line = self.read_line()?;
        if line == yes || line == no { Ok(line == yes) } else { Err(unexpected(line)) }
    }

    fn set_all(&mut self, entries: &[(&[u8], &[u8])]) -> Result<(), Error> {
        for entries in entries.chunks(PIPELINE) {
            entries.iter().for_each(|(key, value)| self.add_set(key, value));
            self.send().map_err(self.failed())?;
            for _ in entries {
                // With -M it reports when it has no room.
                if !self.expect(["STORED", "NOT_STORED"]).map_err(self.failed())? {
                    return Err(Error::system(self.name, "it has not stored a value"));
                }
            }
        }
        Ok(())
    }

    /// Asks for values, and calls `found` with each existing one and its position, in order.
    fn ask(&mut self, keys: &[&[u8]], mut found: impl FnMut(usize, &mut dyn Read, usize) -> io::Result<()>) -> io::Result<()> {
        for (first, keys) in keys.chunks(PIPELINE).enumerate() {
            self.request.extend_from_slice(b"get");
            let mut ends = vec![self.request.len()];
            for key in keys {
                self.add_key(key);
                ends.push(self.request.len());
            }
            self.request.extend_from_slice(b"\r\n");
            let request = std::mem::take(&mut self.request);
            self.socket.write_all(&request)?;
            let mut place = 0;
            loop {
                let line = self.read_line()?;
                if line == "END" {
                    break;
                }
                let mut words = line.split(' ');
                let (Some("VALUE"), Some(key), Some(_), Some(size)) = (words.next(), words.next(), words.next(), words.next()) else {
                    return Err(unexpected(line));
                };
                // Missing keys are left out.
                let size: usize = size.parse().map_err(|_| unexpected(line))?;
                while place < keys.len() && request[ends[place] + 1..ends[place + 1]] != *key.as_bytes() {
                    place += 1;
                }
                if place == keys.len() {
                    return Err(unexpected(line));
                }
                found(first * PIPELINE + place, &mut (&mut self.reader).take(size as u64), size)?;
                let mut end = [0; 2];
                self.reader.read_exact(&mut end)?;
                place += 1;
            }
            self.request = request;
            self.request.clear();
        }
        Ok(())
    }
}

fn unexpected(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it answered {line:?}"))
}

impl Handle for Memcached {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.set_all(&[(key, value)])
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        let mut is_there = false;
        let asked = self.ask(&[key], |_, from, size| {
            is_there = true;
            let read = from.read_to_end(value)?;
            if read == size { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
        });
        asked.map_err(self.failed())?;
        Ok(is_there)
    }

    fn update(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.insert(key, value)
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        self.request.extend_from_slice(b"delete");
        self.add_key(key);
        self.request.extend_from_slice(b"\r\n");
        self.send().and_then(|()| self.expect(["DELETED", "NOT_FOUND"])).map_err(self.failed())
    }

    fn scan(&mut self, _: &[u8], _: &mut Visit<'_>) -> Result<(), Error> {
        Err(Error::Missing { system: self.name.into(), operation: "scans" })
    }

    fn get_many(&mut self, keys: ChunksExact<'_, u8>, value_size: usize, values: &mut Vec<u8>) -> Result<u64, Error> {
        let (keys, start, mut found) = (keys.collect::<Vec<_>>(), values.len(), 0);
        values.resize(start + keys.len() * value_size, 0);
        let asked = self.ask(&keys, |place, from, size| {
            found += 1;
            let value = &mut values[start + place * value_size..][..value_size];
            if size == value_size { from.read_exact(value) } else { io::copy(from, &mut io::sink()).map(drop) }
        });
        asked.map_err(self.failed())?;
        Ok(found)
    }

    fn insert_many(&mut self, keys: ChunksExact<'_, u8>, values: ChunksExact<'_, u8>) -> Result<(), Error> {
        self.set_all(&keys.zip(values).collect::<Vec<_>>())
    }
}
