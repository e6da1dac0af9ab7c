//! A server for the tests, and a small client that sees the bytes.

use everleaf::{Options, Store};
use everleaf_server::{Config, Server, Stop};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// A server on a free port of 127.0.0.1, over its own pool. It stops when this is dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) memcached: Option<SocketAddr>,
    pub(crate) tls: Option<SocketAddr>,
    pub(crate) memcached_tls: Option<SocketAddr>,
    pub(crate) stop: Stop,
    thread: Option<JoinHandle<Result<(), everleaf_server::Error>>>,
    _directory: tempfile::TempDir,
}

impl Running {
    pub(crate) fn start() -> Self {
        Self::with(Config { threads: 2, ..Config::default() })
    }

    /// With another configuration; address and port are overridden.
    pub(crate) fn with(config: Config) -> Self {
        Self::over(Options::default(), config)
    }

    /// With another pool, too.
    pub(crate) fn over(options: Options, config: Config) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(directory.path().join("test.pool"), options).unwrap());
        let server = Server::bind(Config { port: Some(0), ..config }, store).unwrap();
        let (address, memcached, stop) = (server.local_addr().unwrap(), server.memcached_addr(), server.stop_handle());
        let (tls, memcached_tls) = (server.tls_addr(), server.memcached_tls_addr());
        Self { address, memcached, tls, memcached_tls, stop, thread: Some(std::thread::spawn(move || server.run())), _directory: directory }
    }

    /// With two threads, and memcached clients enabled.
    pub(crate) fn with_memcached(options: Options, config: Config) -> Self {
        Self::over(options, Config { threads: 2, memcached_port: Some(0), ..config })
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// A client for the memcached protocol; the server must have it enabled.
    pub(crate) fn memcached_client(&self) -> Client {
        Client::connect(self.memcached.unwrap())
    }

    /// Waits until the server has ended by itself, and returns its result.
    pub(crate) fn wait(mut self) -> Result<(), everleaf_server::Error> {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(std::thread::panicking() || matches!(ended, Ok(Ok(()))), "the server ended badly: {ended:?}");
        }
    }
}

/// A connection.
pub(crate) struct Client {
    pub(crate) socket: TcpStream,
}

/// No other reply contains this: when it arrives, all earlier replies have been read.
const MARK: &[u8] = b"$16\r\n--end-of-reply--\r\n";

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).unwrap();
        // A lost reply should fail a test, not hang it.
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket.set_nodelay(true).unwrap();
        Self { socket }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    /// Reads exactly `expected`.
    #[track_caller]
    pub(crate) fn expect(&mut self, expected: &[u8]) {
        let mut got = vec![0; expected.len()];
        let mut size = 0;
        while size < got.len() {
            match self.socket.read(&mut got[size..]).unwrap() {
                0 => break,
                more => size += more,
            }
        }
        got.truncate(size);
        assert!(got == expected, "got {:?}\ninstead of {:?}", shorten(&got), shorten(expected));
    }

    /// Sends one command and returns the bytes of its reply. The connection must answer ECHO afterwards.
    pub(crate) fn call(&mut self, words: &[&[u8]]) -> Vec<u8> {
        let mut bytes = encode(words);
        bytes.extend(encode(&[b"ECHO", &MARK[5..MARK.len() - 2]]));
        self.send(&bytes);
        self.read_to_mark()
    }

    /// Sends one command and returns the bytes of the single reply, also after MULTI, where [`Client::call`] would queue its mark.
    pub(crate) fn exchange(&mut self, words: &[&[u8]]) -> Vec<u8> {
        self.send(&encode(words));
        let mut got = Vec::new();
        let mut piece = [0; 64 * 1024];
        loop {
            match self.socket.read(&mut piece).unwrap() {
                0 => return got,
                size => got.extend_from_slice(&piece[..size]),
            }
            if let Some(size) = reply_size(&got) {
                assert_eq!(size, got.len(), "more than one reply: {:?}", shorten(&got));
                return got;
            }
        }
    }

    /// [`Client::exchange`] with words separated by spaces.
    #[track_caller]
    pub(crate) fn replies(&mut self, line: &str, reply: &str) {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let got = self.exchange(&words);
        assert_eq!(String::from_utf8_lossy(&got), reply, "{line}");
    }

    /// [`Client::call`] with words separated by spaces, which is easier to read.
    #[track_caller]
    pub(crate) fn says(&mut self, line: &str, reply: &str) {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let got = self.call(&words);
        assert_eq!(String::from_utf8_lossy(&got), reply, "{line}");
    }

    fn read_to_mark(&mut self) -> Vec<u8> {
        let mut got = Vec::new();
        let mut piece = [0; 64 * 1024];
        while !got.ends_with(MARK) {
            match self.socket.read(&mut piece).unwrap() {
                0 => return got,
                size => got.extend_from_slice(&piece[..size]),
            }
        }
        got.truncate(got.len() - MARK.len());
        got
    }

    /// Reads up to `mark`, after which nothing may follow.
    pub(crate) fn read_until(&mut self, mark: &[u8]) -> String {
        let mut got = Vec::new();
        let mut piece = [0; 64 * 1024];
        while !got.ends_with(mark) {
            match self.socket.read(&mut piece).unwrap() {
                0 => break,
                size => got.extend_from_slice(&piece[..size]),
            }
        }
        String::from_utf8(got).unwrap()
    }

    /// Reads until the server closes the connection.
    pub(crate) fn read_to_end(&mut self) -> Vec<u8> {
        let mut got = Vec::new();
        let mut piece = [0; 4096];
        // A connection that is reset is closed too.
        while let Ok(size @ 1..) = self.socket.read(&mut piece) {
            got.extend_from_slice(&piece[..size]);
        }
        got
    }
}

/// Size of the first reply in `bytes`, if it is complete.
fn reply_size(bytes: &[u8]) -> Option<usize> {
    let line = memchr::memmem::find(bytes, b"\r\n")? + 2;
    let number = || std::str::from_utf8(&bytes[1..line - 2]).unwrap().parse::<i64>().unwrap();
    match bytes[0] {
        b'$' | b'=' => {
            let end = usize::try_from(number()).map_or(line, |size| line + size + 2);
            (end <= bytes.len()).then_some(end)
        }
        kind @ (b'*' | b'~' | b'%') => {
            let count = number().max(0) * if kind == b'%' { 2 } else { 1 };
            (0..count).try_fold(line, |at, _| Some(at + reply_size(&bytes[at..])?))
        }
        _ => Some(line),
    }
}

/// Reports that a test, or a part of it, is skipped. This bypasses the capture of passing tests' output, so that the test does not seem to have run.
pub(crate) fn skipped(why: std::fmt::Arguments<'_>) {
    // Without standard error there is no place for the message.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// A command as clients send it.
pub(crate) fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).bytes());
        bytes.extend_from_slice(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

pub(crate) fn shorten(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned()
}
