//! Commands that Redis does not have, and behaviour that a comparison with Redis cannot show.

use crate::peer::{Client, Running, encode};
use everleaf::Options;
use everleaf_server::{Config, Limits};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

#[test]
fn range_in_both_directions_and_protocols() {
    let server = Running::start();
    let mut client = server.client();
    client.says("MSET a 1 b 2 c 3 d 4 (x 5", "+OK\r\n");
    client.says("RANGE b c", "*4\r\n$1\r\nb\r\n$1\r\n2\r\n$1\r\nc\r\n$1\r\n3\r\n");
    client.says("RANGE (a (c", "*2\r\n$1\r\nb\r\n$1\r\n2\r\n");
    client.says("RANGE [b + KEYSONLY", "*3\r\n$1\r\nb\r\n$1\r\nc\r\n$1\r\nd\r\n");
    client.says("RANGE + - REV LIMIT 2 KEYSONLY", "*2\r\n$1\r\nd\r\n$1\r\nc\r\n");
    client.says("range c (a rev keysonly", "*2\r\n$1\r\nc\r\n$1\r\nb\r\n");
    client.says("RANGE - [(x KEYSONLY", "*1\r\n$2\r\n(x\r\n");
    client.says("RANGE - + LIMIT 0", "*0\r\n");
    client.says("RANGE - + LIMIT -1 KEYSONLY", "*5\r\n$2\r\n(x\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n$1\r\nd\r\n");
    client.says("RANGE + -", "*0\r\n");
    client.says("RANGE d a", "*0\r\n");
    client.says("RANGE a d REV", "*0\r\n");
    client.says("RANGE a", "-ERR wrong number of arguments for 'range' command\r\n");
    client.says("RANGE a b LIMIT", "-ERR syntax error\r\n");
    client.says("RANGE a b LIMIT x", "-ERR value is not an integer or out of range\r\n");
    client.call(&[b"HELLO", b"3"]);
    client.says("RANGE b c", "*2\r\n*2\r\n$1\r\nb\r\n$1\r\n2\r\n*2\r\n$1\r\nc\r\n$1\r\n3\r\n");
}

/// Times are absolute and far in the future, so no clock matters.
#[test]
fn keys_expire_when_they_are_told_to() {
    const FAR: &str = "32503680000";
    let server = Running::start();
    let mut client = server.client();
    client.says(&format!("SET k v EXAT {FAR}"), "+OK\r\n");
    client.says("EXPIRETIME k", &format!(":{FAR}\r\n"));
    client.says("PEXPIRETIME k", &format!(":{FAR}000\r\n"));
    client.says("APPEND k w", ":2\r\n");
    client.says("SET k x KEEPTTL", "+OK\r\n");
    client.says("EXPIRETIME k", &format!(":{FAR}\r\n"));
    client.says("RENAME k l", "+OK\r\n");
    client.says("EXPIRETIME l", &format!(":{FAR}\r\n"));
    client.says("EXPIRETIME k", ":-2\r\n");
    client.says("PERSIST l", ":1\r\n");
    client.says("PERSIST l", ":0\r\n");
    client.says("TTL l", ":-1\r\n");
    client.says("PTTL l", ":-1\r\n");
    client.says("TTL absent", ":-2\r\n");
    // Conditions: a key that does not expire counts as expiring never.
    client.says(&format!("EXPIREAT l {FAR} XX"), ":0\r\n");
    client.says(&format!("EXPIREAT l {FAR} GT"), ":0\r\n");
    client.says(&format!("EXPIREAT l {FAR} LT"), ":1\r\n");
    client.says(&format!("PEXPIREAT l {FAR}001 NX"), ":0\r\n");
    client.says(&format!("PEXPIREAT l {FAR}001 LT"), ":0\r\n");
    client.says(&format!("PEXPIREAT l {FAR}001 GT"), ":1\r\n");
    client.says("PEXPIRETIME l", &format!(":{FAR}001\r\n"));
    client.says("EXPIRE l 1 NX XX", "-ERR NX and XX, GT or LT options at the same time are not compatible\r\n");
    client.says("EXPIRE l 1 GT LT", "-ERR GT and LT options at the same time are not compatible\r\n");
    client.says("EXPIRE l 1 foo", "-ERR Unsupported option foo\r\n");
    client.says("EXPIRE l x", "-ERR value is not an integer or out of range\r\n");
    client.says("EXPIRE l 9223372036854775807", "-ERR invalid expire time in 'expire' command\r\n");
    client.says("GETEX l PERSIST", "$1\r\nx\r\n");
    client.says(&format!("GETEX l EXAT {FAR}"), "$1\r\nx\r\n");
    client.says("GETEX l", "$1\r\nx\r\n");
    client.says("EXPIRETIME l", &format!(":{FAR}\r\n"));
    client.says("GETEX l EX", "-ERR syntax error\r\n");
    client.says("GETEX l EX 0", "-ERR invalid expire time in 'getex' command\r\n");
    client.says("SET l y", "+OK\r\n");
    client.says("TTL l", ":-1\r\n");
    // Expired keys are gone.
    client.says("EXPIRE l -1", ":1\r\n");
    client.says("EXISTS l", ":0\r\n");
    client.says("EXPIRE l 10", ":0\r\n");
    client.says("SET k v PXAT 1", "+OK\r\n");
    client.says("GET k", "$-1\r\n");
    client.says("SET k v", "+OK\r\n");
    client.says("GETEX k PXAT 1", "$1\r\nv\r\n");
    client.says("GET k", "$-1\r\n");
    client.says("SETEX k 0 v", "-ERR invalid expire time in 'setex' command\r\n");
    client.says("PSETEX k -1 v", "-ERR invalid expire time in 'psetex' command\r\n");
    client.says("SETEX k 1000000 v", "+OK\r\n");
    client.says("EXPIRE k 2000000 GT", ":1\r\n");
    client.says("INCR n", ":1\r\n");
    client.says(&format!("EXPIREAT n {FAR}"), ":1\r\n");
    client.says("INCR n", ":2\r\n");
    client.says("EXPIRETIME n", &format!(":{FAR}\r\n"));
    client.says("GETSET n 5", "$1\r\n2\r\n");
    client.says("TTL n", ":-1\r\n");
    client.says("SET k v EX 10 KEEPTTL", "-ERR syntax error\r\n");
    client.says("SET k v EX x", "-ERR value is not an integer or out of range\r\n");
    client.says("SET k v EX 0", "-ERR invalid expire time in 'set' command\r\n");
}

/// Fills database 0 with keys k000000 and so on.
fn fill(server: &Running, count: usize) {
    let mut client = server.client();
    let mut bytes = Vec::new();
    for number in 0..count {
        bytes.extend(encode(&[b"SET", format!("k{number:06}").as_bytes(), b"v"]));
    }
    client.send(&bytes);
    client.expect(&b"+OK\r\n".repeat(count));
}

/// The bulk strings of a reply.
fn bulks(reply: &[u8]) -> Vec<String> {
    let text = String::from_utf8(reply.to_vec()).unwrap();
    text.split("\r\n").filter(|line| !line.is_empty() && !line.starts_with(['*', '$'])).map(str::to_owned).collect()
}

#[test]
fn keys_and_range_over_many_slices() {
    let server = Running::start();
    fill(&server, 20_000);
    let mut client = server.client();
    let expected: Vec<String> = (0..20_000).map(|number| format!("k{number:06}")).collect();
    assert_eq!(bulks(&client.call(&[b"KEYS", b"*"])), expected);
    assert_eq!(bulks(&client.call(&[b"RANGE", b"-", b"+", b"KEYSONLY"])), expected);
    assert_eq!(bulks(&client.call(&[b"KEYS", b"k00[01]*99"])).len(), 20);
    assert_eq!(bulks(&client.call(&[b"RANGE", b"k010000", b"(k012000"])).len(), 4000);
    // While a long walk runs, the same client's next commands wait, and replies keep their order.
    client.send(&[encode(&[b"RANGE", b"+", b"-", b"REV", b"KEYSONLY"]), encode(&[b"GET", b"k000007"])].concat());
    let mut answer = format!("*{}\r\n", expected.len());
    expected.iter().rev().for_each(|key| answer += &format!("$7\r\n{key}\r\n"));
    client.expect(format!("{answer}$1\r\nv\r\n").as_bytes());
    // A walk whose reply is suppressed.
    client.send(&encode(&[b"CLIENT", b"REPLY", b"SKIP"]));
    client.send(&encode(&[b"KEYS", b"*"]));
    client.says("GET k000001", "$1\r\nv\r\n");
}

#[test]
fn many_keys_in_one_command() {
    let server = Running::with(Config { threads: 1, ..Config::default() });
    fill(&server, 30_000);
    let (mut client, mut other) = (server.client(), server.client());
    let keys: Vec<String> = (0..60_000).map(|number| format!("k{number:06}")).collect();
    let command = |name: &str| encode(&[&[name.as_bytes()], keys.iter().map(String::as_bytes).collect::<Vec<_>>().as_slice()].concat());
    for (name, reply) in [
        ("EXISTS", ":30000\r\n".to_owned()),
        ("MGET", format!("*60000\r\n{}{}", "$1\r\nv\r\n".repeat(30_000), "$-1\r\n".repeat(30_000))),
        ("DEL", ":30000\r\n".to_owned()),
        ("UNLINK", ":0\r\n".to_owned()),
    ] {
        // Later commands of the pipeline wait; another client does not.
        client.send(&[command(name), b"PING\r\n".to_vec()].concat());
        other.says("PING", "+PONG\r\n");
        client.expect(reply.as_bytes());
        client.expect(b"+PONG\r\n");
    }
    // The reply is suppressed.
    client.send(&[b"CLIENT REPLY SKIP\r\n".to_vec(), command("MGET")].concat());
    client.says("DBSIZE", ":0\r\n");
}

#[test]
fn a_pipeline_of_gets_over_many_slices() {
    let server = Running::start();
    let mut client = server.client();
    let value = vec![b'v'; 300_000];
    client.send(&encode(&[b"SET", b"large", &value]));
    client.expect(b"+OK\r\n");
    // The limit of a slice falls in the middle of a group. It is followed by a line that is unescaped in place, and a frame in two pieces.
    let mut pipeline: Vec<u8> = (0..70).flat_map(|_| [encode(&[b"GET", b"large"]), encode(&[b"GET", b"none"])].concat()).collect();
    pipeline.extend_from_slice(b"SET \"a\\x20b\" one\r\nGET \"a\\x20b\"\r\n");
    let last = encode(&[b"SET", b"c", b"two"]);
    pipeline.extend_from_slice(&last[..9]);
    client.send(&pipeline);
    let found = [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n$-1\r\n"].concat();
    (0..70).for_each(|_| client.expect(&found));
    client.expect(b"+OK\r\n$3\r\none\r\n");
    client.send(&last[9..]);
    client.expect(b"+OK\r\n");
    client.says("GET c", "$3\r\ntwo\r\n");
}

#[test]
fn scan_returns_what_was_there_all_the_time() {
    let server = Running::start();
    fill(&server, 3000);
    let (mut client, mut other) = (server.client(), server.client());
    let mut cursor = "0".to_owned();
    let mut found = BTreeSet::new();
    let mut round = 0;
    loop {
        // Successive calls use different connections, while keys come and go.
        let client = if round % 2 == 0 { &mut client } else { &mut other };
        let mut reply = bulks(&client.call(&[b"SCAN", cursor.as_bytes(), b"COUNT", b"50"])).into_iter();
        cursor = reply.next().unwrap();
        found.extend(reply);
        if cursor == "0" {
            break;
        }
        client.call(&[b"DEL", format!("k{:06}", round * 30 + 1).as_bytes()]);
        client.call(&[b"SET", format!("a{round}").as_bytes(), b"new"]);
        round += 1;
    }
    let kept = (0..3000).filter(|number| number % 30 != 1).map(|number| format!("k{number:06}"));
    assert!(kept.into_iter().all(|key| found.contains(&key)));
    assert!(round >= 59, "{round} rounds");
}

#[test]
fn scan_filters_and_unknown_cursors() {
    let server = Running::start();
    fill(&server, 30);
    let mut client = server.client();
    let all = |reply: Vec<u8>| bulks(&reply)[1..].to_vec();
    assert_eq!(all(client.call(&[b"SCAN", b"0", b"MATCH", b"k00002*", b"COUNT", b"100"])).len(), 10);
    assert_eq!(all(client.call(&[b"SCAN", b"0", b"TYPE", b"list", b"COUNT", b"100"])).len(), 0);
    assert_eq!(all(client.call(&[b"SCAN", b"12345", b"COUNT", b"100"])).len(), 30);
    assert_eq!(bulks(&client.call(&[b"SCAN", b"0", b"COUNT", b"1000000"]))[0], "0");
}

/// Regression: a reply had as many keys as COUNT says, up to a quarter of a gigabyte of them.
#[test]
fn scan_returns_fewer_keys_when_they_are_long() {
    let server = Running::start();
    let mut client = server.client();
    for number in 0..20 {
        client.call(&[b"SET", format!("{number:050000}").as_bytes(), b"v"]);
    }
    let (mut cursor, mut found) = ("0".to_owned(), BTreeSet::new());
    loop {
        let mut reply = bulks(&client.call(&[b"SCAN", cursor.as_bytes(), b"COUNT", b"100"])).into_iter();
        cursor = reply.next().unwrap();
        let before = found.len();
        found.extend(reply);
        assert!(found.len() - before <= 6, "256 KiB and a key");
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(found.len(), 20);
}

/// Regression: a random place between the first and the last key selected the key after it, so keys at the edge of a gap were always preferred.
#[test]
fn any_key_may_be_the_random_one() {
    let server = Running::start();
    let mut client = server.client();
    let keys: BTreeSet<String> = ["a", "zz"].map(str::to_owned).into_iter().chain((1..=50).map(|number| format!("user:{number}"))).collect();
    keys.iter().for_each(|key| client.says(&format!("SET {key} v"), "+OK\r\n"));
    let mut found = BTreeSet::new();
    // The least likely key comes in one of two hundred calls. The probability that it does not come in this many is below 10^-20.
    for _ in 0..10_000 {
        found.extend(bulks(&client.exchange(&[b"RANDOMKEY"])));
    }
    assert_eq!(found, keys);
    client.says("FLUSHALL", "+OK\r\n");
    client.says("RANDOMKEY", "$-1\r\n");
    client.says("SET 0 v", "+OK\r\n");
    client.says("RANDOMKEY", "$1\r\n0\r\n");
}

#[test]
fn replies_on_and_off() {
    let server = Running::start();
    let mut client = server.client();
    client.send(b"CLIENT REPLY OFF\r\nSET a 1\r\nGET a\r\nNONSENSE\r\nCLIENT REPLY ON\r\nGET a\r\n");
    client.expect(b"+OK\r\n$1\r\n1\r\n");
    client.send(b"CLIENT REPLY SKIP\r\nSET a 2\r\nGET a\r\n");
    client.expect(b"$1\r\n2\r\n");
    // Regression: the second SKIP, whose own reply was to be skipped, cancelled the skipping.
    client.send(b"CLIENT REPLY SKIP\r\nCLIENT REPLY SKIP\r\nSET a 3\r\nGET a\r\nCLIENT REPLY SKIP\r\nCLIENT REPLY ON\r\nGET a\r\n");
    client.expect(b"$1\r\n3\r\n+OK\r\n$1\r\n3\r\n");
    // RESET must not undo the skipping of its own reply.
    client.send(b"CLIENT REPLY SKIP\r\nRESET\r\nPING\r\nCLIENT REPLY OFF\r\nRESET\r\nPING\r\n");
    client.expect(b"+PONG\r\n+RESET\r\n+PONG\r\n");
}

#[test]
fn clients_are_listed_and_killed() {
    let server = Running::start();
    let (mut client, mut victim) = (server.client(), server.client());
    client.says("CLIENT SETNAME boss", "+OK\r\n");
    victim.says("CLIENT SETNAME victim", "+OK\r\n");
    client.says("CLIENT SETINFO LIB-NAME tests", "+OK\r\n");
    let list = String::from_utf8(client.call(&[b"CLIENT", b"LIST"])).unwrap();
    assert!(list.contains("name=boss") && list.contains("name=victim") && list.contains("cmd=client|list") && list.contains("lib-name=tests"), "{list}");
    let line = list.lines().find(|line| line.contains("name=victim")).unwrap();
    let id = line.split(' ').find_map(|field| field.strip_prefix("id=")).unwrap();
    client.says(&format!("CLIENT KILL ID {id}"), ":1\r\n");
    client.says(&format!("CLIENT KILL ID {id} SKIPME no"), ":0\r\n");
    assert_eq!(victim.read_to_end(), b"");
    client.says("CLIENT KILL 1.2.3.4:5", "-ERR No such client\r\n");
}

#[test]
fn info_counts() {
    let server = Running::start();
    let mut client = server.client();
    client.says("MSET a 1 b 2", "+OK\r\n");
    client.says("MGET a b c", "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$-1\r\n");
    client.says("SELECT 3", "+OK\r\n");
    client.says("SET x y EX 100", "+OK\r\n");
    let info = String::from_utf8(client.call(&[b"INFO"])).unwrap();
    for line in [
        "db0:keys=2,expires=0,avg_ttl=0",
        "db3:keys=1,expires=1,avg_ttl=0",
        "keyspace_hits:2",
        "keyspace_misses:1",
        "connected_clients:1",
        "role:master",
        "redis_version:7.0.15",
        "# Persistence",
        "cluster_enabled:0",
        "redis_mode:standalone",
        "maxmemory_policy:noeviction",
    ] {
        assert!(info.contains(line), "{line} is not in {info}");
    }
    let part = String::from_utf8(client.call(&[b"INFO", b"keyspace", b"CLIENTS"])).unwrap();
    assert!(part.contains("# Clients") && part.contains("# Keyspace") && !part.contains("# Server"), "{part}");
    client.says("CONFIG RESETSTAT", "+OK\r\n");
    assert!(String::from_utf8(client.call(&[b"INFO", b"stats"])).unwrap().contains("keyspace_hits:0"));
}

#[test]
fn settings_change_or_say_why_not() {
    let server = Running::with(Config { limits: Limits { connection_room: 20_000, ..Limits::default() }, ..Config::default() });
    let mut client = server.client();
    client.says("CONFIG GET maxclients", "*2\r\n$10\r\nmaxclients\r\n$5\r\n10000\r\n");
    let long = "*".repeat(257);
    client.says(&format!("CONFIG GET {long}"), "-ERR the pattern is longer than 256 bytes\r\n");
    client.says(&format!("COMMAND LIST FILTERBY PATTERN {long}"), "-ERR the pattern is longer than 256 bytes\r\n");
    client.says(
        "CONFIG SET maxclients 20001",
        "-ERR CONFIG SET failed (possibly related to argument 'maxclients') - The operating system is not able to handle the specified number of clients, try \
         with 20000\r\n",
    );
    client.says("CONFIG SET maxclients 20000", "+OK\r\n");
    client.says("CONFIG SET maxclients 2", "+OK\r\n");
    client.says("CONFIG SET appendonly no", "+OK\r\n");
    client.says("CONFIG SET appendonly yes", "-ERR CONFIG SET failed (possibly related to argument 'appendonly') - can't set immutable config\r\n");
    client.says("CONFIG SET requirepass secret", "+OK\r\n");
    let mut second = server.client();
    second.send(b"GET a\r\n");
    second.expect(b"-NOAUTH Authentication required.\r\n");
    assert_eq!(server.client().read_to_end(), b"-ERR max number of clients reached\r\n");
}

#[test]
fn transactions_in_the_third_protocol_and_in_the_list_of_clients() {
    let server = Running::start();
    let (mut client, mut other) = (server.client(), server.client());
    client.call(&[b"HELLO", b"3"]);
    client.replies("WATCH k", "+OK\r\n");
    other.replies("SET k v", "+OK\r\n");
    client.replies("MULTI", "+OK\r\n");
    client.replies("GET k", "+QUEUED\r\n");
    let list = String::from_utf8(other.call(&[b"CLIENT", b"LIST"])).unwrap();
    assert!(list.contains("flags=x db=0 sub=0 psub=0 ssub=0 multi=1 "), "{list}");
    client.replies("EXEC", "_\r\n");
    client.replies("MULTI", "+OK\r\n");
    client.replies("GET none", "+QUEUED\r\n");
    client.replies("GET k", "+QUEUED\r\n");
    client.replies("EXEC", "*2\r\n_\r\n$1\r\nv\r\n");
    // A pipeline of GETs and SETs is queued like other commands.
    client.send(b"MULTI\r\nSET a 1\r\nSET b 2\r\nGET a\r\nGET b\r\nEXEC\r\nGET a\r\n");
    client.expect(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*4\r\n+OK\r\n+OK\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n1\r\n");
}

const TOO_MANY_REPLIES: &str = "-EXECABORT Transaction discarded because of: the replies of the transaction are larger than the output buffer may be; \
                                nothing was changed, split it up\r\n";

#[test]
fn a_transaction_has_its_bounds() {
    let limits = Limits { query_buffer_size_max: 100_000, output_buffer_size_max: 100_000, ..Limits::default() };
    let server = Running::with(Config { limits, ..Config::default() });
    let mut client = server.client();
    client.replies("SET k v", "+OK\r\n");
    client.replies("MULTI", "+OK\r\n");
    let value = "v".repeat(40_000);
    client.replies(&format!("SET k {value}"), "+QUEUED\r\n");
    client.replies(&format!("SET k {value}"), "+QUEUED\r\n");
    client.replies(&format!("SET k {value}"), "-ERR the transaction is longer than the query buffer may be; split it up\r\n");
    client.replies("EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n");
    client.replies("GET k", "$1\r\nv\r\n");
    client.replies("MULTI", "+OK\r\n");
    client.replies(&format!("SET k {value}"), "+QUEUED\r\n");
    (0..3).for_each(|_| client.replies("GET k", "+QUEUED\r\n"));
    client.replies("EXEC", TOO_MANY_REPLIES);
    client.replies("GET k", "$1\r\nv\r\n");
    // Replies to commands outside the transaction do not count.
    let value = "v".repeat(70_000);
    client.replies(&format!("SET k {value}"), "+OK\r\n");
    client.send(b"GET k\r\nMULTI\r\nGET k\r\nEXEC\r\n");
    client.expect(format!("$70000\r\n{value}\r\n+OK\r\n+QUEUED\r\n*1\r\n$70000\r\n{value}\r\n").as_bytes());
}

/// Regression: it was refused, which Redis does not do.
#[test]
fn a_backup_that_a_transaction_begins_has_all_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("backup");
    let server = Running::with(Config { backup: Some(file.clone()), ..Config::default() });
    let mut client = server.client();
    let persistence = |client: &mut Client| String::from_utf8(client.call(&[b"INFO", b"persistence"])).unwrap();
    let exec = |client: &mut Client, lines: &[&str]| {
        client.replies("MULTI", "+OK\r\n");
        lines.iter().for_each(|line| client.replies(line, "+QUEUED\r\n"));
        String::from_utf8(client.exchange(&[b"EXEC"])).unwrap()
    };
    assert_eq!(
        exec(&mut client, &["SET a 1", "BGSAVE", "BGSAVE foo", "SET b 1", "BGSAVE SCHEDULE"]),
        "*5\r\n+OK\r\n+Background saving scheduled\r\n-ERR syntax error\r\n+OK\r\n+Background saving scheduled\r\n"
    );
    let mut tries = 0;
    while !persistence(&mut client).contains("backup_last_entries:2\r\n") {
        tries += 1;
        assert!(tries < 10_000, "it does not come to that: {}", persistence(&mut client));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(everleaf::check_stream(std::fs::File::open(&file).unwrap(), |_, _| ()).unwrap().entries, 2);
    // A transaction that is not done makes no backup.
    std::fs::remove_file(&file).unwrap();
    client.replies("WATCH a", "+OK\r\n");
    server.client().replies("SET a 2", "+OK\r\n");
    assert_eq!(exec(&mut client, &["BGSAVE"]), "*-1\r\n");
    client.replies("BGSAVE", "+Background saving started\r\n");
    while persistence(&mut client).contains("rdb_bgsave_in_progress:1") {
        tries += 1;
        assert!(tries < 20_000, "it does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(persistence(&mut client).contains("rdb_changes_since_last_save:0\r\n"));
}

/// A large value is refused when it is set, not when the transaction commits: the rest was done then.
#[test]
fn a_transaction_that_finds_no_room_changes_nothing() {
    let server = Running::over(Options { size_max: 8 << 20, ..Options::default() }, Config::default());
    let mut client = server.client();
    let value = "v".repeat(20_000);
    client.says("SET old 1", "+OK\r\n");
    assert!(String::from_utf8(client.call(&[b"INFO", b"memory"])).unwrap().contains("maxmemory:8388608\r\nmaxmemory_human:8.00M\r\n"));
    client.says("CONFIG GET maxmemory", "*2\r\n$9\r\nmaxmemory\r\n$7\r\n8388608\r\n");
    let full = (0..1000).map(|number| client.call(&[b"SET", format!("k{number}").as_bytes(), value.as_bytes()])).find(|reply| reply != b"+OK\r\n");
    let full = String::from_utf8(full.unwrap()).unwrap();
    assert!(full.starts_with("-OOM command not allowed: no space: "), "{full}");
    assert_eq!(client.call(&[b"INFO", b"errorstats"]), b"$37\r\n# Errorstats\r\nerrorstat_OOM:count=1\r\n\r\n");
    for refused in [format!("SET new {value}"), format!("MSET old 2 new {value}"), "RENAME k0 new".to_owned()] {
        client.replies("MULTI", "+OK\r\n");
        client.replies("DEL old", "+QUEUED\r\n");
        client.replies(&refused, "+QUEUED\r\n");
        let reply = client.exchange(&[b"EXEC"]);
        assert!(
            reply.starts_with(b"-EXECABORT Transaction discarded because of: OOM command not allowed: no space: "),
            "{refused:.20}: {}",
            reply.escape_ascii()
        );
        client.says("MGET old new", "*2\r\n$1\r\n1\r\n$-1\r\n");
    }
    // For each path of a command to the store.
    let new = format!("new {value}");
    for refused in [format!("SET {new} NX"), format!("SETEX new 1000 {value}"), format!("MSET {new}"), format!("APPEND {new}"), "COPY k0 new".to_owned()] {
        let reply = client.call(&refused.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        assert!(reply.starts_with(b"-OOM "), "{refused:.20}: {}", reply.escape_ascii());
    }
    client.send(&[encode(&[b"GET", b"old"]), encode(&[b"SET", b"new", value.as_bytes()])].concat());
    let together = client.call(&[b"GET", b"new"]);
    assert!(together.starts_with(b"$1\r\n1\r\n-OOM ") && together.ends_with(b"\r\n$-1\r\n"), "{}", together.escape_ascii());
    // A command that frees as much as it takes is not refused.
    client.says("EXPIRE k1 1000", ":1\r\n");
    client.says("PERSIST k1", ":1\r\n");
    assert_eq!(client.call(&[b"GETEX", b"k1", b"PX", b"1000000"]).len(), value.len() + b"$20000\r\n\r\n".len());
    client.replies("MULTI", "+OK\r\n");
    client.replies("DEL k0", "+QUEUED\r\n");
    client.replies("EXEC", "*1\r\n:1\r\n");
    // A key that is set repeatedly takes room once, however the server makes each command all-or-nothing.
    client.says("FLUSHALL", "+OK\r\n");
    client.replies("MULTI", "+OK\r\n");
    client.replies("MSET a 1 b 2", "+QUEUED\r\n");
    (0..1000).for_each(|_| client.replies(&format!("SET k {value}"), "+QUEUED\r\n"));
    let reply = client.exchange(&[b"EXEC"]);
    assert!(reply.starts_with(b"*1001\r\n+OK\r\n"), "{}", reply[..reply.len().min(100)].escape_ascii());
}

/// Other failures affect only their command, which leaves no trace.
#[test]
fn a_command_of_a_transaction_is_done_or_not() {
    let server = Running::start();
    let mut client = server.client();
    let long = "k".repeat(100_000);
    client.says("SET old 1", "+OK\r\n");
    client.replies("MULTI", "+OK\r\n");
    client.replies("SET new 2", "+QUEUED\r\n");
    client.replies(&format!("MSET a 1 {long} 2"), "+QUEUED\r\n");
    client.replies(&format!("RENAME old {long}"), "+QUEUED\r\n");
    let reply = client.exchange(&[b"EXEC"]);
    assert!(reply.starts_with(b"*3\r\n+OK\r\n-ERR ") && reply.windows(5).filter(|part| part == b"-ERR ").count() == 2, "{}", reply.escape_ascii());
    client.says("MGET old new a", "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$-1\r\n");
}

/// Regression: the limit was checked only between commands, so each gathered everything that it named.
#[test]
fn a_command_of_a_transaction_stops_at_the_limit() {
    let limits = Limits { output_buffer_size_max: 8 << 20, ..Limits::default() };
    let server = Running::with(Config { limits, ..Config::default() });
    let mut client = server.client();
    client.call(&[b"SET", b"k", &[b'v'; 1 << 20]]);
    client.replies("SET n 1", "+OK\r\n");
    client.replies("MULTI", "+OK\r\n");
    client.replies("INCR n", "+QUEUED\r\n");
    client.replies(&format!("MGET{}", " k".repeat(500)), "+QUEUED\r\n");
    client.replies("EXEC", TOO_MANY_REPLIES);
    let hits = crate::info::number(&mut client, "keyspace_hits");
    assert!((8..16).contains(&hits), "{hits} values were read");
    client.replies("GET n", "$1\r\n1\r\n");
}

/// Each watched key may have its own snapshot.
#[test]
fn a_client_watches_so_many_keys_and_no_more() {
    const TOO_MANY: &str = "-ERR a client can watch 65536 keys of 64 MiB in all; none of these is watched, EXEC or UNWATCH first\r\n";
    let server = Running::start();
    let (mut client, mut other) = (server.client(), server.client());
    for number in 0..65 {
        let keys: String = (0..1000).map(|key| format!(" k{number}-{key}")).collect();
        client.replies(&format!("WATCH{keys}"), "+OK\r\n");
    }
    let keys: String = (0..536).map(|key| format!(" l{key}")).collect();
    client.replies(&format!("WATCH{keys} x"), TOO_MANY);
    client.replies(&format!("WATCH{keys}"), "+OK\r\n");
    client.replies("WATCH k1-1 x", TOO_MANY);
    client.replies("WATCH k1-1 k1-1 l5", "+OK\r\n");
    other.replies("SET x 1", "+OK\r\n");
    client.replies("MULTI", "+OK\r\n");
    client.replies("GET x", "+QUEUED\r\n");
    client.replies("EXEC", "*1\r\n$1\r\n1\r\n");
    client.replies("WATCH x", "+OK\r\n");
    let large = vec![b'k'; (64 << 20) - 1];
    assert_eq!(client.exchange(&[b"WATCH", &large, b"l"]), TOO_MANY.as_bytes());
    assert_eq!(client.exchange(&[b"WATCH", &large]), b"+OK\r\n");
}

/// Regression: twelve bytes of a request produced two thousand of a reply, for every repetition.
#[test]
fn commands_are_told_of_so_many_at_once() {
    let server = Running::start();
    let mut client = server.client();
    for subcommand in ["INFO", "DOCS"] {
        let told = |client: &mut Client, count| client.call(&[&[&b"COMMAND"[..], subcommand.as_bytes()][..], &vec![&b"client"[..]; count][..]].concat());
        assert!(told(&mut client, 1024).len() > 100_000);
        assert_eq!(told(&mut client, 1025), b"-ERR 1025 are more than can be asked for at once, which are 1024\r\n");
    }
}

#[test]
fn clients_are_listed_as_asked_for() {
    let server = Running::start();
    let (mut one, mut other) = (server.client(), server.client());
    let [first, second] = [&mut one, &mut other].map(|client| String::from_utf8(client.call(&[b"CLIENT", b"ID"])).unwrap()[1..].trim().to_owned());
    let listed = String::from_utf8(one.call(&[b"CLIENT", b"LIST", b"ID", second.as_bytes(), b"-1", b"999", first.as_bytes(), second.as_bytes()])).unwrap();
    let ids: Vec<_> = listed.split("id=").skip(1).filter_map(|client| client.split(' ').next()).filter(|id| id.parse::<u64>().is_ok()).collect();
    assert_eq!(ids, [&second, &first, &second], "{listed}");
}

#[test]
fn walks_within_a_transaction_see_what_it_has_written() {
    let server = Running::start();
    fill(&server, 3000);
    let mut client = server.client();
    client.replies("MULTI", "+OK\r\n");
    for line in ["SET a 1", "DEL k000000", "SET k000001 w", "RANGE - + LIMIT 2", "DBSIZE", "KEYS k0029*", "SCAN 0 COUNT 1", "RANGE + - REV LIMIT 1 KEYSONLY"] {
        client.replies(line, "+QUEUED\r\n");
    }
    let reply = String::from_utf8(client.exchange(&[b"EXEC"])).unwrap();
    assert!(reply.starts_with("*8\r\n+OK\r\n:1\r\n+OK\r\n*4\r\n$1\r\na\r\n$1\r\n1\r\n$7\r\nk000001\r\n$1\r\nw\r\n:3000\r\n*100\r\n"), "{reply}");
    assert!(reply.ends_with("*1\r\n$1\r\na\r\n*1\r\n$7\r\nk002999\r\n"), "{reply}");
}

#[test]
fn a_key_takes_what_its_record_takes() {
    let server = Running::start();
    let mut client = server.client();
    client.says("MEMORY USAGE k", "$-1\r\n");
    client.says("SET k v", "+OK\r\n");
    // Four words, one each for key and value, and two in the index.
    client.says("MEMORY USAGE k", ":64\r\n");
    client.says("MEMORY USAGE k SAMPLES 5", ":64\r\n");
    client.says("SET k v EX 1000", "+OK\r\n");
    client.says("MEMORY USAGE k", ":72\r\n");
    client.says("MEMORY USAGE k SAMPLES -1", "-ERR syntax error\r\n");
    // In a transaction its own changes to the key count, whether small or already in the pool.
    let large = format!("SET k {} EX 1000", "v".repeat(1000));
    let lines = ["MULTI", "MEMORY USAGE k", "SET k v", "MEMORY USAGE k", "DEL k", "MEMORY USAGE k", &large, "MEMORY USAGE k"];
    lines.iter().for_each(|line| _ = client.exchange(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>()));
    client.replies("EXEC", &format!("*7\r\n:72\r\n+OK\r\n:64\r\n:1\r\n$-1\r\n+OK\r\n:{}\r\n", 64 + 1000));
    client.says("MEMORY USAGE k", &format!(":{}\r\n", 64 + 1000));
    client.says("MEMORY USAGE k foo", "-ERR syntax error\r\n");
    client.says("MEMORY x", "-ERR unknown subcommand 'x'. Try MEMORY HELP.\r\n");
    let info = String::from_utf8(client.call(&[b"INFO", b"keyspace"])).unwrap();
    assert!(info.contains("db0:keys=1,expires=1,avg_ttl=0\r\n"), "{info}");
}

#[test]
fn info_tells_what_a_watching_client_holds_back() {
    let server = Running::start();
    let (mut client, mut other) = (server.client(), server.client());
    client.says("SET k 0", "+OK\r\n");
    client.says("WATCH k", "+OK\r\n");
    (0..10).for_each(|number| other.says(&format!("SET k {number}"), "+OK\r\n"));
    let store = |client: &mut Client| String::from_utf8(client.call(&[b"INFO", b"store"])).unwrap();
    let info = store(&mut other);
    assert!(info.contains("snapshots:1\r\n") && info.contains("clients_watching:1\r\n") && info.contains("held_back_versions:1\r\n"), "{info}");
    client.says("UNWATCH", "+OK\r\n");
    let info = store(&mut other);
    assert!(info.contains("snapshots:0\r\n") && info.contains("held_back_versions:0\r\n"), "{info}");
}

#[test]
fn backups_are_made_while_others_write() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("backup");
    let server = Running::with(Config { backup: Some(file.clone()), ..Config::default() });
    fill(&server, 20_000);
    let (mut client, mut other) = (server.client(), server.client());
    let integer = |reply: Vec<u8>| std::str::from_utf8(&reply).unwrap().trim().trim_start_matches(':').parse::<u64>().unwrap();
    let started = integer(client.call(&[b"LASTSAVE"]));
    client.send(&encode(&[b"SAVE"]));
    other.says("SET another v", "+OK\r\n");
    client.expect(b"+OK\r\n");
    assert!(integer(client.call(&[b"LASTSAVE"])) >= started);
    let count = |file: &std::path::Path| everleaf::check_stream(std::fs::File::open(file).unwrap(), |_, _| ()).unwrap().entries;
    assert!((20_000..=20_001).contains(&count(&file)));
    client.says("BGSAVE", "+Background saving started\r\n");
    let persistence = |client: &mut Client| String::from_utf8(client.call(&[b"INFO", b"persistence"])).unwrap();
    let mut tries = 0;
    while persistence(&mut client).contains("rdb_bgsave_in_progress:1") {
        tries += 1;
        assert!(tries < 10_000, "it does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    let info = persistence(&mut client);
    assert!(info.contains("rdb_last_bgsave_status:ok") && info.contains("backup_last_entries:20001"), "{info}");
    assert_eq!(count(&file), 20_001);
    client.says("MEMORY PURGE", "+OK\r\n");
    while persistence(&mut client).contains("compaction_in_progress:1") {
        tries += 1;
        assert!(tries < 20_000, "it does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    let info = persistence(&mut client);
    assert!(info.contains("last_compaction_status:ok") && info.contains("last_compaction_is_complete:1"), "{info}");
    client.says("BGSAVE foo", "-ERR syntax error\r\n");
    client.says("CONFIG GET dbfilename", "*2\r\n$10\r\ndbfilename\r\n$6\r\nbackup\r\n");
    // Where nothing can be written, and in the middle of a transaction.
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert!(client.call(&[b"SAVE"]).starts_with(b"-ERR give the backup its name"));
    client.replies("MULTI", "+OK\r\n");
    client.replies("SAVE", "-ERR Command not allowed inside a transaction\r\n");
    client.replies("DISCARD", "+OK\r\n");
    let names: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["backup"]);
}

/// Regression: some commands returned an error where others reply that the key is absent.
#[test]
fn a_key_that_is_too_long_is_absent() {
    let server = Running::start();
    let mut client = server.client();
    let long = "k".repeat(70_000);
    for (line, reply) in [
        ("GET KEY", "$-1\r\n"),
        ("GETDEL KEY", "$-1\r\n"),
        ("GETEX KEY PERSIST", "$-1\r\n"),
        ("EXPIRE KEY 10", ":0\r\n"),
        ("EXPIRE KEY -1", ":0\r\n"),
        ("PERSIST KEY", ":0\r\n"),
        ("SET KEY v XX", "$-1\r\n"),
        ("SETRANGE KEY 1 v", "-ERR key of 70000 bytes"),
        ("GETSET KEY v", "-ERR key of 70000 bytes"),
    ] {
        let words: Vec<&[u8]> = line.split(' ').map(|word| if word == "KEY" { long.as_bytes() } else { word.as_bytes() }).collect();
        let got = String::from_utf8(client.call(&words)).unwrap();
        assert!(if reply.starts_with('-') { got.starts_with("-ERR ") } else { got == reply }, "{line}: {got}");
    }
    assert_eq!(client.exchange(&[b"INFO", b"keyspace"]), b"$12\r\n# Keyspace\r\n\r\n");
}

/// As Redis 8.4 and Valkey 9 have them: a lock is released, or prolonged, by whoever holds it.
#[test]
fn values_are_conditions() {
    let server = Running::start();
    let mut client = server.client();
    client.says("SET lock mine NX PX 100000", "+OK\r\n");
    client.says("DELIFEQ lock yours", ":0\r\n");
    client.says("DELEX lock IFEQ yours", ":0\r\n");
    client.says("SET lock yours IFEQ yours", "$-1\r\n");
    client.says("SET lock again ifeq mine GET KEEPTTL", "$4\r\nmine\r\n");
    client.says("SET lock mine IFEQ mine GET", "$5\r\nagain\r\n");
    let left = String::from_utf8(client.call(&[b"PTTL", b"lock"])).unwrap();
    assert!(!left.starts_with(":-"), "{left}");
    client.says("DELEX lock IFNE again", ":0\r\n");
    client.says("DELEX lock IFEQ again", ":1\r\n");
    client.says("DELIFEQ lock again", ":0\r\n");
    client.says("DELEX lock IFNE any", ":0\r\n");
    client.says("SET lock new IFEQ new", "$-1\r\n");
    client.says("SET lock new IFNE new", "+OK\r\n");
    client.says("SET lock new IFNE new", "$-1\r\n");
    client.says("SET lock newer EX 10 IFNE other", "+OK\r\n");
    client.says("DELEX lock IFNE other", ":1\r\n");
    client.says("SET lock v", "+OK\r\n");
    client.says("DELEX lock", ":1\r\n");
    for wrong in ["SET k v IFEQ", "SET k v IFEQ a NX", "SET k v XX IFNE a", "SET k v IFEQ a IFEQ a", "DELEX k NX x", "DELEX k IFxx x"] {
        client.says(wrong, "-ERR syntax error\r\n");
    }
    for (wrong, name) in [("DELEX k IFEQ", "delex"), ("DELEX k IFEQ a b", "delex"), ("DELIFEQ k", "delifeq")] {
        client.says(wrong, &format!("-ERR wrong number of arguments for '{name}' command\r\n"));
    }
    // In a transaction, and watched.
    let mut other = server.client();
    client.says("SET lock v", "+OK\r\n");
    client.says("WATCH lock", "+OK\r\n");
    other.says("DELIFEQ lock v", ":1\r\n");
    client.replies("MULTI", "+OK\r\n");
    client.replies("DELEX lock IFEQ v", "+QUEUED\r\n");
    client.replies("EXEC", "*-1\r\n");
}

#[test]
fn encodings_are_those_of_redis() {
    let server = Running::start();
    let mut client = server.client();
    for (value, encoding) in [("12", "$3\r\nint\r\n"), ("012", "$6\r\nembstr\r\n"), (&"v".repeat(44), "$6\r\nembstr\r\n"), (&"1".repeat(45), "$3\r\nraw\r\n")] {
        client.says(&format!("SET k {value}"), "+OK\r\n");
        client.says("OBJECT ENCODING k", encoding);
    }
    client.says("OBJECT ENCODING none", "$-1\r\n");
    // Regression: this copied all of a long value.
    client.call(&[b"SET", b"k", &vec![b'v'; 16 << 20]]);
    let start = Instant::now();
    client.send(&b"OBJECT ENCODING k\r\n".repeat(2000));
    client.expect(&b"$3\r\nraw\r\n".repeat(2000));
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[test]
fn a_command_may_be_of_a_category_and_not_have_its_flag() {
    let server = Running::start();
    let flags = "*3\r\n+loading\r\n+stale\r\n+fast\r\n";
    let categories = "*3\r\n+@admin\r\n+@fast\r\n+@dangerous\r\n";
    let told = format!("*1\r\n*10\r\n$8\r\nlastsave\r\n:1\r\n{flags}:0\r\n:0\r\n:0\r\n{categories}*0\r\n*0\r\n*0\r\n");
    server.client().says("COMMAND INFO lastsave", &told);
}
