//! The values of INFO are correct.

use crate::peer::{Client, Running, encode};
use everleaf_server::Config;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

fn field(client: &mut Client, name: &str) -> Option<String> {
    let info = String::from_utf8(client.call(&[b"INFO"])).unwrap();
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned))
}

pub(crate) fn number(client: &mut Client, name: &str) -> u64 {
    field(client, name).and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{name} is no number"))
}

/// Waits until `is_so` is true.
#[track_caller]
fn wait(mut is_so: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if is_so() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("it does not come to that");
}

#[test]
fn changes_count_from_the_last_backup_on() {
    let server = Running::start();
    let (mut client, mut other) = (server.client(), server.client());
    let changes = |client: &mut Client| number(client, "rdb_changes_since_last_save");
    (0..10).for_each(|number| client.says(&format!("SET k{number} v"), "+OK\r\n"));
    other.says("INCR n", ":1\r\n");
    assert_eq!(changes(&mut client), 11);
    client.says("CONFIG RESETSTAT", "+OK\r\n");
    assert_eq!(changes(&mut client), 11);
    client.says("SAVE", "+OK\r\n");
    assert_eq!(changes(&mut client), 0);
    other.says("INCR n", ":2\r\n");
    assert_eq!(changes(&mut client), 1);
    client.says("BGSAVE", "+Background saving started\r\n");
    wait(|| number(&mut client, "rdb_bgsave_in_progress") == 0);
    assert_eq!(changes(&mut client), 0);
    // A watched key that changes makes EXEC do nothing.
    client.replies("WATCH n", "+OK\r\n");
    other.says("INCR n", ":3\r\n");
    client.replies("MULTI", "+OK\r\n");
    client.replies("SET a b", "+QUEUED\r\n");
    client.replies("EXEC", "*-1\r\n");
    assert_eq!(changes(&mut client), 1);
}

static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[test]
fn why_a_backup_failed_is_told_and_logged() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("backup");
    std::fs::create_dir(&file).unwrap();
    let log = |line: &str| LOG.lock().unwrap().push(line.to_owned());
    let server = Running::with(Config { backup: Some(file.clone()), log, ..Config::default() });
    let mut client = server.client();
    client.says("SET k v", "+OK\r\n");
    assert_eq!(field(&mut client, "rdb_last_bgsave_status").unwrap(), "ok");
    client.says("BGSAVE", "+Background saving started\r\n");
    wait(|| number(&mut client, "rdb_bgsave_in_progress") == 0);
    assert_eq!(field(&mut client, "rdb_last_bgsave_status").unwrap(), "err");
    let why = field(&mut client, "rdb_last_bgsave_error").unwrap();
    assert!(why.starts_with("give the backup its name: "), "{why}");
    assert_eq!(*LOG.lock().unwrap(), [format!("the backup to {} failed: {why}", file.display())]);
    assert_eq!(number(&mut client, "rdb_changes_since_last_save"), 1);
    std::fs::remove_dir(&file).unwrap();
    client.says("BGSAVE", "+Background saving started\r\n");
    wait(|| number(&mut client, "rdb_bgsave_in_progress") == 0);
    assert_eq!((field(&mut client, "rdb_last_bgsave_status").unwrap(), field(&mut client, "rdb_last_bgsave_error")), ("ok".to_owned(), None));
    // A backup that cannot even begin has failed as well.
    drop(directory);
    assert!(client.call(&[b"BGSAVE"]).starts_with(b"-ERR create the file of the backup: "));
    assert_eq!(field(&mut client, "rdb_last_bgsave_status").unwrap(), "err");
    assert_eq!(LOG.lock().unwrap().len(), 2);
}

/// Regression: the failure was logged before it was recorded, and not recorded if nothing listened to the log.
#[test]
fn a_backup_that_fails_is_noted_whatever_becomes_of_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let server = Running::with(Config { backup: Some(directory.path().to_owned()), log: |_| panic!("nobody listens"), ..Config::default() });
    let mut client = server.client();
    client.says("BGSAVE", "+Background saving started\r\n");
    wait(|| number(&mut client, "rdb_bgsave_in_progress") == 0);
    assert_eq!(field(&mut client, "rdb_last_bgsave_status").unwrap(), "err");
}

/// Regression: the sum was taken before another loop reset the counters.
#[test]
fn no_count_falls_below_zero_while_another_loop_sets_them_back() {
    let server = Running::start();
    let (mut client, mut other) = (server.client(), server.client());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let resets = encode(&[b"CONFIG", b"RESETSTAT"]).repeat(20);
            while !is_over.load(Ordering::Relaxed) {
                other.send(&resets);
                other.expect(&b"+OK\r\n".repeat(20));
            }
        });
        let infos = (0..2000).map(|_| String::from_utf8(client.call(&[b"INFO", b"stats"])).unwrap());
        let wrong = infos.flat_map(|info| info.lines().map(str::to_owned).collect::<Vec<_>>()).find(|line| {
            let number = line.split_once(':').and_then(|(_, value)| value.parse::<u64>().ok());
            number.is_some_and(|number| number > u64::MAX / 2)
        });
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(wrong, None);
    });
}

#[test]
fn used_memory_is_what_is_in_use() {
    const SIZE: u64 = 64 << 20;
    let server = Running::start();
    let mut client = server.client();
    // The memory of the process includes that of other tests.
    let in_pool = |client: &mut Client| {
        let info = String::from_utf8(client.call(&[b"INFO", b"memory"])).unwrap();
        let number = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.parse::<u64>().ok()).unwrap();
        assert_eq!(number("used_memory"), number("used_memory_dataset"));
        assert!(number("used_memory_overhead") > 0 && number("used_memory_overhead") <= number("used_memory_rss"), "{info}");
        number("used_memory_dataset")
    };
    let before = in_pool(&mut client);
    client.send(&encode(&[b"SET", b"k", &vec![b'v'; SIZE as usize]]));
    client.expect(b"+OK\r\n");
    assert!((before + SIZE..before + SIZE * 5 / 4).contains(&in_pool(&mut client)));
    client.says("DEL k", ":1\r\n");
    // Touched pages stay, but their content is no longer in use.
    wait(|| in_pool(&mut client) < before + SIZE / 4);
}

/// Monitors display these, or fail if they are missing.
#[test]
fn what_the_process_uses_is_what_the_system_says() {
    let server = Running::start();
    let mut client = server.client();
    let seconds = |client: &mut Client, name: &str| field(client, name).and_then(|text| text.parse::<f64>().ok()).unwrap();
    let before = ["used_cpu_user", "used_cpu_sys"].map(|name| seconds(&mut client, name));
    // This takes some hundredths of a second, however fast the machine is.
    wait(|| seconds(&mut client, "used_cpu_user") > before[0] && seconds(&mut client, "used_cpu_sys") > before[1]);
    assert!(seconds(&mut client, "used_cpu_user_children") >= 0.0 && seconds(&mut client, "used_cpu_sys_children") >= 0.0);
    assert!(number(&mut client, "used_memory_rss") <= number(&mut client, "total_system_memory"));
    client.send(&encode(&[b"SET", b"k", &vec![b'v'; 3 << 20]]));
    client.expect(b"+OK\r\n");
    let info = String::from_utf8(client.call(&[b"INFO", b"memory"])).unwrap();
    let told = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    for name in ["used_memory", "used_memory_rss", "total_system_memory"] {
        let (bytes, human) = (told(name).parse::<f64>().unwrap(), told(&format!("{name}_human")));
        let (number, unit) = human.split_at(human.len() - 1);
        let power = " KMGT".find(unit).unwrap() as i32;
        assert!((number.parse::<f64>().unwrap() - bytes / 1024_f64.powi(power)).abs() <= 0.006, "{bytes} is not {human}");
    }
    let part = String::from_utf8(client.call(&[b"INFO", b"cpu", b"cluster"])).unwrap();
    assert!(part.contains("# CPU\r\nused_cpu_sys:") && part.contains("\r\n\r\n# Cluster\r\ncluster_enabled:0\r\n"), "{part}");
}

#[test]
fn a_compaction_tells_how_far_it_is() {
    let server = Running::start();
    let mut client = server.client();
    let keys: Vec<String> = (0..60_000).map(|number| format!("key {number:06}")).collect();
    // A compaction may be over before INFO is called.
    let is_told = (0..50).any(|_| {
        for keys in keys.chunks(1000) {
            let words: Vec<&[u8]> = std::iter::once(&b"MSET"[..]).chain(keys.iter().flat_map(|key| [key.as_bytes(), &[b'v'; 100]])).collect();
            client.send(&encode(&words));
            client.expect(b"+OK\r\n");
        }
        let removed: Vec<&[u8]> =
            std::iter::once(&b"DEL"[..]).chain(keys.iter().enumerate().filter(|(number, _)| number % 8 != 0).map(|(_, key)| key.as_bytes())).collect();
        client.send(&encode(&removed));
        client.expect(b":52500\r\n");
        client.says("MEMORY PURGE", "+OK\r\n");
        let mut seen = Vec::new();
        loop {
            let info = String::from_utf8(client.call(&[b"INFO", b"persistence"])).unwrap();
            let number = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.parse::<u64>().ok()).unwrap();
            seen.push(number("last_compaction_moved"));
            if number("compaction_in_progress") == 0 {
                break;
            }
        }
        assert!(seen.is_sorted() && seen[seen.len() - 1] > 0, "{seen:?}");
        seen.iter().any(|moved| (1..seen[seen.len() - 1]).contains(moved))
    });
    assert!(is_told);
}

/// The names that monitoring programs look for.
#[test]
fn names_that_monitors_know_are_there() {
    let server = Running::start();
    let mut client = server.client();
    client.says("SET k v", "+OK\r\n");
    for name in ["tracking_clients", "lazyfree_pending_objects", "aof_rewrite_in_progress", "latest_fork_usec", "master_repl_offset", "rdb_saves"] {
        assert_eq!(number(&mut client, name), 0, "{name}");
    }
    assert_eq!(field(&mut client, "aof_last_write_status").unwrap(), "ok");
    client.says("SAVE", "+OK\r\n");
    assert_eq!(number(&mut client, "rdb_saves"), 1);
    assert!(number(&mut client, "used_memory_peak") >= number(&mut client, "used_memory_rss"));
    assert!(field(&mut client, "used_memory_peak_human").is_some() && number(&mut client, "hz") > 0);
    let now_us = std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64;
    assert!(number(&mut client, "server_time_usec").abs_diff(now_us) < 60_000_000);
}

fn calls(client: &mut Client, command: &str) -> Option<[u64; 2]> {
    let info = String::from_utf8(client.call(&[b"INFO", b"commandstats"])).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")))?;
    let value = |name: &str| line.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('=')?.parse().ok());
    assert!(value("usec").is_some(), "{line}");
    Some(["calls", "failed_calls"].map(|name| value(name).unwrap()))
}

#[test]
fn commands_are_counted_by_their_names() {
    let server = Running::start();
    let mut client = server.client();
    // Run together, as they come in one piece.
    let pipeline: Vec<u8> = [&["SET", "a", "1"][..], &["GET", "a"], &["GET", "b"], &["SET", &"k".repeat(70_000), "v"], &["DEL", "a"]]
        .iter()
        .flat_map(|command| encode(&command.iter().map(|part| part.as_bytes()).collect::<Vec<_>>()))
        .collect();
    client.send(&pipeline);
    client.call(&[b"PING"]);
    client.says("INCRBY a x", "-ERR value is not an integer or out of range\r\n");
    client.says("EXISTS a b c", ":0\r\n");
    assert!(client.call(&[b"CLIENT", b"ID"]).starts_with(b":"));
    for (command, counts) in [("set", [2, 1]), ("get", [2, 0]), ("del", [1, 0]), ("incrby", [1, 1]), ("exists", [1, 0]), ("client|id", [1, 0])] {
        assert_eq!(calls(&mut client, command), Some(counts), "{command}");
    }
    assert_eq!(calls(&mut client, "mget"), None);
    let names = |client: &mut Client, sections: &[&[u8]]| String::from_utf8(client.call(sections)).unwrap().contains("cmdstat_");
    assert!(!names(&mut client, &[b"INFO"]) && !names(&mut client, &[b"INFO", b"default"]) && names(&mut client, &[b"INFO", b"all"]));
    client.says("CONFIG RESETSTAT", "+OK\r\n");
    assert_eq!(calls(&mut client, "set"), None);
}

#[test]
fn what_takes_long_is_kept() {
    let server = Running::start();
    let mut client = server.client();
    client.says("SLOWLOG LEN", ":0\r\n");
    client.says("CONFIG GET slowlog-log-slower-than", "*2\r\n$23\r\nslowlog-log-slower-than\r\n$5\r\n10000\r\n");
    client.says("CONFIG SET slowlog-max-len 3", "+OK\r\n");
    client.says("CLIENT SETNAME me", "+OK\r\n");
    // Keys of several slices.
    let many: Vec<u8> = (0..5000).flat_map(|n: u32| encode(&[b"SET", n.to_string().as_bytes(), b"v"])).collect();
    client.send(&many);
    client.call(&[b"PING"]);
    let kept = |client: &mut Client| String::from_utf8(client.call(&[b"SLOWLOG", b"GET", b"-1"])).unwrap();
    let is_slow = |client: &mut Client, what: &[&[u8]]| {
        client.says("CONFIG SET slowlog-log-slower-than 0", "+OK\r\n");
        client.call(what);
        client.says("CONFIG SET slowlog-log-slower-than -1", "+OK\r\n");
    };
    let shown = |parts: &[&str]| parts.iter().map(|part| format!("${}\r\n{part}\r\n", part.len())).collect::<String>();
    is_slow(&mut client, &[b"KEYS", b"*"]);
    assert!(kept(&mut client).contains(&format!("*2\r\n{}", shown(&["KEYS", "*"]))), "{}", kept(&mut client));
    is_slow(&mut client, &[b"APPEND", b"k", &[b'x'; 200]]);
    let cut = format!("{}... (72 more bytes)", "x".repeat(128));
    assert!(kept(&mut client).contains(&format!("*3\r\n{}", shown(&["APPEND", "k", &cut]))), "{}", kept(&mut client));
    assert!(kept(&mut client).contains(&format!("{}$2\r\nme\r\n", shown(&[&client.socket.local_addr().unwrap().to_string()]))));
    // Within a transaction, too.
    client.says("CONFIG SET slowlog-log-slower-than 0", "+OK\r\n");
    client.replies("MULTI", "+OK\r\n");
    client.replies("KEYS *", "+QUEUED\r\n");
    client.exchange(&[b"EXEC"]);
    client.says("CONFIG SET slowlog-log-slower-than -1", "+OK\r\n");
    assert!(kept(&mut client).contains(&format!("*2\r\n{}", shown(&["KEYS", "*"]))), "{}", kept(&mut client));
    is_slow(&mut client, &[b"AUTH", b"hunter2"]);
    assert!(!kept(&mut client).contains("hunter2") && kept(&mut client).contains("auth"), "{}", kept(&mut client));
    // At most three, and the changes of the setting are among them.
    client.says("SLOWLOG LEN", ":3\r\n");
    client.says("SLOWLOG RESET", "+OK\r\n");
    client.says("SLOWLOG LEN", ":0\r\n");
    client.says("SLOWLOG GET -2", "-ERR count should be greater than or equal to -1\r\n");
    assert!(client.call(&[b"CONFIG", b"SET", b"slowlog-log-slower-than", b"-2"]).starts_with(b"-ERR CONFIG SET failed"));
}
