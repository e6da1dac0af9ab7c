//! The same commands to a live redis-server and to ours: the replies must be the same bytes.
//!
//! `differential.txt` has a command line each. `@raw` lines are sent as they are, after C escapes, over a connection of their own, and everything until its end
//! is compared.

use crate::peer::{Client, Running, encode};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A redis-server on a free port; killed when this is dropped.
struct Redis {
    child: Child,
    address: SocketAddr,
}

impl Redis {
    fn start() -> Option<Self> {
        // The port is free again when the listener is dropped; that another program takes it at once would fail the test, not falsify it.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let port = address.port().to_string();
        let arguments = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let child = Command::new("redis-server").args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        let redis = Self { child, address };
        for _ in 0..500 {
            if std::net::TcpStream::connect(address).is_ok() {
                return Some(redis);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("redis-server does not listen on {address}");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is gone afterwards.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Splits a line into words and resolves `\r`, `\n`, `\0`, `\\`, `\"` and `\xHH`; quotes hold words together.
fn words(line: &str) -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = Vec::new();
    let (mut word, mut quoted) = (None::<Vec<u8>>, false);
    let mut bytes = line.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            b' ' if !quoted => words.extend(word.take()),
            b'\\' => word.get_or_insert_default().push(escape(&mut bytes)),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}

fn escape(bytes: &mut impl Iterator<Item = u8>) -> u8 {
    match bytes.next().unwrap() {
        b'r' => b'\r',
        b'n' => b'\n',
        b'0' => 0,
        b'x' => {
            let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
            u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
        }
        other => other,
    }
}

/// The reply to raw bytes, to the end of the connection.
fn raw(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut client = Client::connect(address);
    client.send(bytes);
    // Where the bytes are no error, the half-closed connection ends it.
    let _ = client.socket.shutdown(std::net::Shutdown::Write);
    client.read_to_end()
}

#[test]
fn replies_are_those_of_redis() {
    let Some(redis) = Redis::start() else {
        println!("skipped: redis-server is not installed");
        return;
    };
    let server = Running::start();
    let (mut theirs, mut ours) = (Client::connect(redis.address), server.client());
    let mut count = 0;
    let mut differences = Vec::new();
    for line in include_str!("differential.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        count += 1;
        let (their, our) = if let Some(text) = line.strip_prefix("@raw ") {
            let bytes = words(&format!("\"{text}\"")).concat();
            (raw(redis.address, &bytes), raw(server.address, &bytes))
        } else {
            let words = words(line);
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            assert!(!encode(&words).is_empty());
            (theirs.call(&words), ours.call(&words))
        };
        if their != our {
            differences.push(format!("{line}\n  redis: {:?}\n  ours:  {:?}", String::from_utf8_lossy(&their), String::from_utf8_lossy(&our)));
        }
    }
    assert!(differences.is_empty(), "{} of {count} differ:\n{}", differences.len(), differences.join("\n"));
    assert!(count > 250, "only {count} lines");
}
