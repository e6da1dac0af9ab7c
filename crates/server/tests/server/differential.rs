//! Sends the same commands to a live redis-server and to ours: the replies must be the same bytes.
//!
//! `differential.txt` has one command per line. `@raw` lines are sent unchanged, after C escapes, over a connection of their own, and everything until its end
//! is compared. `@other` lines are sent over a second connection.

use crate::peer::{Client, Running, encode, shorten, skipped};
use everleaf::{Domain, Options};
use everleaf_server::Config;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A redis-server on a free port; killed when this is dropped.
struct Redis {
    child: Child,
    address: SocketAddr,
}

impl Redis {
    /// `None`, with a message, if it is not installed.
    fn start() -> Option<Self> {
        // The port is free again when the listener is dropped. If another program takes it at once, the test fails, but never passes wrongly.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let port = address.port().to_string();
        let arguments = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let child = Command::new("redis-server").args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.inspect_err(|error| skipped(format_args!("redis-server cannot be run: {error}"))).ok()?;
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
    // Where the bytes are no error, half-closing the connection ends it.
    let _ = client.socket.shutdown(std::net::Shutdown::Write);
    client.read_to_end()
}

#[test]
fn replies_are_those_of_redis() {
    let Some(redis) = Redis::start() else { return };
    let server = Running::start();
    let (mut theirs, mut ours) = (Client::connect(redis.address), server.client());
    let (mut their_other, mut our_other) = (Client::connect(redis.address), server.client());
    let mut count = 0;
    let mut differences = Vec::new();
    for line in include_str!("differential.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        count += 1;
        let (their, our) = if let Some(text) = line.strip_prefix("@raw ") {
            let bytes = words(&format!("\"{text}\"")).concat();
            (raw(redis.address, &bytes), raw(server.address, &bytes))
        } else {
            let (theirs, ours, line) = match line.strip_prefix("@other ") {
                Some(line) => (&mut their_other, &mut our_other, line),
                None => (&mut theirs, &mut ours, line),
            };
            let words = words(line);
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            (theirs.exchange(&words), ours.exchange(&words))
        };
        if their != our {
            differences.push(format!("{line}\n  redis: {:?}\n  ours:  {:?}", String::from_utf8_lossy(&their), String::from_utf8_lossy(&our)));
        }
    }
    assert!(differences.is_empty(), "{} of {count} differ:\n{}", differences.len(), differences.join("\n"));
    assert!(count > 250, "only {count} lines");
}

/// Commands that change keys, and others, some of them together: each line is sent at once.
const CHANGES: &[&[&str]] = &[
    &["SET a 1"],
    &["SET a 2 NX", "SET b 2 NX", "SET c 2 XX", "SET a 3 GET", "SET a 4 EX 1000"],
    &["SET a 1", "SET b 1", "SET c 1", "GET a", "SET d 1"],
    &["MSET a 1 b 2 a 3", "MSETNX a 1 z 1", "MSETNX y 1 z 1", "SETNX a 1", "SETNX x 1"],
    &["DEL a b nosuch", "UNLINK nosuch", "GETDEL nosuch", "GETDEL x"],
    &["APPEND s abc", "SETRANGE s 1 x", "SETRANGE nosuch 0 ", "GETRANGE s 0 1", "INCR s", "INCR n", "DECRBY n 5", "INCRBYFLOAT f 0.5"],
    &["GETSET n 7", "EXPIRE n 100", "EXPIRE nosuch 100", "EXPIRE n 200 NX", "GETEX n", "GETEX n EX 100", "PERSIST n", "PERSIST n", "GETEX n PERSIST"],
    &["SETEX e 100 v", "PSETEX e 100000 v", "EXPIRE e -1", "SET g v", "GETEX g PXAT 1", "GETEX nosuch EX 0", "GETEX nosuch EX x", "GETEX nosuch EX"],
    &["RENAME n m", "RENAME nosuch m", "RENAMENX m s", "RENAMENX m o", "RENAME o o"],
    &["COPY s t", "COPY s t", "COPY s t REPLACE", "COPY s s", "COPY nosuch t REPLACE"],
    &["MULTI", "SET p 1", "INCR p", "DEL p nosuch", "MSET p 1 q 1", "RENAME p r", "INCR s", "EXEC"],
    &["MULTI", "SET p 1", "DISCARD", "MULTI", "GET p", "EXEC"],
    &["MULTI", "SET p 1", "FLUSHDB", "SET p 2", "EXEC"],
    &["SELECT 1", "SET one 1", "SELECT 0", "FLUSHDB", "FLUSHDB"],
];

#[test]
fn changes_are_counted_as_redis_does() {
    let Some(redis) = Redis::start() else { return };
    let server = Running::start();
    let (mut theirs, mut ours) = (Client::connect(redis.address), server.client());
    let count = |client: &mut Client| {
        let info = String::from_utf8(client.exchange(&[b"INFO", b"persistence"])).unwrap();
        info.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:")).unwrap().parse::<u64>().unwrap()
    };
    for lines in CHANGES {
        let bytes: Vec<u8> = lines.iter().flat_map(|line| encode(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())).collect();
        for client in [&mut theirs, &mut ours] {
            client.send(&bytes);
            client.call(&[b"PING"]);
        }
        assert_eq!(count(&mut ours), count(&mut theirs), "after {lines:?}");
    }
    assert!(count(&mut ours) > 40);
}

/// Forms of commands: K is a key, V a value, N a number or something similar, W a word of some command. Intended differences are left out: cursors, expiry,
/// rounding of floating-point sums, and descriptions of the server.
const FORMS: &[&str] = &[
    "PING",
    "PING V",
    "ECHO V",
    "SELECT N",
    "GET K",
    "SET K V",
    "SET K V W",
    "SET K V W W",
    "SET K V W N",
    "GETSET K V",
    "GETDEL K",
    "MGET K K K",
    "MSET K V",
    "MSET K V K V",
    "MSET K V K",
    "MSETNX K V K V",
    "MSETNX K V K",
    "SETNX K V",
    "DEL K K",
    "UNLINK K",
    "EXISTS K K",
    "STRLEN K",
    "APPEND K V",
    "GETRANGE K N N",
    "SUBSTR K N N",
    "SETRANGE K N V",
    "INCR K",
    "DECR K",
    "INCRBY K N",
    "DECRBY K N",
    "INCRBYFLOAT K W",
    "TYPE K",
    "DBSIZE",
    "FLUSHDB",
    "FLUSHDB W",
    "FLUSHALL W",
    "RENAME K K",
    "RENAMENX K K",
    "COPY K K",
    "COPY K K REPLACE",
    "COPY K K DB N",
    "TOUCH K K",
    "COMMAND GETKEYS GET K",
    "COMMAND GETKEYS MSET K V K V",
    "COMMAND W",
    "CLIENT SETNAME V",
    "CLIENT GETNAME",
    "CLIENT LIST TYPE W",
    "CLIENT LIST ID x",
    "CLIENT KILL W",
    "CLIENT KILL W V",
    "CLIENT NO-EVICT W",
    "CLIENT W",
    "CONFIG GET nosuch",
    "CONFIG SET nosuch V",
    "CONFIG W",
    "OBJECT W",
    "AUTH V",
    "AUTH V V",
    "AUTH V V V",
    "HELLO N W",
    "RESET",
    "SCAN x W",
    "KEYS",
    "RANDOMKEY V",
    "SHUTDOWN W",
    "nosuch V",
    "MULTI",
    "MULTI",
    "EXEC",
    "EXEC",
    "DISCARD",
    "WATCH K",
    "WATCH K K",
    "UNWATCH",
];
const KEYS: &[&[u8]] = &[b"a", b"b", b"n", b"", b"k\r\n", b"\x00\xff", &[b'l'; 100]];
const VALUES: &[&[u8]] = &[
    b"",
    b"0",
    b"1",
    b"-1",
    b"10",
    b"007",
    b"+5",
    b" 5",
    b"5 ",
    b"-0",
    b"3.14",
    b"abc",
    b"two words",
    b"\x00\xff\r\n",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"9223372036854775808",
    b"nan",
    b"1_000",
];
const NUMBERS: &[&[u8]] = &[
    b"0",
    b"1",
    b"-1",
    b"2",
    b"5",
    b"-2",
    b"100",
    b"-100",
    b"536870912",
    b"2147483648",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"9223372036854775808",
    b"x",
    b"",
    b"1.5",
    b" 1",
    b"+1",
    b"01",
    b"-0",
];
const WORDS: &[&[u8]] =
    &[b"NX", b"XX", b"GET", b"get", b"KEEPTTL", b"MATCH", b"COUNT", b"TYPE", b"ASYNC", b"SYNC", b"ON", b"OFF", b"ADDR", b"SETNAME", b"AUTH", b"foo"];

#[test]
fn replies_to_random_commands_are_those_of_redis() {
    let Some(redis) = Redis::start() else { return };
    let server = Running::start();
    for (seed, protocol) in [(1, b"2"), (2, b"3")] {
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let (mut theirs, mut ours) = (Client::connect(redis.address), server.client());
        for _ in 0..5000 {
            let form = FORMS.choose(&mut random).unwrap();
            let mut words: Vec<&[u8]> = form
                .split(' ')
                .map(|word| match word {
                    "K" => KEYS.choose(&mut random).unwrap(),
                    "V" => VALUES.choose(&mut random).unwrap(),
                    "N" => NUMBERS.choose(&mut random).unwrap(),
                    "W" => WORDS.choose(&mut random).unwrap(),
                    word => word.as_bytes(),
                })
                .collect();
            // Occasionally one word more or less than that.
            match random.random_range(0..10) {
                0 => words.push(WORDS.choose(&mut random).unwrap()),
                1 if words.len() > 1 => drop(words.pop()),
                _ => {}
            }
            let described = [&[&b"COMMAND"[..], b"INFO"][..], &[b"COMMAND", b"COUNT"], &[b"CLIENT", b"LIST"], &[b"HELLO", b"2"], &[b"HELLO", b"3"]];
            let left_out = matches!(words[..], [b"SHUTDOWN" | b"COMMAND" | b"RANDOMKEY" | b"HELLO"]) || described.contains(&&words[..]);
            if !left_out {
                let (their, our) = (theirs.exchange(&words), ours.exchange(&words));
                assert!(their == our, "{}\n  redis: {:?}\n  ours:  {:?}", show(&words), shorten(&their), shorten(&our));
            }
            if words[0] == b"RESET" {
                theirs.exchange(&[b"HELLO", protocol]);
                ours.exchange(&[b"HELLO", protocol]);
            }
        }
    }
}

/// Commands that are run together, and some that are not and end such a group.
const PIPELINED: &[&str] = &[
    "GET K",
    "GET K",
    "GET K",
    "SET K V",
    "SET K V",
    "SET K V",
    "DEL K",
    "UNLINK K",
    "INCR K",
    "APPEND K V",
    "SET K V NX",
    "DEL K K",
    "STRLEN K",
    "SELECT N",
    "nosuch",
];

/// Also where a write waits for a device: there commands wait for those of other clients, of which there are some.
#[test]
fn replies_to_pipelines_that_mix_commands_are_those_of_redis() {
    let Some(redis) = Redis::start() else { return };
    for (domain, threads) in [(Domain::PageCache, 1), (Domain::Msync, 1), (Domain::Msync, 3)] {
        let server = Running::over(Options { domain: Some(domain), ..Options::default() }, Config { threads, ..Config::default() });
        let work = |seed: u64| {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut theirs, mut ours) = (Client::connect(redis.address), server.client());
            for round in 0..15 {
                let count = random.random_range(1..300);
                let mut pipeline = Vec::new();
                for _ in 0..count {
                    // Each client has its own keys.
                    let own =
                        |random: &mut StdRng| [domain.name().as_bytes(), &[threads as u8], &seed.to_be_bytes(), &[random.random_range(b'a'..b'm')]].concat();
                    let words = PIPELINED.choose(&mut random).unwrap().split(' ').map(|word| match word {
                        "K" => own(&mut random),
                        "V" => VALUES.choose(&mut random).unwrap().to_vec(),
                        "N" => random.random_range(0..2u8).to_string().into_bytes(),
                        word => word.as_bytes().to_vec(),
                    });
                    let words: Vec<_> = words.collect();
                    pipeline.extend(encode(&words.iter().map(Vec::as_slice).collect::<Vec<_>>()));
                }
                let [their, our] = [&mut theirs, &mut ours].map(|client| {
                    client.send(&pipeline);
                    client.call(&[b"PING"])
                });
                let sent = String::from_utf8_lossy(&pipeline);
                assert!(
                    their == our,
                    "{domain}, {threads} threads, seed {seed}, round {round}: {sent}\n  redis: {:?}\n  ours:  {:?}",
                    shorten(&their),
                    shorten(&our)
                );
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|seed| drop(scope.spawn(move || work(seed)))));
    }
}

fn show(words: &[&[u8]]) -> String {
    words.iter().map(|word| format!("{:?}", String::from_utf8_lossy(word))).collect::<Vec<_>>().join(" ")
}
