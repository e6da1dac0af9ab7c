//! Misbehaving clients: none of them may harm another client, or the server.

use crate::info::number;
use crate::peer::{Client, Running, encode};
use everleaf::{Domain, Options};
use everleaf_server::{Config, Limits};
use socket2::SockRef;
use std::io::Write;
use std::time::{Duration, Instant};

#[test]
fn a_password_is_asked_for() {
    let server = Running::with(Config { password: Some(b"secret".to_vec()), ..Config::default() });
    let mut client = server.client();
    client.send(b"GET a\r\nAUTH wrong\r\nNONSENSE\r\nAUTH secret\r\nGET a\r\nRESET\r\nGET a\r\nAUTH default secret\r\nPING\r\n");
    client.expect(
        b"-NOAUTH Authentication required.\r\n-WRONGPASS invalid username-password pair or user is disabled.\r\n\
          -ERR unknown command 'NONSENSE', with args beginning with: \r\n+OK\r\n$-1\r\n+RESET\r\n-NOAUTH Authentication required.\r\n+OK\r\n+PONG\r\n",
    );
    let mut narrow = server.client();
    narrow.send(b"*11\r\n");
    assert_eq!(narrow.read_to_end(), b"-ERR Protocol error: unauthenticated multibulk length\r\n");
    let mut hello = server.client();
    hello.send(b"HELLO 3 AUTH default secret SETNAME me\r\nCLIENT GETNAME\r\n");
    hello.expect(b"%7\r\n$6\r\nserver\r\n");
    assert!(hello.call(&[b"PING"]).ends_with(b"$2\r\nme\r\n+PONG\r\n"));
    let errors = b"# Errorstats\r\nerrorstat_ERR:count=2\r\nerrorstat_NOAUTH:count=2\r\nerrorstat_WRONGPASS:count=1\r\n";
    assert!(hello.call(&[b"INFO", b"errorstats"]).windows(errors.len()).any(|text| text == errors));
}

/// Regression: clients connected before the removal were still asked for the removed password, and could not supply it.
#[test]
fn a_password_that_is_taken_back_is_asked_of_nobody() {
    let server = Running::with(Config { password: Some(b"secret".to_vec()), ..Config::default() });
    let (mut client, mut stranger) = (server.client(), server.client());
    client.says("AUTH secret", "+OK\r\n");
    stranger.replies("GET k", "-NOAUTH Authentication required.\r\n");
    // An empty password means none; a line without quotes cannot express it.
    client.send(&encode(&[b"CONFIG", b"SET", b"requirepass", b""]));
    client.expect(b"+OK\r\n");
    stranger.says("GET k", "$-1\r\n");
    stranger.says(
        "AUTH secret",
        "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?\r\n",
    );
    // More arguments than an unauthenticated client may send.
    stranger.says("EXISTS 1 2 3 4 5 6 7 8 9 10 11 12", ":0\r\n");
    // When a password is set again, the client has to supply it.
    client.says("CONFIG SET requirepass other", "+OK\r\n");
    client.says("GET k", "$-1\r\n");
    stranger.replies("GET k", "-NOAUTH Authentication required.\r\n");
    stranger.says("AUTH other", "+OK\r\n");
}

#[test]
fn too_many_connections() {
    let limits = Limits { connection_count_max: 3, ..Limits::default() };
    let server = Running::with(Config { threads: 2, limits, ..Config::default() });
    let mut clients: Vec<Client> = (0..3).map(|_| server.client()).collect();
    clients.iter_mut().for_each(|client| client.says("PING", "+PONG\r\n"));
    assert_eq!(server.client().read_to_end(), b"-ERR max number of clients reached\r\n");
    drop(clients.pop());
    // The server notices the end of a connection only when it serves it.
    let mut again = (0..500).map(|_| server.client()).find_map(|mut client| {
        client.send(b"PING\r\n");
        let mut reply = [0; 7];
        let answered = std::io::Read::read_exact(&mut client.socket, &mut reply).is_ok() && &reply == b"+PONG\r\n";
        std::thread::sleep(Duration::from_millis(if answered { 0 } else { 10 }));
        answered.then_some(client)
    });
    again.as_mut().unwrap().says("PING", "+PONG\r\n");
}

#[test]
fn a_request_in_single_bytes_and_two_at_once() {
    let server = Running::start();
    let mut client = server.client();
    for byte in encode(&[b"SET", b"key", b"value"]) {
        client.send(&[byte]);
    }
    client.expect(b"+OK\r\n");
    client.send(&[encode(&[b"GET", b"key"]), encode(&[b"GET", b"none"])].concat());
    client.expect(b"$5\r\nvalue\r\n$-1\r\n");
}

#[test]
fn a_large_value_goes_in_and_out() {
    let server = Running::start();
    let mut client = server.client();
    let value: Vec<u8> = (0..40_u32 << 20).map(|at| (at ^ at >> 8) as u8).collect();
    client.send(&encode(&[b"SET", b"large", &value]));
    client.expect(b"+OK\r\n");
    client.send(b"STRLEN large\r\nGET large\r\nGET large\r\n");
    client.expect(format!(":{}\r\n", value.len()).as_bytes());
    for _ in 0..2 {
        client.expect(format!("${}\r\n", value.len()).as_bytes());
        client.expect(&value);
        client.expect(b"\r\n");
    }
}

#[test]
fn a_large_promise_costs_nothing() {
    let server = Running::start();
    let mut liars: Vec<Client> = (0..50).map(|_| server.client()).collect();
    liars.iter_mut().for_each(|liar| liar.send(b"*3\r\n$3\r\nSET\r\n$536870912\r\nabc"));
    server.client().says("PING", "+PONG\r\n");
    // In the end the server has read everything that each client sent, and buffers nothing more.
    let mut list = server.client();
    let all_read = (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        String::from_utf8(list.call(&[b"CLIENT", b"LIST"])).unwrap().matches(" qbuf=28 ").count() == liars.len()
    });
    assert!(all_read);
}

#[test]
fn limits_close_the_connection() {
    let limits = Limits { bulk_size_max: 1000, query_buffer_size_max: 100_000, output_buffer_size_max: 500_000, ..Limits::default() };
    let server = Running::with(Config { threads: 1, limits, ..Config::default() });
    let mut bulk = server.client();
    bulk.send(b"PING\r\n*2\r\n$4\r\nECHO\r\n$1001\r\n");
    assert_eq!(bulk.read_to_end(), b"+PONG\r\n-ERR Protocol error: invalid bulk length\r\n");
    let mut query = server.client();
    let words = vec![&[b'x'; 900][..]; 200];
    // The server may close the connection before all of it is sent.
    let _ = std::io::Write::write_all(&mut query.socket, &encode(&words));
    assert_eq!(query.read_to_end(), b"");
    server.client().says("APPEND k 1", ":1\r\n");
    server.client().says("SETRANGE k 1000 x", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n");
    assert_eq!(number(&mut server.client(), "client_query_buffer_limit_disconnections"), 1);
}

#[test]
fn a_client_that_only_sends_is_dropped_and_others_go_on() {
    let limits = Limits { query_buffer_size_max: 1 << 20, ..Limits::default() };
    let server = Running::with(Config { threads: 1, limits, ..Config::default() });
    let mut slow = server.client();
    slow.call(&[b"SET", b"k", &[b'v'; 100_000]]);
    slow.socket.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    let gets = encode(&[b"GET", b"k"]).repeat(1000);
    let mut dropped = false;
    for _ in 0..1000 {
        // It never reads, so eventually its connection is closed.
        dropped = std::io::Write::write_all(&mut slow.socket, &gets).is_err();
        server.client().says("PING", "+PONG\r\n");
        if dropped {
            break;
        }
    }
    assert!(dropped);
}

/// Bytes of replies that wait for `client`, as CLIENT LIST reports to `other`.
fn waiting(other: &mut Client, client: &Client) -> usize {
    let list = String::from_utf8(other.call(&[b"CLIENT", b"LIST"])).unwrap();
    let address = format!(" addr={} ", client.socket.local_addr().unwrap());
    let line = list.lines().find(|line| line.contains(&address)).unwrap();
    line.split(' ').find_map(|field| field.strip_prefix("obl=")).unwrap().parse().unwrap()
}

/// Regression: the client was dropped, because all of its replies were made at once.
#[test]
fn a_client_that_reads_late_gets_everything() {
    const COUNT: usize = 100_000;
    let limits = Limits { output_buffer_size_max: 8 << 20, ..Limits::default() };
    let server = Running::with(Config { threads: 1, limits, ..Config::default() });
    let (mut late, mut other) = (server.client(), server.client());
    late.call(&[b"SET", b"k", &[b'v'; 1000]]);
    // More than sockets buffer, before the first reply is read.
    late.send(&encode(&[b"GET", b"k"]).repeat(COUNT));
    let most = (0..100).map(|_| waiting(&mut other, &late)).max().unwrap();
    assert!((1 << 20..4 << 20).contains(&most), "{most}");
    let one = [b"$1000\r\n", &[b'v'; 1000][..], b"\r\n"].concat();
    (0..COUNT / 1000).for_each(|_| late.expect(&one.repeat(1000)));
}

/// Regression: the second value was read while the first one was still being sent, and the sent part of the first counted too. So the client was dropped,
/// however fast it read.
#[test]
fn large_values_of_one_pipeline_follow_one_another() {
    let limits = Limits { output_buffer_size_max: 48 << 20, ..Limits::default() };
    let server = Running::with(Config { threads: 1, limits, ..Config::default() });
    let mut client = server.client();
    let value = vec![b'v'; 40 << 20];
    client.call(&[b"SET", b"k", &value]);
    client.send(&encode(&[b"GET", b"k"]).repeat(3));
    for _ in 0..3 {
        client.expect(format!("${}\r\n", value.len()).as_bytes());
        client.expect(&value);
        client.expect(b"\r\n");
    }
}

/// Regression: any client could make the server buffer a gigabyte of these errors.
#[test]
fn few_errors_wait_for_whoever_owes_a_password() {
    let server = Running::with(Config { password: Some(b"secret".to_vec()), threads: 1, ..Config::default() });
    let (mut stranger, mut other) = (server.client(), server.client());
    other.says("AUTH secret", "+OK\r\n");
    stranger.socket.set_nonblocking(true).unwrap();
    let errors = b"GET k\r\n".repeat(1000);
    let mut most = 0;
    for _ in 0..2000 {
        // It never reads, so eventually the server stops reading from it.
        let _ = std::io::Write::write(&mut stranger.socket, &errors);
        most = most.max(waiting(&mut other, &stranger));
    }
    assert!((1..=32 * 1024).contains(&most), "{most}");
}

/// The names fit in a packet, but the values do not fit in memory.
#[test]
fn a_reply_is_not_gathered_beyond_the_limit() {
    let limits = Limits { output_buffer_size_max: 64 << 20, ..Limits::default() };
    let server = Running::with(Config { threads: 1, limits, ..Config::default() });
    let (mut greedy, mut other) = (server.client(), server.client());
    greedy.call(&[b"SET", b"k", &vec![b'v'; 32 << 20]]);
    greedy.send(&encode(&[&[&b"MGET"[..]][..], &[&b"k"[..]; 1000]].concat()));
    assert_eq!(greedy.read_to_end(), b"");
    let info = String::from_utf8(other.call(&[b"INFO", b"memory"])).unwrap();
    let resident = info.lines().find_map(|line| line.strip_prefix("used_memory_rss:")).unwrap().parse::<u64>().unwrap();
    assert!(resident < 4 << 30, "{resident} bytes");
}

/// Keys whose values a stuck reader has requested, after one that fills its socket.
const ASKED_COUNT: usize = 2000;

/// A client that reads nothing, whose MGET waits behind a long reply, and another client.
fn stuck_in_mget(output_buffer_size_max: usize) -> (Running, Client, Client) {
    let limits = Limits { output_buffer_size_max, ..Limits::default() };
    let server = Running::over(Options { size_max: 64 << 20, ..Options::default() }, Config { threads: 1, limits, ..Config::default() });
    let (mut stuck, mut other) = (server.client(), server.client());
    stuck.call(&[b"SET", b"large", &vec![b'l'; 10 << 20]]);
    (0..ASKED_COUNT).for_each(|number| drop(other.call(&[b"SET", format!("k{number}").as_bytes(), &[b'0'; 15_000]])));
    let names: Vec<String> = (0..ASKED_COUNT).map(|number| format!("k{number}")).collect();
    let mget: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain(names.iter().map(String::as_bytes)).collect();
    stuck.send(&[encode(&[b"GET", b"large"]), encode(&mget)].concat());
    (server, stuck, other)
}

/// Regression: the MGET kept its snapshot, and so all replaced versions, until a full pool refused every write.
#[test]
fn a_reader_that_is_stuck_in_mget_does_not_keep_others_from_writing() {
    let (_server, mut stuck, mut other) = stuck_in_mget(1 << 30);
    for round in b'1'..b'4' {
        for number in 0..ASKED_COUNT {
            assert_eq!(other.call(&[b"SET", format!("k{number}").as_bytes(), &[round; 15_000]]), b"+OK\r\n", "key {number} in round {round}");
        }
    }
    assert_eq!(number(&mut other, "snapshots"), 0);
    stuck.expect(&[&b"$10485760\r\n"[..], &vec![b'l'; 10 << 20], b"\r\n"].concat());
    stuck.expect(format!("*{ASKED_COUNT}\r\n").as_bytes());
    // As of the moment when it began.
    let one = [&b"$15000\r\n"[..], &[b'0'; 15_000], b"\r\n"].concat();
    (0..ASKED_COUNT).for_each(|_| stuck.expect(&one));
}

/// An operation that continues although its client reads nothing must buffer no more than any other.
#[test]
fn a_reader_that_is_stuck_in_mget_is_dropped_at_the_limit() {
    let (_server, stuck, mut other) = stuck_in_mget(16 << 20);
    let deadline = Instant::now() + Duration::from_secs(20);
    while number(&mut other, "connected_clients") > 1 {
        assert!(Instant::now() < deadline, "{} bytes wait", waiting(&mut other, &stuck));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(number(&mut other, "client_output_buffer_limit_disconnections"), 1);
}

/// Fills a database with keys that each take many steps to compare with the returned pattern.
fn slow_to_match(client: &mut Client, key_count: usize) -> Vec<u8> {
    (0..key_count).for_each(|number| drop(client.call(&[b"SET", &[&[b'a'; 8000], format!("{number:03}").as_bytes()].concat(), b"v"])));
    [&b"*"[..], &[b'a'; 2000], b"b"].concat()
}

/// Regression: only visited keys and output limited a slice. A few keys and a long pattern blocked all other clients of the thread for many seconds.
#[test]
fn patterns_that_take_long_leave_turns_to_others() {
    const KEY_COUNT: usize = 24;
    let server = Running::with(Config { threads: 1, ..Config::default() });
    let (mut greedy, mut modest) = (server.client(), server.client());
    let pattern = slow_to_match(&mut greedy, KEY_COUNT);
    let scans = encode(&[b"SCAN", b"0", b"COUNT", b"1000", b"MATCH", &pattern]).repeat(KEY_COUNT);
    greedy.send(&[encode(&[b"KEYS", &pattern]), scans, b"PING\r\n".to_vec()].concat());
    let reader = std::thread::spawn(move || assert!(greedy.read_until(b"+PONG\r\n").starts_with("*0\r\n*2\r\n$")));
    let mut turns = 0;
    while !reader.is_finished() {
        modest.says("PING", "+PONG\r\n");
        turns += 1;
    }
    reader.join().unwrap();
    assert!(turns >= KEY_COUNT / 2, "{turns} turns");
}

/// Regression: one comparison could take hours, during which no client was served.
#[test]
fn a_pattern_that_takes_too_long_for_one_key_is_an_error() {
    let server = Running::start();
    let mut client = server.client();
    client.call(&[b"SET", &[b'a'; 65_000], b"v"]);
    for pattern in [[&b"*"[..], &[b'a'; 32_000], b"b"].concat(), [&b"*["[..], &[b'b'; 1 << 20], b"]"].concat()] {
        for command in [&[&b"KEYS"[..], &pattern][..], &[b"SCAN", b"0", b"MATCH", &pattern]] {
            assert_eq!(client.call(command), b"-ERR the pattern takes over 16777216 steps for one key\r\n");
        }
    }
    client.says("PING", "+PONG\r\n");
}

/// Regression: the walk ran to its end, and its reply was discarded.
#[test]
fn a_walk_for_a_client_that_is_gone_ends() {
    let server = Running::with(Config { threads: 1, ..Config::default() });
    let (mut gone, mut other) = (server.client(), server.client());
    let pattern = slow_to_match(&mut gone, 500);
    gone.send(&encode(&[b"KEYS", &pattern]));
    let runs = |other: &mut Client| String::from_utf8(other.call(&[b"CLIENT", b"LIST"])).unwrap().contains(" cmd=keys ");
    while !runs(&mut other) {}
    let start = Instant::now();
    // So that the peer notices at once.
    SockRef::from(&gone.socket).set_linger(Some(Duration::ZERO)).unwrap();
    drop(gone);
    while number(&mut other, "connected_clients") > 1 {}
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}

#[test]
fn many_replies_wait_for_a_reader_that_writes_first() {
    let server = Running::with(Config { threads: 1, ..Config::default() });
    let mut client = server.client();
    client.call(&[b"SET", b"k", &[b'v'; 1000]]);
    let gets = encode(&[b"GET", b"k"]).repeat(20_000);
    client.send(&gets);
    let one = [b"$1000\r\n", &[b'v'; 1000][..], b"\r\n"].concat();
    client.expect(&one.repeat(20_000));
}

#[test]
fn what_was_sent_before_the_end_is_answered() {
    let server = Running::start();
    let mut client = server.client();
    client.send(&encode(&[b"APPEND", b"k", b"x"]).repeat(10_000));
    client.send(b"*2\r\n$3\r\nGET\r\n$1");
    client.socket.shutdown(std::net::Shutdown::Write).unwrap();
    let replies = String::from_utf8(client.read_to_end()).unwrap();
    assert_eq!(replies.lines().count(), 10_000);
    assert!(replies.ends_with(":10000\r\n"));
}

#[test]
fn nonsense_is_answered_and_closed() {
    let server = Running::start();
    for (bytes, reply) in [
        (&b"*1\r\n:5\r\n"[..], &b"-ERR Protocol error: expected '$', got ':'\r\n"[..]),
        (b"*x\r\n", b"-ERR Protocol error: invalid multibulk length\r\n"),
        (b"PING \"\r\n", b"-ERR Protocol error: unbalanced quotes in request\r\n"),
        (b"SET a 1\r\n*1\r\n$-5\r\n", b"+OK\r\n-ERR Protocol error: invalid bulk length\r\n"),
        (b"*1\r\n\xff\r\n", b"-ERR Protocol error: expected '$', got '\xff'\r\n"),
        (b"CLIENT REPLY OFF\r\n*1\r\n:5\r\n", b""),
        (b"CLIENT REPLY SKIP\r\n*1\r\n:5\r\n", b""),
        (b"QUIT\r\nPING\r\n", b"+OK\r\n"),
    ] {
        let mut client = server.client();
        client.send(bytes);
        assert_eq!(client.read_to_end(), reply, "{bytes:?}");
    }
    // A browser that was tricked into connecting: commands in the body are not run.
    let mut browser = server.client();
    browser.send(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nSET a hacked\r\n");
    browser.read_to_end();
    server.client().says("GET a", "$1\r\n1\r\n");
}

#[test]
fn a_long_pipeline_leaves_turns_to_others() {
    let server = Running::with(Config { threads: 1, ..Config::default() });
    let mut greedy = server.client();
    let count = 200_000;
    let pipeline = encode(&[b"INCR", b"n"]).repeat(count);
    let writer = std::thread::spawn({
        let mut socket = greedy.socket.try_clone().unwrap();
        move || std::io::Write::write_all(&mut socket, &pipeline)
    });
    let reader = std::thread::spawn(move || {
        let last = format!(":{count}\r\n").into_bytes();
        let mut got = Vec::new();
        let mut piece = [0; 65536];
        while !got.ends_with(&last) {
            let size = std::io::Read::read(&mut greedy.socket, &mut piece).unwrap();
            assert!(size > 0);
            got.extend_from_slice(&piece[..size]);
        }
    });
    let mut modest = server.client();
    // One thread serves both clients, and answers each of these in between.
    while !reader.is_finished() {
        modest.says("PING", "+PONG\r\n");
    }
    reader.join().unwrap();
    writer.join().unwrap().unwrap();
    modest.says("GET n", &format!("${}\r\n{count}\r\n", count.to_string().len()));
}

/// Regression: two thousand commands that each waited for the device ran in one slice.
#[test]
fn waits_for_a_device_leave_turns_to_others() {
    const WAITS: usize = 1024;
    let options = Options { domain: Some(Domain::Msync), ..Options::default() };
    let server = Running::over(options, Config { threads: 1, ..Config::default() });
    let (mut greedy, mut modest) = (server.client(), server.client());
    let start = Instant::now();
    greedy.send(&encode(&[b"INCR", b"n"]).repeat(WAITS));
    let reader = std::thread::spawn(move || greedy.expect((1..=WAITS).map(|n| format!(":{n}\r\n")).collect::<String>().as_bytes()));
    let mut turns = 0;
    while !reader.is_finished() {
        modest.says("PING", "+PONG\r\n");
        turns += 1;
    }
    reader.join().unwrap();
    // On a tmpfs no command waits, and the other client hardly gets to send.
    assert!(turns > WAITS / 128 || start.elapsed() < Duration::from_millis(50), "{turns} turns in {:?}", start.elapsed());
}

/// Regression: a thousand commands that each copied a whole value for one byte of it ran in one slice.
#[test]
fn looks_at_a_large_value_leave_turns_to_others() {
    const LOOKS: usize = 256;
    let server = Running::with(Config { threads: 1, ..Config::default() });
    let (mut greedy, mut modest) = (server.client(), server.client());
    greedy.call(&[b"SET", b"k", &vec![b'v'; 16 << 20]]);
    greedy.send(&encode(&[b"GETRANGE", b"k", b"0", b"0"]).repeat(LOOKS));
    let reader = std::thread::spawn(move || greedy.expect(&b"$1\r\nv\r\n".repeat(LOOKS)));
    let mut turns = 0;
    while !reader.is_finished() {
        modest.says("PING", "+PONG\r\n");
        turns += 1;
    }
    reader.join().unwrap();
    assert!(turns > LOOKS / 4, "{turns} turns");
}

#[test]
fn stop_answers_what_was_read() {
    let server = Running::start();
    let mut clients: Vec<Client> = (0..20).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send(&encode(&[b"INCR", b"n"]).repeat(100));
        client.expect(b":");
    }
    server.stop.stop();
    for client in &mut clients {
        // Complete replies, one for each command read, then the end.
        let replies = client.read_to_end();
        assert!(replies.ends_with(b"\r\n"));
    }
    assert!(std::net::TcpStream::connect(server.address).is_err() || Client::connect(server.address).read_to_end().is_empty());
    server.wait().unwrap();
}

/// Regression: the rest of the input was unread in the kernel, which therefore discarded undelivered replies.
#[test]
fn a_stop_delivers_the_replies_to_a_client_that_has_sent_more() {
    // A hundred megabytes may be buffered, and the client may be slow.
    let server = Running::with(Config { threads: 1, stop_patience: Duration::from_secs(60), ..Config::default() });
    let mut client = server.client();
    client.call(&[b"SET", b"k", &[b'v'; 1000]]);
    // More than is read while replies wait.
    let gets = encode(&[b"GET", b"k"]).repeat(200_000);
    let mut sender = client.socket.try_clone().unwrap();
    let sending = std::thread::spawn(move || sender.write_all(&gets));
    client.expect(b"$");
    server.stop.stop();
    let replies = [b"$".to_vec(), client.read_to_end()].concat();
    let one = [b"$1000\r\n", &[b'v'; 1000][..], b"\r\n"].concat();
    assert!(replies.len() > one.len() && replies.len().is_multiple_of(one.len()), "{} bytes", replies.len());
    drop(client);
    _ = sending.join().unwrap();
    server.wait().unwrap();
}

#[test]
fn shutdown_by_a_client() {
    let server = Running::start();
    let mut client = server.client();
    client.says("SHUTDOWN SOON", "-ERR syntax error\r\n");
    client.send(b"SHUTDOWN NOSAVE\r\n");
    assert_eq!(client.read_to_end(), b"");
    server.wait().unwrap();
}
