#![forbid(unsafe_code)]
//! `kill -9` of the real server under load, verified against an expected-state log; `cargo xtask kill --rounds N` runs it for longer.
//!
//! A round starts the server on the pool of the previous round, verifies all of it, lets several connections write, each with many requests in flight, and
//! kills the server at a random moment. The log is in this process, so it survives. Occasionally the pool is recreated; otherwise every round is the next life
//! of the same pool. Some rounds kill the server during its start, some stop it gracefully, some kill it in the middle of a `redis-benchmark -t set -P 16`.
//!
//! Pools use every structure of the registry in its default size, in turn.
//!
//! A second test transfers between accounts by MULTI and EXEC, in the domains in turn, and also kills. A third kills in the middle of large batches: see
//! `kill/batches.rs`. A fourth repeats the first in the domain `msync`, where the machine fails, too: see `kill/machine.rs`. A fifth writes items of memcached:
//! see `kill/items.rs`.
//!
//! `EVERLEAF_KILL_ROUNDS`, `EVERLEAF_KILL_SEED` and `EVERLEAF_KILL_INDEX` set the number of rounds, the seed, and a single index; `EVERLEAF_KILL_DOMAIN` sets a
//! single domain for transfers. The values are printed. A seed determines what is written and when the kill comes, but not how far the server is by then.

#[path = "kill/batches.rs"]
mod batches;
#[path = "kill/client.rs"]
mod client;
#[path = "kill/items.rs"]
mod items;
#[path = "kill/ledger.rs"]
mod ledger;
#[path = "kill/machine.rs"]
mod machine;
#[path = "kill/server.rs"]
mod server;
#[path = "kill/transfers.rs"]
mod transfers;
#[path = "kill/workload.rs"]
mod workload;

use batches::{Sender, Tally};
use client::Client;
use everleaf_pmem::Hardware;
use items::Keeper;
use ledger::Shared;
use machine::Moment;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use server::{Place, Server};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use transfers::Teller;
use workload::Writer;

/// Rounds of an ordinary test run; more if there are more indexes.
const ROUNDS: u64 = 21;
/// Rounds of an ordinary test run with transfers; they are shorter.
const TRANSFER_ROUNDS: u64 = 50;
/// Rounds of an ordinary test run with large batches, and the maximum number of repetitions if no kill came while a batch was being written.
const BATCH_ROUNDS: u64 = 40;
const BATCH_TURNS_MAX: u64 = 10;
/// Rounds of an ordinary test run with items of memcached.
const ITEM_ROUNDS: u64 = 20;
/// Largest number of batches that are sent before a kill.
const BATCHES_MAX: usize = 12;
/// Largest number of rounds on one pool.
const ROUNDS_PER_POOL: u64 = 40;
/// Number of connections that write.
const WRITERS: usize = 4;
/// Longest time that they write in a round.
const WRITE_MILLISECONDS_MAX: u64 = 60;

/// Additional actions of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    /// Kill the server while it starts, before the round.
    KilledAtStart,
    /// Stop it by SIGTERM instead of killing it.
    Graceful,
    /// Also kill it in the middle of a redis-benchmark.
    Benchmark,
}

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, not a number")),
        Err(_) => default,
    }
}

/// The rounds of each pool, for `rounds` rounds on the indexes in turn. The rounds of any two indexes differ by at most one, and there is no unnecessary pool.
fn shares(rounds: u64, index_count: u64) -> impl Iterator<Item = Range<u64>> {
    let turns = rounds.div_ceil(index_count * ROUNDS_PER_POOL).max(1);
    let pool_count = index_count * turns;
    (0..pool_count).map(move |pool| pool * rounds / pool_count..(pool + 1) * rounds / pool_count).filter(|share| !share.is_empty())
}

/// The indexes that the pools use in turn.
fn indexes() -> Vec<String> {
    let names = everleaf_index::registry::<[u8], Hardware>().into_iter().filter(|entry| entry.persistent).map(|entry| entry.name.to_owned());
    match std::env::var("EVERLEAF_KILL_INDEX") {
        Ok(only) => vec![only],
        // The names of other sizes contain digits.
        Err(_) => names.filter(|name| !name.contains(|letter: char| letter.is_ascii_digit())).collect(),
    }
}

#[test]
fn every_acknowledged_write_outlives_kill_9() {
    kill_in_turn("page-cache");
}

#[test]
fn every_acknowledged_write_outlives_the_machine() {
    let failures = kill_in_turn("msync");
    assert!(failures > 0, "a machine that never failed");
}

/// Runs rounds on all indexes in turn, and returns how often the machine has failed.
fn kill_in_turn(domain: &str) -> u64 {
    let indexes = indexes();
    let rounds = setting("EVERLEAF_KILL_ROUNDS", ROUNDS.max(indexes.len() as u64));
    let seed = setting("EVERLEAF_KILL_SEED", rand::random::<u32>().into());
    let only = if let [only] = &indexes[..] { format!(" --index {only}") } else { String::new() };
    println!("{rounds} rounds in {domain} on {}; replay with: cargo xtask kill --rounds {rounds} --seed {seed}{only}", indexes.join(", "));
    let benchmark = Command::new("redis-benchmark").arg("--version").output().is_ok();
    if !benchmark {
        println!("redis-benchmark is not installed (Debian: redis-tools), so no round runs it");
    }
    let start = Instant::now();
    let mut random = StdRng::seed_from_u64(seed);
    let mut totals = Totals::default();
    for (index, rounds) in indexes.iter().cycle().zip(shares(rounds, indexes.len() as u64)) {
        let directory = tempfile::tempdir().expect("a directory for the pool");
        let place = Place { pool: directory.path().join("kill.pool"), index, domain };
        run_pool(&place, rounds, benchmark, &mut random, &mut totals);
    }
    println!(
        "{rounds} rounds in {:.1} s, {} failures of the machine: {} writes acknowledged, {} in flight at a kill, {} keys verified, slowest start {:.0?}: every \
         acknowledged write is there",
        start.elapsed().as_secs_f64(),
        totals.failures,
        totals.acknowledged,
        totals.in_flight,
        totals.verified,
        totals.slowest_start,
    );
    assert!(totals.acknowledged > rounds, "the rounds were too short to write anything");
    totals.failures
}

#[derive(Default)]
struct Totals {
    acknowledged: u64,
    in_flight: u64,
    verified: u64,
    failures: u64,
    slowest_start: Duration,
}

/// Rounds on one pool, beginning with its creation.
fn run_pool(place: &Place<'_>, rounds: Range<u64>, benchmark: bool, random: &mut StdRng, totals: &mut Totals) {
    let shared = Shared::default();
    let mut writers: Vec<_> = (0..WRITERS).map(|number| Writer::new(number, &shared, random.random())).collect();
    let mut benchmark_keys = 0;
    for round in rounds {
        let kind = match random.random_range(0..10) {
            0 => Kind::KilledAtStart,
            1 => Kind::Graceful,
            2 if benchmark => Kind::Benchmark,
            _ => Kind::Plain,
        };
        if kind == Kind::KilledAtStart {
            Server::kill_at_start(place, Duration::from_micros(random.random_range(0..30_000)));
        }
        let server = Server::start(place);
        let moment = (place.domain == "msync" && kind != Kind::Graceful).then(|| Moment::of(&place.pool));
        totals.slowest_start = totals.slowest_start.max(server.started_in);
        totals.verified += ledger::verify(&server, &mut writers, &shared, &mut benchmark_keys)
            .unwrap_or_else(|what| panic!("round {round} on {}, {kind:?}: {what}", place.index));

        let time = Duration::from_micros(random.random_range(0..WRITE_MILLISECONDS_MAX * 1000));
        let mut noise = (kind == Kind::Benchmark).then(|| start_benchmark(&server));
        let (port, ending) = (server.port, server.ending.clone());
        thread::scope(|scope| {
            for writer in &mut writers {
                scope.spawn(|| writer.run(port, &ending));
            }
            thread::sleep(time);
            if kind == Kind::Graceful { server.stop() } else { server.kill() }
        });
        if let Some(noise) = &mut noise {
            // It ends by itself when its connections do, but must not outlive the test.
            let _ = noise.kill();
            let _ = noise.wait();
        }
        totals.failures += u64::from(moment.is_some_and(|moment| moment.fail(random)));
        for writer in &mut writers {
            let (acknowledged, in_flight) = writer.take_counts();
            totals.acknowledged += acknowledged;
            totals.in_flight += in_flight;
        }
    }
    // Verifies the last round as well.
    let server = Server::start(place);
    totals.verified += ledger::verify(&server, &mut writers, &shared, &mut benchmark_keys).unwrap_or_else(|what| panic!("after the last round: {what}"));
    server.kill();
}

/// Transactions of several connections on shared accounts, in two databases; see `kill/transfers.rs`. Each pool is in one of the domains.
#[test]
fn transfers_outlive_kill_9_as_a_whole_or_not_at_all() {
    let indexes = indexes();
    let chosen = std::env::var("EVERLEAF_KILL_DOMAIN").ok();
    let domains = chosen.as_deref().map_or_else(|| vec!["page-cache", "msync"], |domain| vec![domain]);
    let rounds = setting("EVERLEAF_KILL_ROUNDS", TRANSFER_ROUNDS.max(indexes.len() as u64));
    let seed = setting("EVERLEAF_KILL_SEED", rand::random::<u32>().into());
    let only = if let [only] = &indexes[..] { format!(" --index {only}") } else { String::new() };
    let alone = chosen.as_ref().map_or_else(String::new, |domain| format!(" --domain {domain}"));
    println!("{rounds} rounds on {}; replay with: cargo xtask kill --only transfers --rounds {rounds} --seed {seed}{only}{alone}", indexes.join(", "));
    let (start, mut random) = (Instant::now(), StdRng::seed_from_u64(seed));
    let (mut acknowledged, mut overtaken) = (0, 0);
    for (index, rounds) in indexes.iter().cycle().zip(shares(rounds, indexes.len() as u64)) {
        let directory = tempfile::tempdir().expect("a directory for the pool");
        let domain = domains[random.random_range(0..domains.len())];
        let place = Place { pool: directory.path().join("kill.pool"), index, domain };
        let mut tellers: Vec<_> = (0..WRITERS as u64).map(Teller::new).collect();
        let mut server = Server::start(&place);
        transfers::open(&server);
        for round in rounds {
            let (port, ending) = (server.port, server.ending.clone());
            let time = Duration::from_micros(random.random_range(0..WRITE_MILLISECONDS_MAX * 1000));
            thread::scope(|scope| {
                for teller in &mut tellers {
                    scope.spawn(|| teller.run(port, &ending));
                }
                thread::sleep(time);
                server.kill();
            });
            server = Server::start(&place);
            transfers::verify(&server, &mut tellers).unwrap_or_else(|what| panic!("round {round} on {index} in {domain}: {what}"));
        }
        server.kill();
        acknowledged += tellers.iter().map(|teller| teller.acknowledged).sum::<u64>();
        overtaken += tellers.iter().map(|teller| teller.overtaken).sum::<u64>();
    }
    println!(
        "{rounds} rounds in {:.1} s: {acknowledged} transfers, {overtaken} more overtaken: each is there as a whole or not at all, and the sum is what it was",
        start.elapsed().as_secs_f64()
    );
    // Where a write waits for a device, a round completes few.
    let least = if domains == ["msync"] { 0 } else { rounds };
    assert!(acknowledged > least, "the rounds were too short to transfer anything");
}

/// Large batches of several connections; see `kill/batches.rs`.
#[test]
fn batches_outlive_kill_9_as_a_whole_or_not_at_all() {
    let indexes = indexes();
    let rounds = setting("EVERLEAF_KILL_ROUNDS", BATCH_ROUNDS.max(indexes.len() as u64));
    let seed = setting("EVERLEAF_KILL_SEED", rand::random::<u32>().into());
    let only = if let [only] = &indexes[..] { format!(" --index {only}") } else { String::new() };
    println!("{rounds} rounds on {}; replay with: cargo xtask kill --only batches --rounds {rounds} --seed {seed}{only}", indexes.join(", "));
    let (start, mut random) = (Instant::now(), StdRng::seed_from_u64(seed));
    let (mut tally, mut done, mut batches) = (Tally::default(), 0, 0);
    // Chance decides which kill comes in the middle of a write, but the loop makes sure that one does.
    while tally.undone == 0 && done < rounds * BATCH_TURNS_MAX {
        for (index, rounds) in indexes.iter().cycle().zip(shares(rounds, indexes.len() as u64)) {
            let directory = tempfile::tempdir().expect("a directory for the pool");
            let place = Place { pool: directory.path().join("kill.pool"), index, domain: "page-cache" };
            batches += kill_in_batches(&place, rounds, &mut random, &mut tally);
        }
        done += rounds;
    }
    let Tally { hits, there, absent, undone } = tally;
    println!(
        "{done} rounds in {:.1} s, {hits} kills within a batch: {batches} batches are there as a whole, {there} of them under way at a kill; of {absent} more \
         nothing is there, and {undone} of these had to be undone",
        start.elapsed().as_secs_f64()
    );
    assert!(undone > 0, "no kill came while a batch was written, so nothing was tested");
}

/// Rounds with large batches on one pool, beginning with its creation. Returns the number of batches that are there.
fn kill_in_batches(place: &Place<'_>, rounds: Range<u64>, random: &mut StdRng, tally: &mut Tally) -> u64 {
    let mut senders: Vec<_> = (0..WRITERS as u64).map(Sender::new).collect();
    let mut server = Server::start(place);
    for round in rounds {
        let verify = |server: &Server, senders: &mut [Sender], undecided, tally: &mut Tally| {
            let outcome = batches::look(server).and_then(|held| batches::judge(held, senders, undecided, tally));
            outcome.unwrap_or_else(|what| panic!("round {round} on {}: {what}", place.index));
        };
        // After a batch is sent, the kill comes within the duration of the previous one.
        let (sent_count, part) = (random.random_range(0..BATCHES_MAX), random.random_range(0.0..1.0));
        let (port, ending, (sent, heard)) = (server.port, server.ending.clone(), mpsc::channel());
        thread::scope(|scope| {
            let ending = &ending;
            for sender in &mut senders {
                let sent = sent.clone();
                scope.spawn(move || sender.run(port, ending, &sent));
            }
            drop(sent);
            let took: Duration = heard.iter().nth(sent_count).expect("clients send until the server is killed");
            thread::sleep(took.mul_f64(part));
            server.kill();
        });
        let undecided = batches::undecided(&place.pool);
        if random.random_ratio(1, 4) {
            Server::kill_at_start(place, Duration::from_micros(random.random_range(0..30_000)));
        }
        server = Server::start(place);
        verify(&server, &mut senders, undecided, tally);
        if undecided > 0 {
            // A store that has undone a batch must accept others.
            let mut client = Client::connect(server.port).expect("the server listens");
            senders.iter_mut().for_each(|sender| sender.deliver(&mut client, |_| ()).expect("a reply"));
            if random.random() {
                server.stop()
            } else {
                server.kill()
            }
            Server::check(place);
            server = Server::start(place);
            verify(&server, &mut senders, 0, tally);
        }
    }
    server.kill();
    senders.iter().map(|sender| sender.version).sum()
}

/// Items of memcached, written by several connections; see `kill/items.rs`.
#[test]
fn items_of_memcached_outlive_kill_9() {
    let rounds = setting("EVERLEAF_KILL_ROUNDS", ITEM_ROUNDS);
    let seed = setting("EVERLEAF_KILL_SEED", rand::random::<u32>().into());
    println!("{rounds} rounds; replay with: cargo xtask kill --only items --rounds {rounds} --seed {seed}");
    let (start, mut random) = (Instant::now(), StdRng::seed_from_u64(seed));
    let mut acknowledged = 0;
    for (domain, rounds) in ["page-cache", "msync"].into_iter().cycle().zip(shares(rounds, 2)) {
        let directory = tempfile::tempdir().expect("a directory for the pool");
        let place = Place { pool: directory.path().join("kill.pool"), index: "ever", domain };
        let mut keepers: Vec<_> = (0..WRITERS).map(|number| Keeper::new(number, random.random())).collect();
        for round in rounds {
            let server = Server::start(&place);
            let verify = |keeper: &mut Keeper| keeper.verify(server.memcached_port).unwrap_or_else(|what| panic!("round {round} in {domain}: {what}"));
            keepers.iter_mut().for_each(verify);
            let time = Duration::from_micros(random.random_range(0..WRITE_MILLISECONDS_MAX * 1000));
            let (port, ending) = (server.memcached_port, server.ending.clone());
            thread::scope(|scope| {
                for keeper in &mut keepers {
                    scope.spawn(|| keeper.run(port, &ending, usize::MAX));
                }
                thread::sleep(time);
                server.kill();
            });
        }
        let server = Server::start(&place);
        keepers.iter_mut().for_each(|keeper| keeper.verify(server.memcached_port).unwrap_or_else(|what| panic!("after the last round in {domain}: {what}")));
        acknowledged += keepers.iter().map(|keeper| keeper.acknowledged).sum::<u64>();
        server.stop();
        Server::check(&place);
    }
    println!("{rounds} rounds in {:.1} s: {acknowledged} writes acknowledged, every one is there", start.elapsed().as_secs_f64());
    assert!(acknowledged > rounds, "the rounds were too short to write anything");
}

#[test]
fn a_lost_item_would_be_noticed() {
    let set = |flags: u64, number| {
        let item = items::item("keeper-0-3", number);
        format!("set keeper-0-3 {flags} 0 {}\r\n{item}\r\n", item.len())
    };
    let defects = ["flush_all\r\n".to_owned(), set(1, 1), set(7, 8), "append keeper-0-3 0 0 1\r\ni\r\n".to_owned()];
    for (number, defect) in defects.iter().enumerate() {
        let directory = tempfile::tempdir().expect("a directory for the pool");
        let place = Place { pool: directory.path().join(format!("{number}.pool")), index: "ever", domain: "page-cache" };
        let (server, mut keeper) = (Server::start(&place), Keeper::new(0, 1));
        keeper.run(server.memcached_port, &server.ending, 50);
        assert_eq!(keeper.verify(server.memcached_port), Ok(()));
        items::disturb(server.memcached_port, defect);
        assert!(keeper.verify(server.memcached_port).is_err(), "{defect:?}");
        server.kill();
    }
}

#[test]
fn a_server_that_ends_by_itself_would_be_noticed() {
    let directory = tempfile::tempdir().expect("a directory for the pool");
    let place = Place { pool: directory.path().join("failed.pool"), index: "ever", domain: "page-cache" };
    let (shared, mut server) = (Shared::default(), Server::start(&place));
    server.fail();
    let is_noticed = |act: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(act)).is_err();
    assert!(is_noticed(&mut || Writer::new(0, &shared, 1).run(server.port, &server.ending)));
    assert!(is_noticed(&mut || Keeper::new(0, 1).run(server.memcached_port, &server.ending, 1)));
    let mut server = Some(server);
    assert!(is_noticed(&mut || server.take().expect("it is killed once").kill()));
}

/// Starts a redis-benchmark that would take longer than the round.
fn start_benchmark(server: &Server) -> Child {
    let mut command = Command::new("redis-benchmark");
    command.args(["-h", "127.0.0.1", "-p", &server.port.to_string(), "-t", "set", "-P", "16", "-c", "8", "-d", "100", "-r", "5000", "-n", "100000000", "-q"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("redis-benchmark runs")
}

/// Regression: with two rounds for each index, the rounds ran out before the last indexes had any.
#[test]
fn every_index_has_its_rounds() {
    let index_count = indexes().len() as u64;
    for rounds in [ROUNDS.max(index_count), TRANSFER_ROUNDS.max(index_count), 25, 3, index_count * ROUNDS_PER_POOL, index_count * ROUNDS_PER_POOL + 1, 5000] {
        let shares: Vec<_> = shares(rounds, index_count).collect();
        let counts = || shares.iter().map(|share| share.end - share.start);
        assert!(shares.len() as u64 >= index_count.min(rounds), "{rounds} rounds: {shares:?}");
        assert!(counts().max() <= counts().min().map(|least| least + 1) && counts().max() <= Some(ROUNDS_PER_POOL), "{rounds} rounds: {shares:?}");
        assert!(shares.iter().cloned().flatten().eq(0..rounds), "{rounds} rounds: {shares:?}");
    }
}

/// Runs `words` on a pool after a kill, and returns the verification's complaint, if any.
fn notice(pool: &Path, database: &str, words: &[&[u8]]) -> Option<String> {
    let place = Place { pool: pool.to_owned(), index: "ever", domain: "page-cache" };
    let shared = Shared::default();
    let mut writers = [Writer::new(0, &shared, 1)];
    let server = Server::start(&place);
    let (port, ending) = (server.port, server.ending.clone());
    thread::scope(|scope| {
        scope.spawn(|| writers[0].run(port, &ending));
        // Until every group and counter, and many of the keys, have been written. The seed is fixed, so this does not depend on chance.
        let patience = Instant::now();
        while shared.clock() < 400 {
            assert!(patience.elapsed() < Duration::from_secs(60), "the writer gets nowhere");
            thread::sleep(Duration::from_millis(1));
        }
        server.kill();
    });
    let server = Server::start(&place);
    let mut client = Client::connect(server.port).expect("the server listens");
    client.call(&[b"SELECT", database.as_bytes()]).expect("a reply");
    client.call(words).expect("a reply");
    ledger::verify(&server, &mut writers, &shared, &mut 0).err()
}

/// The verification must notice defects: a client unknown to the log simulates them.
#[test]
fn a_defect_would_be_noticed() {
    let directory = tempfile::tempdir().expect("a directory for the pool");
    let defects: [(&str, &[&[u8]], &str); 5] = [
        ("1", &[b"FLUSHDB"], "acknowledged was"),
        ("1", &[b"SET", b"writer 0 key 1000", b""], "should not be"),
        ("0", &[b"SET", b"group 3 member 2", b"writer 0 1."], "only part of an MSET"),
        ("0", &[b"INCRBY", b"counter 5", b"1000"], "acknowledged and"),
        ("0", &[b"DEL", b"group 1 member 0", b"group 1 member 1", b"group 1 member 2", b"group 1 member 3"], "group 1"),
    ];
    for (number, (database, words, expected)) in defects.into_iter().enumerate() {
        // Sometimes a request in flight explains the change, such as a deletion of the group.
        let noticed = (0..5).find_map(|attempt| notice(&directory.path().join(format!("{number}-{attempt}.pool")), database, words));
        let what = noticed.unwrap_or_else(|| panic!("{words:?} was never noticed"));
        assert!(what.contains(expected), "{words:?} is reported as {what:?}");
    }
}
