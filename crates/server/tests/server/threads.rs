//! Commands are atomic among connections, and a write that was acknowledged is seen by all.

use crate::peer::{Running, encode};
use everleaf_server::Config;

const CLIENTS: usize = 8;
const ROUNDS: usize = 1000;

fn together(work: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let work = &work;
            scope.spawn(move || work(number));
        }
    });
}

#[test]
fn no_increment_and_no_append_is_lost() {
    let server = Running::with(Config { threads: 4, ..Config::default() });
    together(|_| {
        let mut client = server.client();
        client.send(&[encode(&[b"INCR", b"n"]), encode(&[b"APPEND", b"text", b"x"])].concat().repeat(ROUNDS));
        let replies = String::from_utf8(client.call(&[b"PING"])).unwrap();
        assert_eq!(replies.lines().count(), 2 * ROUNDS + 1);
    });
    let total = CLIENTS * ROUNDS;
    server.client().says("GET n", &format!("$4\r\n{total}\r\n"));
    server.client().says("STRLEN text", &format!(":{total}\r\n"));
}

#[test]
fn of_all_who_set_if_absent_one_wins() {
    let server = Running::with(Config { threads: 4, ..Config::default() });
    let wins = std::sync::atomic::AtomicUsize::new(0);
    together(|number| {
        let mut client = server.client();
        for round in 0..100 {
            let (left, right) = (format!("left{round}"), format!("right{round}"));
            let (keys, value) = ([left.as_bytes(), right.as_bytes()], number.to_string());
            // Half of them name the keys the other way round.
            let (first, second) = (keys[number % 2], keys[1 - number % 2]);
            if client.call(&[b"MSETNX", first, value.as_bytes(), second, value.as_bytes()]) == b":1\r\n" {
                wins.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
            let both = client.call(&[b"MGET", left.as_bytes(), right.as_bytes()]);
            let text = String::from_utf8(both).unwrap();
            let values: Vec<&str> = text.lines().filter(|line| !line.starts_with(['*', '$'])).collect();
            assert!(values.len() == 2 && values[0] == values[1], "{text}");
        }
    });
    assert_eq!(wins.into_inner(), 100);
}

#[test]
fn a_renamed_value_is_neither_lost_nor_doubled() {
    let server = Running::with(Config { threads: 4, ..Config::default() });
    server.client().says("SET 0 token", "+OK\r\n");
    together(|number| {
        let mut client = server.client();
        for round in 0..200 {
            let (from, to) = ((number + round) % 5, (number * 3 + round * 7) % 5);
            let reply = client.call(&[b"RENAME", from.to_string().as_bytes(), to.to_string().as_bytes()]);
            assert!(reply == b"+OK\r\n" || reply == b"-ERR no such key\r\n", "{:?}", String::from_utf8_lossy(&reply));
        }
    });
    server.client().says("DBSIZE", ":1\r\n");
}
