//! The memcached protocol, byte by byte.

use crate::peer::{Client, Running};
use everleaf::{Domain, Options};
use everleaf_server::memcached::{MEMCACHED_VERSION, request::LINE_SIZE_MAX};
use everleaf_server::{Config, Limits};
use std::fmt::Write as _;
use std::time::Duration;

fn server() -> Running {
    Running::with_memcached(Options::default(), Config::default())
}

/// Sends lines, with the text between two slashes as data, and expects the replies in the same notation.
#[track_caller]
fn says(client: &mut Client, sent: &str, expected: &str) {
    client.send(lines(sent).as_bytes());
    client.expect(lines(expected).as_bytes());
}

fn lines(text: &str) -> String {
    text.split('/').fold(String::new(), |all, line| all + line + "\r\n")
}

/// The number that `gets` returns.
fn unique(client: &mut Client, key: &str) -> u64 {
    client.send(format!("gets {key}\r\n").as_bytes());
    let reply = client.read_until(b"END\r\n");
    let line = reply.lines().next().unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn every_way_to_store() {
    let server = server();
    let mut client = server.memcached_client();
    says(&mut client, "get k", "END");
    says(&mut client, "set k 5 0 3/one/get k", "STORED/VALUE k 5 3/one/END");
    says(&mut client, "add k 6 0 3/two/add l 4294967295 0 0//get l", "NOT_STORED/STORED/VALUE l 4294967295 0//END");
    says(&mut client, "replace m 1 0 1/x/replace k 1 0 1/x/get k", "NOT_STORED/STORED/VALUE k 1 1/x/END");
    says(
        &mut client,
        "append k 9 0 2/yz/prepend k 9 0 2/vw/append m 0 0 1/x/prepend m 0 0 1/x/get k",
        "STORED/STORED/NOT_STORED/NOT_STORED/VALUE k 1 5/vwxyz/END",
    );
    let seen = unique(&mut client, "k");
    says(&mut client, &format!("cas k 2 0 3 {seen}/new/cas k 3 0 5 {seen}/newer/cas m 0 0 1 {seen}/x/get k"), "STORED/EXISTS/NOT_FOUND/VALUE k 2 3/new/END");
    assert_ne!(unique(&mut client, "k"), seen);
    says(&mut client, "delete k/delete k/delete l 0/get k l", "DELETED/NOT_FOUND/DELETED/END");
}

#[test]
fn several_keys_at_once() {
    let server = server();
    let mut client = server.memcached_client();
    let (mut sent, mut keys, mut expected) = (String::new(), "get absent".to_owned(), String::new());
    for n in 0..5000 {
        write!(sent, "set key{n:0100} {n} 0 300 noreply\r\n{n:0300}\r\n").unwrap();
        write!(keys, "  key{n:0100}").unwrap();
        write!(expected, "VALUE key{n:0100} {n} 300\r\n{n:0300}\r\n").unwrap();
    }
    says(&mut client, "set key1 1 0 1/1/set key2 2 0 1/2", "STORED/STORED");
    client.send(format!("{sent}{keys} absent\r\nmn\r\n").as_bytes());
    client.expect(format!("{expected}END\r\nMN\r\n").as_bytes());
    says(&mut client, "gat 100 key1 absent key2/get key1 key1", "VALUE key1 1 1/1/VALUE key2 2 1/2/END/VALUE key1 1 1/1/VALUE key1 1 1/1/END");
    let many = "key1 ".repeat(100);
    client.send(format!("gats 100 {many}\r\nmn\r\n").as_bytes());
    let reply = client.read_until(b"MN\r\n");
    assert_eq!((reply.lines().filter(|line| line.starts_with("VALUE key1 1 1 ")).count(), reply.lines().count()), (100, 202));
}

#[test]
fn numbers_count_up_and_down() {
    let server = server();
    let mut client = server.memcached_client();
    says(&mut client, "incr n 1/set n 7 0 2/10/incr n 5/decr n 20/incr n 18446744073709551615/incr n 2", "NOT_FOUND/STORED/15/0/18446744073709551615/1");
    says(&mut client, "get n/incr n x/decr n -1", "VALUE n 7 1/1/END/CLIENT_ERROR invalid numeric delta argument/CLIENT_ERROR invalid numeric delta argument");
    says(&mut client, "set n 0 0 3/1.5/incr n 1", "STORED/CLIENT_ERROR cannot increment or decrement non-numeric value");
}

#[test]
fn items_expire() {
    let server = server();
    let mut client = server.memcached_client();
    says(&mut client, "set over 0 -1 1/x/set past 0 2592001 1/x/set now 0 1 1/x/set later 0 100 1/x/get over past", "STORED/STORED/STORED/STORED/END");
    says(&mut client, "get now later", "VALUE now 0 1/x/VALUE later 0 1/x/END");
    says(
        &mut client,
        "touch later 1/touch absent 1/add kept 3 1 1/x/touch kept 0/add gat 0 1 1/x/gats 0 absent",
        "TOUCHED/NOT_FOUND/STORED/TOUCHED/STORED/END",
    );
    let seen = unique(&mut client, "gat");
    says(&mut client, "gats 0 gat", &format!("VALUE gat 0 1 {seen}/x/END"));
    std::thread::sleep(Duration::from_millis(1100));
    says(&mut client, "get now later kept gat", "VALUE kept 3 1/x/VALUE gat 0 1/x/END");
    says(&mut client, "set kept 0 -1 1/x/get kept", "STORED/END");
}

/// A pipeline is answered in order, whatever parts of it run together. Commands that want no reply get none.
#[test]
fn pipelines() {
    for domain in [None, Some(Domain::Msync)] {
        let server = Running::with_memcached(Options { domain, ..Options::default() }, Config::default());
        let mut client = server.memcached_client();
        let sent = "set a 1 0 1/1/get a/set b 2 1000 2 noreply/22/gets absent/delete a/delete a/delete b noreply/get b/set a 3 0 3/333/get a/incr a 1/bogus/\
            get a/set c 0 0 1 noreply/c/touch c 0 noreply/add c 0 0 1 noreply/d/set d 0 -1 1/d/get c/flush_all noreply/get a c/flush_all 0/verbosity 1/\
            verbosity 1 noreply/mn";
        let expected =
            "STORED/VALUE a 1 1/1/END/END/DELETED/NOT_FOUND/END/STORED/VALUE a 3 3/333/END/334/ERROR/VALUE a 3 3/334/END/STORED/VALUE c 0 1/c/END/END/OK/OK/MN";
        let meta = "ms a 1 F3 q/1/mg a v f s k Oo/mg absent v q/mg absent/md a q/md a q Ox/md a k/ms b 2 T1000 Oy/22/mg b/md b/ms c 1 MS/c/mg c v/ms d 1 T-1/d/\
            mg d/mg c t v/md c/mn";
        let told = "VA 1 f3 s1 ka Oo/1/EN/NF Ox/NF ka/HD Oy/HD/HD/HD/VA 1/c/HD/EN/VA 1 t-1/c/HD/MN";
        for (size, (sent, expected)) in [1, 7, usize::MAX].into_iter().flat_map(|size| [(size, (sent, expected)), (size, (meta, told))]) {
            lines(sent).as_bytes().chunks(size).for_each(|piece| client.send(piece));
            client.expect(lines(expected).as_bytes());
        }
    }
}

/// A failed command leaves the stream in step: data are never taken for commands.
#[test]
fn what_is_wrong_is_said() {
    let server = Running::with_memcached(Options::default(), Config { limits: Limits { bulk_size_max: 1000, ..Limits::default() }, ..Config::default() });
    let mut client = server.memcached_client();
    let long = "k".repeat(251);
    const BAD: &str = "CLIENT_ERROR bad command line format";
    for (sent, expected) in [
        ("bogus", "ERROR"),
        ("get", "ERROR"),
        ("GET k", "ERROR"),
        (&*format!("get {long}"), BAD),
        (&*format!("set {long} 0 0 9/flush_all"), BAD),
        ("set k x 0 9/flush_all", BAD),
        ("set k 4294967296 0 9/flush_all", BAD),
        ("set k 0 x 9/flush_all", "CLIENT_ERROR invalid exptime argument"),
        ("set k 0 0 9 more/flush_all", BAD),
        ("cas k 0 0 9/flush_all", BAD),
        ("set", "ERROR"),
        ("set k", "ERROR"),
        ("set k 0 0", "ERROR"),
        ("set k 0 0 -1", BAD),
        ("set k 0 0 2/abcdef", "CLIENT_ERROR bad data chunk/ERROR"),
        ("set k 0 0 2 noreply/abcdef", "ERROR"),
        (&*format!("set {long} 0 0 9 noreply/flush_all/incr mark noreply/touch mark x noreply/mn"), "MN"),
        ("", "ERROR"),
        (&*format!("set k 0 0 1001/{}", "flush_all ".repeat(100) + "x"), "SERVER_ERROR object too large for cache"),
        ("delete k 1", "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]"),
        ("incr k", "ERROR"),
        ("touch k", "ERROR"),
        ("gat 1", "ERROR"),
        ("flush_all 10", "CLIENT_ERROR flush_all cannot be delayed"),
        ("flush_all x", BAD),
        ("stats unknown", "ERROR"),
        ("stats items", "END"),
    ] {
        says(&mut client, &format!("set mark 0 0 4/mark/{sent}/get mark"), &format!("STORED/{expected}/VALUE mark 0 4/mark/END"));
    }
    says(&mut client, "version", &format!("VERSION {MEMCACHED_VERSION}"));
    for (end, reply) in [
        (&b"quit\r\nset k 0 0 1\r\nx\r\n"[..], ""),
        (b"PUT / http HTTP/1.1\r\nset k 0 0 1\r\nx\r\n", ""),
        (b"host: here\r\nset k 0 0 1\r\nx\r\n", ""),
        (b"set k 0 0 18446744073709551614\r\nset k 0 0 1\r\nx\r\n", "SERVER_ERROR object too large for cache\r\n"),
        (b"set k 0 0 2147483648\r\nset k 0 0 1\r\nx\r\n", "SERVER_ERROR object too large for cache\r\n"),
        (b"\x80\x00\x00\x01k", "CLIENT_ERROR the binary protocol is not spoken here\r\n"),
        (&[b'a'; LINE_SIZE_MAX], "CLIENT_ERROR line too long\r\n"),
    ] {
        let mut other = server.memcached_client();
        other.send(end);
        assert_eq!(String::from_utf8_lossy(&other.read_to_end()), reply);
    }
    says(&mut client, "get k", "END");
}

#[test]
fn a_full_pool_refuses_and_serves_on() {
    let server = Running::with_memcached(Options { size_max: 16 << 20, ..Options::default() }, Config::default());
    let mut client = server.memcached_client();
    let value = "v".repeat(100_000);
    let mut stored = 0;
    loop {
        client.send(format!("set key{stored} 0 0 {}\r\n{value}\r\n", value.len()).as_bytes());
        match &*client.read_until(b"\r\n") {
            "STORED\r\n" => stored += 1,
            refused => break assert_eq!(refused, "SERVER_ERROR out of memory storing object\r\n"),
        }
    }
    assert!(stored > 50, "{stored}");
    let refused = "SERVER_ERROR out of memory storing object";
    says(
        &mut client,
        &format!("delete absent/set new 0 0 100000/{value}/delete absent/set new 0 0 100000 noreply/{value}/get new"),
        &format!("NOT_FOUND/{refused}/NOT_FOUND/END"),
    );
    says(&mut client, "touch key0 0/delete key1/delete absent", "TOUCHED/DELETED/NOT_FOUND");
    says(&mut client, "get key0", &format!("VALUE key0 0 100000/{value}/END"));
    says(&mut client, &format!("set key1 0 0 100000/{value}/get key1"), &format!("STORED/VALUE key1 0 100000/{value}/END"));
}

#[test]
fn a_password_is_shown_by_a_set() {
    let server = Running::with_memcached(Options::default(), Config { password: Some(b"secret word".to_vec()), ..Config::default() });
    let mut client = server.memcached_client();
    says(&mut client, "get k/set k 0 0 9/user open/mn", "CLIENT_ERROR unauthenticated/CLIENT_ERROR authentication failure/CLIENT_ERROR unauthenticated");
    says(&mut client, "set k 0 0 16/user secret word/get k/set k 0 0 1/x/get k", "STORED/END/STORED/VALUE k 0 1/x/END");
}

/// Both protocols are served side by side, over the same pool, and neither sees the other's data.
#[test]
fn redis_is_served_beside_it() {
    let server = server();
    let (mut memcached, mut redis) = (server.memcached_client(), server.client());
    redis.says("SET k redis", "+OK\r\n");
    says(&mut memcached, "get k/set k 0 0 9/memcached", "END/STORED");
    redis.says("GET k", "$5\r\nredis\r\n");
    redis.says("DBSIZE", ":1\r\n");
    redis.says("FLUSHALL", "+OK\r\n");
    says(&mut memcached, "get k", "VALUE k 0 9/memcached/END");
    says(&mut memcached, "cas k 0 0 1 1/x/cas none 0 0 1 1/x/delete noreply/touch noreply", "EXISTS/NOT_FOUND/NOT_FOUND/ERROR");
    memcached.send(b"stats\r\n");
    let stats = memcached.read_until(b"END\r\n");
    let counts = ["STAT cmd_set 3", "STAT cas_hits 0", "STAT cas_misses 1", "STAT cas_badval 1", "STAT delete_hits 0", "STAT delete_misses 1"];
    for line in ["STAT curr_items 1", "STAT curr_connections 2", "STAT threads 2", "STAT evictions 0"].into_iter().chain(counts) {
        assert!(stats.lines().any(|other| other == line), "{line} in {stats}");
    }
    says(&mut memcached, "stats reset/quit", "RESET");
}

/// Alone and in a pipeline, by classic and by meta commands.
#[test]
fn what_is_done_is_counted() {
    let server = server();
    let mut client = server.memcached_client();
    says(&mut client, "set n 0 0 1/5/incr n 1/incr none 1/decr n 1/decr none 1/decr none 1", "STORED/6/NOT_FOUND/5/NOT_FOUND/NOT_FOUND");
    says(&mut client, "ma n/ma none/ma none MD/mg n v T0/mg none v T0", "HD/NF/NF/VA 1/6/EN");
    says(&mut client, "touch n 0/touch none 0/gat 0 n none", "TOUCHED/NOT_FOUND/VALUE n 0 1/6/END");
    says(&mut client, "delete none", "NOT_FOUND");
    says(&mut client, "delete n/delete n/md n/set n 0 0 1/5/md n/flush_all", "DELETED/NOT_FOUND/NF/STORED/HD/OK");
    client.send(b"stats\r\n");
    let stats = client.read_until(b"END\r\n");
    let counts = [
        "incr_hits 2",
        "incr_misses 2",
        "decr_hits 1",
        "decr_misses 3",
        "touch_hits 3",
        "touch_misses 3",
        "cmd_touch 6",
        "delete_hits 2",
        "delete_misses 3",
        "cmd_flush 1",
        "cmd_set 2",
    ];
    for count in counts {
        assert!(stats.lines().any(|line| line.strip_prefix("STAT ") == Some(count)), "{count} in {stats}");
    }
}

/// Many threads add to the same numbers by `cas` and by `incr`, and no addition is lost.
#[test]
fn nobody_loses_an_update() {
    const ROUNDS: usize = 200;
    let server = server();
    says(&mut server.memcached_client(), "set cas 0 0 1/0/set incr 0 0 1/0", "STORED/STORED");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = server.memcached_client();
                for _ in 0..ROUNDS {
                    client.send(b"incr incr 1\r\n");
                    client.read_until(b"\r\n");
                    loop {
                        client.send(b"gets cas\r\n");
                        let reply = client.read_until(b"END\r\n");
                        let mut words = reply.split_ascii_whitespace().skip(4);
                        let (unique, number) = (words.next().unwrap(), words.next().unwrap().parse::<usize>().unwrap());
                        let next = (number + 1).to_string();
                        client.send(format!("cas cas 0 0 {} {unique}\r\n{next}\r\n", next.len()).as_bytes());
                        if client.read_until(b"\r\n") == "STORED\r\n" {
                            break;
                        }
                    }
                }
            });
        }
    });
    says(&mut server.memcached_client(), "get cas incr", &format!("VALUE cas 0 3/{0}/VALUE incr 0 3/{0}/END", 4 * ROUNDS));
}

#[test]
fn meta_commands() {
    let server = server();
    let mut client = server.memcached_client();
    says(
        &mut client,
        "mg k v/mg k v q O1/mg k O2 k/mn/ms k 3 F7 T100 Oabc k/one/mg k/mg k v/mg k s v f t k O1 q",
        "EN/EN O2 kk/MN/HD Oabc kk/HD/VA 3/one/VA 3 s3 f7 t100 kk O1/one",
    );
    says(&mut client, "ms k 1 ME/x/ms l 1 MR/x/ms l 1 MA/x", "NS/NS/NS");
    // Flags apply in their order.
    says(&mut client, "ms t 1 T100/x/mg t t T30/mg t T40 t/mg t t", "HD/HD t100/HD t40/HD t40");
    says(&mut client, "ms l 1 MA N0/x/ms l 1 MA N0/y/ms l 1 MP F9/z/mg l v f t", "HD/HD/HD/VA 3 f0 t-1/zxy");
    client.send(b"mg k c\r\n");
    let seen = client.read_until(b"\r\n").trim_end().strip_prefix("HD c").unwrap().parse::<u64>().unwrap();
    assert_eq!(seen, unique(&mut client, "k"));
    says(&mut client, &format!("ms k 3 C1/two/md k C1/ms k 3 C{seen} q/two/mn/ms none 1 C1/x/md none q/md k q/mg k"), "EX/EX/MN/NF/NF/EN");
    // Given a version, only set and replace report a missing item as not found; an add requires absence, whatever the version.
    says(&mut client, "ms v 3 MA C1/abc/ms v 3 MP C1/abc/ms v 3 MR C1/abc/ms v 3 ME C1/abc/ms v 3 ME C99/def/ms v 3 MA C99/def", "NS/NS/NF/HD/NS/EX");
    says(&mut client, "mg v v/md v/ms v 3 MA C1 N60/abc/mg v", "VA 3/abc/HD/NS/EN");
    says(&mut client, "ma n q/ma n N0 J5 v/ma n v/ma n D10 MD v/ma n D7 v q/ma n M+ v t T50/mg n t", "NF/VA 1/5/VA 1/6/VA 1/0/VA 1 t50/8/HD t50");
    says(&mut client, "set n 3 0 1/x/ma n/mg n T-1 v/mg n", "STORED/CLIENT_ERROR cannot increment or decrement non-numeric value/VA 1/x/EN");
    // The key "k\0 " in base64, which no other command can name.
    says(&mut client, "ms awAg 1 b/b/mg awAg v/mg awAg b k v/mg a b", "HD/EN/VA 1 kawAg b/b/CLIENT_ERROR error decoding key");
    for (sent, expected) in [
        ("mg", "ERROR"),
        ("ms", "ERROR"),
        ("md", "ERROR"),
        ("ma", "ERROR"),
        ("ms k", "CLIENT_ERROR bad command line format"),
        (&*format!("mg k O{}", "o".repeat(32)), "CLIENT_ERROR opaque token too long"),
        ("mg k h", "CLIENT_ERROR unsupported flag"),
        ("mg k N30", "CLIENT_ERROR unsupported flag"),
        ("mg k u v P1 C1", "EN"),
        ("mg k y", "CLIENT_ERROR invalid flag"),
        ("ms other 1 v t s T0/x/md other v T30", "HD/HD"),
        ("mg k v v", "CLIENT_ERROR duplicate flag"),
        ("mg k Tx", "CLIENT_ERROR bad token in command line format"),
        ("mg k vx", "CLIENT_ERROR bad token in command line format"),
        ("ms k x", "CLIENT_ERROR bad command line format"),
        ("ms k 9 MX/flush_all", "CLIENT_ERROR bad token in command line format"),
        ("ms k 9 F4294967296/flush_all", "CLIENT_ERROR bad token in command line format"),
        ("ms k 9 I/flush_all", "CLIENT_ERROR unsupported flag"),
        ("ma k MX", "CLIENT_ERROR bad token in command line format"),
        ("me k", "ERROR"),
    ] {
        says(&mut client, &format!("ms mark 1/m/{sent}/mg mark v"), &format!("HD/{expected}/VA 1/m"));
    }
}

/// Groups that end in the middle, because the output is full, and replies whose length differs from the prediction.
#[test]
fn pipelines_of_large_items() {
    for domain in [None, Some(Domain::Msync)] {
        let server = Running::with_memcached(Options { domain, ..Options::default() }, Config::default());
        let mut client = server.memcached_client();
        let large = "l".repeat(200_000);
        says(&mut client, &format!("set large 3 0 {}/{large}", large.len()), "STORED");
        let (mut sent, mut expected) = (String::new(), String::new());
        for n in 0..40 {
            write!(
                sent,
                "get large/set key{n} 0 0 {}/{large}/delete key{n}/delete key{n}/set key{n} {n} 0 1 noreply/x/delete key{n} noreply/get key{n}/\
                 mg large v f/ms key{n} 1 q/x/md key{n} k/",
                large.len()
            )
            .unwrap();
            write!(expected, "VALUE large 3 {0}/{large}/END/STORED/DELETED/NOT_FOUND/END/VA {0} f3/{large}/HD kkey{n}/", large.len()).unwrap();
        }
        let reader = std::thread::scope(|scope| {
            let mut socket = client.socket.try_clone().unwrap();
            scope.spawn(move || std::io::Write::write_all(&mut socket, lines(&format!("{sent}mn")).as_bytes()).unwrap());
            client.expect(lines(&format!("{expected}MN")).as_bytes());
            client
        });
        drop(reader);
    }
}
