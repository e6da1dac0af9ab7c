//! Commands are atomic across connections, and all clients see an acknowledged write.

use crate::info::number;
use crate::peer::{Client, Running, encode};
use everleaf::{Domain, KEY_SIZE_MAX, Options};
use everleaf_server::Config;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
    let wins = AtomicUsize::new(0);
    together(|number| {
        let mut client = server.client();
        for round in 0..100 {
            let (left, right) = (format!("left{round}"), format!("right{round}"));
            let (keys, value) = ([left.as_bytes(), right.as_bytes()], number.to_string());
            // Half of the connections name the keys in the opposite order.
            let (first, second) = (keys[number % 2], keys[1 - number % 2]);
            if client.call(&[b"MSETNX", first, value.as_bytes(), second, value.as_bytes()]) == b":1\r\n" {
                wins.fetch_add(1, Ordering::Relaxed);
            }
            let both = client.call(&[b"MGET", left.as_bytes(), right.as_bytes()]);
            let text = String::from_utf8(both).unwrap();
            let values: Vec<&str> = text.lines().filter(|line| !line.starts_with(['*', '$'])).collect();
            assert!(values.len() == 2 && values[0] == values[1], "{text}");
        }
    });
    assert_eq!(wins.into_inner(), 100);
}

/// Regression: keys were read at different moments, and an MSET came in between: from another event loop, or from any loop between two slices. And keys were
/// deleted one by one.
#[test]
fn of_an_mset_or_a_del_an_mget_sees_all_or_nothing() {
    [Domain::PageCache, Domain::Msync].into_iter().for_each(expect_all_or_nothing);
}

fn expect_all_or_nothing(domain: Domain) {
    let server = Running::over(Options { domain: Some(domain), ..Options::default() }, Config { threads: 2, ..Config::default() });
    // More than one slice reads.
    let keys: Vec<Vec<u8>> = (0..3000).map(|key| format!("key{key}").into_bytes()).collect();
    let few = [&keys[0][..], &keys[2999]];
    let all: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let mset = |keys: &[&[u8]], value: &[u8]| encode(&std::iter::once(&b"MSET"[..]).chain(keys.iter().flat_map(|key| [*key, value])).collect::<Vec<_>>());
    let mut first = server.client();
    first.send(&mset(&all, b"0"));
    first.expect(b"+OK\r\n");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for keys in [&few[..], &all] {
            let (mut writer, is_over) = (server.client(), &is_over);
            scope.spawn(move || {
                for round in 0.. {
                    writer.send(&mset(keys, format!("{}", round % 10).as_bytes()).repeat(20));
                    writer.expect(&b"+OK\r\n".repeat(20));
                    writer.exchange(&[&[&b"DEL"[..]], keys].concat());
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let over = Over(&is_over);
        let mut reader = server.client();
        for round in 0..400 {
            // The other keys in the opposite order.
            let keys: Vec<&[u8]> = if round % 4 == 0 { all[1..2999].to_vec() } else { few.iter().copied().rev().collect() };
            let seen = numbers(&reader.exchange(&[&[&b"MGET"[..]], &keys[..]].concat()));
            assert!([0, keys.len()].contains(&seen.len()) && seen.iter().all(|value| *value == seen[0]), "{seen:?}");
        }
        drop(over);
    });
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

/// Regression: it was renamed with the expiry that it had when it was read.
#[test]
fn a_key_that_was_told_to_stay_stays_under_its_new_name() {
    let server = Running::with(Config { threads: 2, ..Config::default() });
    let value = vec![b'v'; 256 << 10];
    let is_persisted = AtomicBool::new(false);
    for _ in 0..200 {
        let start = Barrier::new(2);
        server.client().call(&[b"SET", b"k", &value, b"EX", b"1000000"]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = server.client();
                start.wait();
                is_persisted.store(client.call(&[b"PERSIST", b"k"]) == b":1\r\n", Ordering::Relaxed);
            });
            let mut client = server.client();
            start.wait();
            client.says("RENAME k l", "+OK\r\n");
        });
        let lasts = server.client().call(&[b"TTL", b"l"]) == b":-1\r\n";
        assert_eq!(lasts, is_persisted.load(Ordering::Relaxed));
    }
}

/// The integers of a reply, in bulk strings.
fn numbers(reply: &[u8]) -> Vec<i64> {
    let text = std::str::from_utf8(reply).unwrap();
    text.lines().filter(|line| !line.starts_with(['*', '$', '+', ':'])).map(|line| line.parse().unwrap()).collect()
}

/// Sends the commands of a transaction, and returns the reply of EXEC.
fn execute(client: &mut Client, lines: &[&str]) -> Vec<u8> {
    client.replies("MULTI", "+OK\r\n");
    lines.iter().for_each(|line| client.replies(line, "+QUEUED\r\n"));
    client.exchange(&[b"EXEC"])
}

#[test]
fn transfers_leave_the_sum_as_it_is() {
    const ACCOUNTS: usize = 6;
    let server = Running::with(Config { threads: 4, ..Config::default() });
    // Half of the accounts are in another database.
    let place = |account: usize| (format!("SELECT {}", account % 2), format!("account {account}").replace(' ', ""));
    for account in 0..ACCOUNTS {
        let mut client = server.client();
        let (select, key) = place(account);
        client.says(&select, "+OK\r\n");
        client.says(&format!("SET {key} 100"), "+OK\r\n");
    }
    together(|number| {
        let mut client = server.client();
        for round in 0..200 {
            if number == 0 {
                let places: Vec<_> = (0..ACCOUNTS).map(place).collect();
                let lines: Vec<_> = places.iter().flat_map(|(select, key)| [select.clone(), format!("GET {key}")]).collect();
                let seen = numbers(&execute(&mut client, &lines.iter().map(String::as_str).collect::<Vec<_>>()));
                assert_eq!((seen.len(), seen.iter().sum::<i64>()), (ACCOUNTS, 100 * ACCOUNTS as i64), "{seen:?}");
                continue;
            }
            let ((from, payer), (to, payee)) = (place((number + round) % ACCOUNTS), place((number * 5 + round * 7 + 1) % ACCOUNTS));
            let reply = execute(&mut client, &[&from, &format!("DECRBY {payer} {round}"), &to, &format!("INCRBY {payee} {round}")]);
            assert!(reply.starts_with(b"*4\r\n+OK\r\n:"), "{:?}", String::from_utf8_lossy(&reply));
        }
    });
}

#[test]
fn of_all_who_watch_one_wins() {
    let server = Running::with(Config { threads: 4, ..Config::default() });
    server.client().says("SET n 0", "+OK\r\n");
    let wins = AtomicUsize::new(0);
    together(|_| {
        let mut client = server.client();
        for _ in 0..200 {
            client.replies("WATCH n", "+OK\r\n");
            let seen = numbers(&client.exchange(&[b"GET", b"n"]))[0];
            let reply = execute(&mut client, &[&format!("SET n {}", seen + 1), "GET n"]);
            match numbers(&reply)[..] {
                [] => assert_eq!(reply, b"*-1\r\n"),
                [now] => {
                    assert_eq!(now, seen + 1);
                    wins.fetch_add(1, Ordering::Relaxed);
                }
                _ => panic!("{:?}", String::from_utf8_lossy(&reply)),
            }
        }
    });
    let wins = wins.into_inner();
    assert!(wins > 0);
    server.client().says("GET n", &format!("${}\r\n{wins}\r\n", wins.to_string().len()));
}

#[test]
fn a_transaction_that_others_would_always_overtake_gets_through() {
    let server = Running::with(Config { threads: 4, ..Config::default() });
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..3 {
            let (server, is_over) = (&server, &is_over);
            scope.spawn(move || {
                let mut client = server.client();
                while !is_over.load(Ordering::Relaxed) {
                    client.send(&encode(&[b"INCR", format!("n{number}").as_bytes()]).repeat(50));
                    assert!(client.call(&[b"PING"]).ends_with(b"+PONG\r\n"));
                }
            });
        }
        let over = Over(&is_over);
        let mut client = server.client();
        (0..2000).for_each(|number| client.says(&format!("SET key{number} v"), "+OK\r\n"));
        for _ in 0..20 {
            let reply = execute(&mut client, &["DBSIZE", "SET written v", "STRLEN written"]);
            assert!(reply.ends_with(b"+OK\r\n:1\r\n"), "{:?}", String::from_utf8_lossy(&reply));
        }
        drop(over);
        // Attempts that failed are not counted.
        assert_eq!(number(&mut client, "keyspace_hits"), 20);
    });
}

/// Signals the end of its scope to the others, even after a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Large values and failures end a group. Each command gets its own reply, and the remaining commands run after it.
#[test]
fn a_pipeline_that_mixes_commands_is_answered_in_its_order() {
    let too_long = vec![b'x'; KEY_SIZE_MAX + 1];
    let refusal = format!("-ERR key of {} bytes, at most {KEY_SIZE_MAX} are possible; hash the long part of it\r\n", KEY_SIZE_MAX + 1);
    let value = [b'v'; 300_000];
    let bulk = [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
    for (domain, threads) in [(Domain::PageCache, 1), (Domain::Msync, 1), (Domain::Msync, 3)] {
        let server = Running::over(Options { domain: Some(domain), ..Options::default() }, Config { threads, ..Config::default() });
        together(|number| {
            let mut client = server.client();
            let [large, spare] = ["large", "spare"].map(|name| format!("{name}{number}").into_bytes());
            client.send(&encode(&[b"SET", &large, &value]));
            client.expect(b"+OK\r\n");
            let (mut pipeline, mut expected) = (Vec::new(), Vec::new());
            for step in 0..12 {
                let [old, new] = [step, step + 1].map(|step| format!("{number}-{step}").into_bytes());
                let mut add = |words: &[&[u8]], reply: &[u8]| {
                    pipeline.extend(encode(words));
                    expected.extend_from_slice(reply);
                };
                add(&[b"GET", &large], &bulk);
                add(&[b"SET", &new, b"1"], b"+OK\r\n");
                add(&[b"DEL", &old], if step > 0 { b":1\r\n" } else { b":0\r\n" });
                add(&[b"SET", &too_long, b"1"], refusal.as_bytes());
                add(&[b"MSET", &new, b"2", &spare, b"2"], b"+OK\r\n");
                add(&[b"MSET", &new, b"3", &too_long, b"3"], refusal.as_bytes());
                add(&[b"MSET", &new, b"4", &spare, b"4", &new, b"1"], b"+OK\r\n");
                add(&[b"GET", &spare], b"$1\r\n4\r\n");
                add(&[b"DEL", &spare, &old], b":1\r\n");
                add(&[b"GET", &too_long], b"$-1\r\n");
                add(&[b"UNLINK", &old], b":0\r\n");
                add(&[b"GET", &new], b"$1\r\n1\r\n");
            }
            for _ in 0..2 {
                client.send(&pipeline);
                client.expect(&expected);
                client.says(&format!("DEL {number}-12"), ":1\r\n");
            }
        });
        server.client().says("DBSIZE", &format!(":{CLIENTS}\r\n"));
    }
}

/// Where a write waits for a device, SETs of several clients are run together. Each gets its own reply, and commands after it see it.
#[test]
fn sets_that_share_a_wait_are_answered_each_for_its_own() {
    let options = Options { domain: Some(Domain::Msync), ..Options::default() };
    let server = Running::over(options, Config { threads: 1, ..Config::default() });
    let too_long = vec![b'x'; KEY_SIZE_MAX + 1];
    together(|number| {
        let mut client = server.client();
        client.says(&format!("SELECT {}", number % 2), "+OK\r\n");
        let own = format!("own{number}");
        for round in 0..10 {
            let values = [2 * round, 2 * round + 1].map(|value| value.to_string());
            let sets = [(own.as_bytes(), values[0].as_bytes()), (&too_long, b"1"), (b"common", own.as_bytes()), (own.as_bytes(), values[1].as_bytes())];
            let get = encode(&[b"GET", own.as_bytes()]);
            let requests: Vec<Vec<u8>> = sets.iter().map(|(key, value)| encode(&[b"SET", key, value])).collect();
            // The SETs after the GET end the slice; those before it do not.
            client.send(&[&requests[..], &[get], &requests[..]].concat().concat());
            let too_long = format!("-ERR key of {} bytes, at most {KEY_SIZE_MAX} are possible; hash the long part of it\r\n", KEY_SIZE_MAX + 1);
            let answers = format!("+OK\r\n{too_long}+OK\r\n+OK\r\n");
            client.expect(format!("{answers}${}\r\n{}\r\n{answers}", values[1].len(), values[1]).as_bytes());
        }
    });
    let mut client = server.client();
    for number in 0..CLIENTS {
        client.says(&format!("SELECT {}", number % 2), "+OK\r\n");
        client.says(&format!("GET own{number}"), "$2\r\n19\r\n");
    }
}
