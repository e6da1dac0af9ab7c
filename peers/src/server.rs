//! Servers of their own: redis-server, valkey-server, memcached. Each instance starts one on a free port of this machine, with its data in a directory of its
//! own, and ends it by its process id. Each handle is a connection; batches are pipelines.
//!
//! A crash is `kill -9`, after which the server is started again on the same directory; it is back when it answers.

use everleaf_lab::machine::is_installed;
use everleaf_lab::{Capabilities, Error, Handle, Instance, Reopened, Setting, Shutdown, Space, System, Visit};
use redis::{Connection, ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a server may take to answer first, or to end.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of its log that are told when it fails.
const LOG_END: usize = 1000;
/// How often it is asked.
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
    /// What its program says that it is.
    version: OnceLock<String>,
}

/// Those servers whose programs are installed.
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

    /// With the version of the server, so that a result tells which one it was.
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

/// The first line of what a program says of its version.
fn version(program: &str) -> String {
    let said = Command::new(program).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&said).lines().next().unwrap_or("of an unknown version").trim().to_owned()
}

/// A command whose program ends with this one, however that ends: by a second Ctrl-C, a terminal that is closed, `kill -9`. Without `setpriv`, which Debian's
/// util-linux has, only as [`Server`] says.
fn bound(program: &str) -> Command {
    if !is_installed("setpriv") {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]);
    command
}

/// What a server has written last; its directory goes with the instance.
fn end_of(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let end = String::from_utf8_lossy(&text[text.len().saturating_sub(LOG_END)..]).trim().to_owned();
    if end.is_empty() { "it has said nothing".into() } else { format!("it said last: {end}") }
}

/// All that is needed to start a server, and to start it again.
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

/// A server that answers. It ends with this.
struct Server {
    process: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; there is nobody to tell.
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
        // The port is free when it is chosen. If somebody takes it before the server does, the server ends, and that is told.
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
                // Room for twice the data: it throws away what does not fit, or with -M, says so.
                let megabytes = 128 + (self.keys_max.saturating_mul(2 * (u64::from(self.value_bytes) + 160)) >> 20);
                command.args(["-l", "127.0.0.1", "-U", "0", "-M", "-p", &port.to_string(), "-m", &megabytes.to_string(), "-t", &self.threads.to_string()]);
                // It does not run as the superuser unless it is told to.
                command.args(["-u", "root"]);
            }
        }
        // Ctrl-C in a terminal is for the lab alone: it still asks this server for what its operation is waiting for.
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
            // It answers by ending.
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

/// A connection by the protocol of Redis.
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

    fn get_many(&mut self, keys: &[&[u8]], visit: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<(), Error> {
        let mut pipeline = redis::pipe();
        for key in keys {
            pipeline.cmd("GET").arg(*key);
        }
        let found: Vec<Option<Vec<u8>>> = pipeline.query(&mut self.connection).map_err(|error| Error::system(self.name, error))?;
        found.iter().enumerate().for_each(|(number, value)| visit(number, value.as_deref()));
        Ok(())
    }

    fn insert_many(&mut self, entries: &[(&[u8], &[u8])]) -> Result<(), Error> {
        let mut pipeline = redis::pipe();
        for (key, value) in entries {
            pipeline.cmd("SET").arg(*key).arg(*value).ignore();
        }
        pipeline.query(&mut self.connection).map_err(|error| Error::system(self.name, error))
    }
}

/// A connection by the text protocol of memcached: each request is written at once, and each answer read through one buffer.
struct Memcached {
    socket: TcpStream,
    reader: BufReader<TcpStream>,
    request: Vec<u8>,
    line: Vec<u8>,
    name: &'static str,
}

/// Requests of a pipeline that are sent before their answers are read: fewer than fill the buffers of a socket.
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

    /// Appends a blank and a key, in hexadecimal: it takes no blanks and no control characters in keys.
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

    /// Reads an answer that must be one of these two; whether it is the first.
    fn expect(&mut self, [yes, no]: [&str; 2]) -> io::Result<bool> {
        let line = self.read_line()?;
        if line == yes || line == no { Ok(line == yes) } else { Err(unexpected(line)) }
    }

    /// Asks for values, and calls `found` with each that is there and its place, in order.
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
                // Those that are not there are left out.
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
        self.insert_many(&[(key, value)])
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

    fn get_many(&mut self, keys: &[&[u8]], visit: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<(), Error> {
        let mut values: Vec<Option<Vec<u8>>> = vec![None; keys.len()];
        let asked = self.ask(keys, |place, from, size| {
            let mut value = vec![0; size];
            from.read_exact(&mut value)?;
            values[place] = Some(value);
            Ok(())
        });
        asked.map_err(self.failed())?;
        values.iter().enumerate().for_each(|(number, value)| visit(number, value.as_deref()));
        Ok(())
    }

    fn insert_many(&mut self, entries: &[(&[u8], &[u8])]) -> Result<(), Error> {
        for entries in entries.chunks(PIPELINE) {
            entries.iter().for_each(|(key, value)| self.add_set(key, value));
            self.send().map_err(self.failed())?;
            for _ in entries {
                // With -M it says so when it has no room.
                if !self.expect(["STORED", "NOT_STORED"]).map_err(self.failed())? {
                    return Err(Error::system(self.name, "it has not stored a value"));
                }
            }
        }
        Ok(())
    }
}
