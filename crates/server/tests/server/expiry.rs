//! Expired keys, which the sweep may or may not have removed.

use crate::peer::{Client, Running, encode};
use everleaf::{Domain, Options};
use everleaf_server::Config;
use std::thread;
use std::time::Duration;

/// Sets a key that has expired when this returns. The sweep pauses for much longer, so it has probably not removed it.
fn stale(client: &mut Client) {
    client.says("SET k v PX 1", "+OK\r\n");
    thread::sleep(Duration::from_millis(3));
}

fn expired_count(client: &mut Client) -> u64 {
    let info = String::from_utf8(client.call(&[b"INFO", b"stats"])).unwrap();
    info.lines().find_map(|line| line.strip_prefix("expired_keys:")).unwrap().parse().unwrap()
}

/// Regression: the client that watched such a key was told that it had changed.
#[test]
fn whoever_watches_what_has_expired_may_see_it_removed() {
    let server = Running::start();
    let (mut client, mut other) = (server.client(), server.client());
    let mut watch = |others: &[(&str, &str)], outcome| {
        stale(&mut client);
        client.replies("WATCH k", "+OK\r\n");
        others.iter().for_each(|(command, reply)| other.replies(command, reply));
        client.replies("MULTI", "+OK\r\n");
        client.replies("PING", "+QUEUED\r\n");
        client.replies("EXEC", outcome);
    };
    for _ in 0..10 {
        watch(&[("DEL k", ":0\r\n")], "*1\r\n+PONG\r\n");
        watch(&[("SET k w", "+OK\r\n"), ("DEL k", ":1\r\n")], "*-1\r\n");
    }
}

#[test]
fn whatever_removes_what_has_expired_counts_it() {
    let server = Running::start();
    let mut client = server.client();
    for round in 0..5 {
        assert_eq!(expired_count(&mut client), 4 * round);
        for line in ["SET k w", "DEL k", "SETNX k w", "MSET k w l w"] {
            stale(&mut client);
            client.call(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        }
    }
    client.says("CONFIG RESETSTAT", "+OK\r\n");
    assert_eq!(expired_count(&mut client), 0);
    // Keys that are not accessed are swept.
    stale(&mut client);
    let mut tries = 0;
    while expired_count(&mut client) == 0 {
        tries += 1;
        assert!(tries < 10_000, "it is not swept");
        thread::sleep(Duration::from_millis(1));
    }
    client.says("DBSIZE", ":1\r\n");
}

/// Regression: these keys existed until the next sweep.
#[test]
fn what_is_over_from_the_start_is_not_counted() {
    let server = Running::start();
    let mut client = server.client();
    for line in ["SET k v EXAT 1", "SET k v PXAT 1 NX", "SET k v PXAT 1 GET"] {
        client.call(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        client.says("DBSIZE", ":0\r\n");
    }
    client.says("SET k v", "+OK\r\n");
    client.says("SET k w PXAT 1 GET", "$1\r\nv\r\n");
    client.says("DBSIZE", ":0\r\n");
}

/// Commands that set expiry are run together with their neighbours in a pipeline.
#[test]
fn sets_of_a_pipeline_say_when_keys_expire() {
    for domain in [None, Some(Domain::Msync)] {
        let server = Running::over(Options { domain, ..Options::default() }, Config::default());
        let mut client = server.client();
        let lines = "SET a 1 EX 100\nSET b 2\nSETEX c 200 3\nPSETEX d 300000 4\nGET a\nSET e 5 pxat 4000000000000\nSET b 6 EX 400\nSET c 7\nGET c\nDEL d\n\
            SET f 8 EX 0\nSET g 9 EX 9223372036854775807\nSET h 10 EX ten\nSET i 11 EX\nSETEX j 0 12\nSET e 13 EXAT 1\n";
        let replies = "+OK\r\n+OK\r\n+OK\r\n+OK\r\n$1\r\n1\r\n+OK\r\n+OK\r\n+OK\r\n$1\r\n7\r\n:1\r\n\
            -ERR invalid expire time in 'set' command\r\n-ERR invalid expire time in 'set' command\r\n-ERR value is not an integer or out of range\r\n\
            -ERR syntax error\r\n-ERR invalid expire time in 'setex' command\r\n+OK\r\n";
        client.send(&lines.lines().flat_map(|line| encode(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())).collect::<Vec<u8>>());
        client.expect(replies.as_bytes());
        for (key, ttl) in [("a", 100), ("b", 400), ("c", -1), ("d", -2), ("e", -2), ("f", -2)] {
            client.says(&format!("TTL {key}"), &format!(":{ttl}\r\n"));
        }
    }
}
