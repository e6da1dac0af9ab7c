#![forbid(unsafe_code)]
//! The commands as a shell or a program sees them: standard output, standard error, exit codes.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Runs a command in `directory` with `input` on its standard input.
fn everleaf(directory: &Path, arguments: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everleaf"));
    command.args(arguments).current_dir(directory).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().expect("the binary runs");
    // A command that does not read its input may have ended before all of it is written.
    let _ = process.stdin.take().expect("its input is piped").write_all(input);
    process.wait_with_output().expect("it ends")
}

/// Loads so many keys, each with the value of its number.
fn load(directory: &Path, count: u32, value: impl Fn(u32) -> String) {
    let lines: String = (0..count).map(|number| format!("key {number}\t{}\n", value(number))).collect();
    expect(directory, &["load", "-"], lines.as_bytes(), 0);
}

/// Runs a command that must end with `code`, and returns its standard output.
#[track_caller]
fn expect(directory: &Path, arguments: &[&str], input: &[u8], code: i32) -> Vec<u8> {
    let output = everleaf(directory, arguments, input);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

/// A listener on a port that was free, and its address.
fn listener() -> (std::net::TcpListener, std::net::SocketAddr) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

/// Starts a server; returns what it says when it listens, too.
fn serve(directory: &Path, options: &[&str]) -> (Child, serde_json::Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everleaf"));
    let command = command.args(["serve", "--json"]).args(options).current_dir(directory);
    let mut server = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(server.stdout.take().expect("its output is piped")), &mut line).expect("it says where it listens");
    (server, serde_json::from_str(&line).expect("JSON"))
}

#[test]
fn values_are_bytes() {
    let directory = directory();
    let value = b"\0\xff\r\n middle \n";
    expect(directory.path(), &["put", "key", "-"], value, 0);
    assert_eq!(expect(directory.path(), &["get", "key"], b"", 0), value);
    expect(directory.path(), &["put", "", ""], b"", 0);
    assert_eq!(expect(directory.path(), &["get", ""], b"", 0), b"");
    assert_eq!(expect(directory.path(), &["get", "--json", "key"], b"", 0), b"{\"key\":\"key\",\"value_base64\":\"AP8NCiBtaWRkbGUgCg==\"}\n");
}

#[test]
fn exit_codes_say_what_happened() {
    let directory = directory();
    let path = directory.path();
    expect(path, &["get", "key"], b"", 3);
    expect(path, &["info"], b"", 3);
    assert!(!path.join("everleaf.pool").exists(), "reading creates no pool");
    expect(path, &["create"], b"", 0);
    expect(path, &["create"], b"", 3);
    expect(path, &["get", "key"], b"", 1);
    expect(path, &["del", "key"], b"", 1);
    expect(path, &["put", "key", "value"], b"", 0);
    assert_eq!(expect(path, &["del", "key", "other"], b"", 0), b"1\n");
    expect(path, &["put", "key"], b"", 2);
    expect(path, &["put", "--size-max", "7 apples", "key", "value"], b"", 2);
    expect(path, &["put", "--index", "volatile", "key", "value"], b"", 2);
    for size in ["0", "1K"] {
        let output = everleaf(path, &["put", "--size-max", size, "--pool", "tiny.pool", "key", "value"], b"");
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("at least two slabs for a new pool"), "{output:?}");
        assert!(!path.join("tiny.pool").exists());
    }
    expect(path, &["backup", "file"], b"", 0);
    let tiny = ["--size-max", "0", "--pool", "tiny.pool"];
    for command in [&["create"][..], &["serve", "--port", "0"], &["restore", "file"], &["import", "file"], &["load", "-"]] {
        expect(path, &[command, &tiny].concat(), b"", 2);
    }
    expect(path, &["repair", "tiny.pool", "--size-max", "0"], b"", 2);
    for name in ["", "everleaf"] {
        expect(path, &["put", "--namespace", name, "--pool", "tiny.pool", "key", "value"], b"", 2);
    }
    assert!(!path.join("tiny.pool").exists());
    expect(path, &["serve", "--password", ""], b"", 2);
    expect(path, &["stats", "--watch", "--server", "localhost"], b"", 2);
    // These commands address a server, so options that choose or open a pool do not apply.
    for command in [&["compact", "--online"][..], &["stats", "--watch"]] {
        for option in [&["--pool", "other.pool"][..], &["--size-max", "1G"], &["--accept-dirty-shutdown"]] {
            expect(path, &[command, option].concat(), b"", 2);
        }
    }
    expect(path, &["put", &"k".repeat(65_537), ""], b"", 3);
    expect(path, &["load", "absent.tsv"], b"", 4);
    expect(path, &["check"], b"", 0);
    std::fs::write(path.join("empty"), "").expect("a file");
    for command in [&["get", "key"][..], &["info"], &["check"], &["dump"]] {
        expect(path, &[command, &["--pool", "empty"]].concat(), b"", 3);
        expect(path, &[command, &["--pool", "."]].concat(), b"", 3);
    }
    std::fs::write(path.join("text"), "no pool, but long enough to be read as one").expect("a file");
    expect(path, &["check", "--pool", "text"], b"", 3);
}

/// A file size limit acts like a full disk; its signal must not end the process.
#[test]
fn a_limit_on_the_size_of_files_is_an_error() {
    let directory = directory();
    let limited = |script: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", script, env!("CARGO_BIN_EXE_everleaf")]).current_dir(directory.path()).stdin(Stdio::null());
        let output = command.output().expect("bash runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, message) = limited("ulimit -f 18000; seq 1000000 | sed 's/.*/key &\\ta value of some length &/' | $0 load /dev/stdin");
    assert!(code == Some(3) && message.contains("no space") && message.contains("free space there"), "{code:?}: {message}");
    expect(directory.path(), &["check"], b"", 0);
    let (code, message) = limited("ulimit -f 100; $0 dump > dumped");
    assert!(code == Some(4) && message.contains("File too large"), "{code:?}: {message}");
    let (code, message) = limited("ulimit -f 4; $0 create --pool other");
    assert!(code == Some(3) && message.contains("no space"), "{code:?}: {message}");
}

/// Sends a process a signal, as `kill` names it.
fn kill(process: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &process.id().to_string()]).status().expect("kill runs").success());
}

/// Nobody would see it, and FLUSHALL would leave it.
#[test]
fn a_server_leaves_out_no_database_with_keys() {
    let directory = directory();
    let path = directory.path();
    expect(path, &["put", "--namespace", "9", "key", "value"], b"", 0);
    let output = everleaf(path, &["serve", "--port", "0", "--databases", "9"], b"");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("database 9 of the pool, with 1 keys"), "{said}");
    let info: serde_json::Value = serde_json::from_slice(&expect(path, &["info", "--json"], b"", 0)).expect("JSON");
    assert_eq!(info["state"], "closed");
}

/// What an interrupted command has read is as it was; what it has written is closed, not left to be recovered, or, after a restart of the machine, refused.
#[test]
fn what_is_interrupted_closes_the_pool() {
    let directory = directory();
    let path = directory.path();
    let lines: String = (0..20_000).map(|number| format!("key {number:05}\t{}\n", "v".repeat(100))).collect();
    expect(path, &["load", "-"], lines.as_bytes(), 0);
    let state = || {
        let info: serde_json::Value = serde_json::from_slice(&expect(path, &["info", "--json"], b"", 0)).expect("JSON");
        info["state"].as_str().expect("text").to_owned()
    };
    for command in [&["scan"][..], &["dump"], &["export", "-"], &["scan", "--keys-only", "--json"], &["load", "-"]] {
        for signal in ["-INT", "-TERM", "-HUP"] {
            let mut process = Command::new(env!("CARGO_BIN_EXE_everleaf"));
            let process = process.args(command).current_dir(path).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut process = process.spawn().expect("the binary runs");
            let input = process.stdin.take().expect("its input is piped");
            if command[0] == "load" {
                // It waits for more.
                (&input).write_all(lines.as_bytes()).expect("it reads");
                while !state().starts_with("in use") {}
            } else {
                // It waits until its output is read.
                let mut first = [0];
                process.stdout.as_mut().expect("its output is piped").read_exact(&mut first).expect("it prints");
            }
            kill(&process, signal);
            if signal == "-TERM" {
                // As `timeout` sends it.
                kill(&process, signal);
            }
            let output = process.wait_with_output().expect("it ends");
            drop(input);
            assert_eq!(output.status.code(), Some(130), "{command:?} {signal}: {}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(state(), "closed", "{command:?} {signal}");
        }
    }
}

/// A server whose terminal closes also closes its pool, unless it was started with `nohup`.
#[test]
fn a_server_stops_when_its_terminal_goes() {
    for is_ignored in [false, true] {
        let directory = directory();
        let serve = [env!("CARGO_BIN_EXE_everleaf"), "serve", "--port", "0"];
        let arguments = if is_ignored { [&["nohup"][..], &serve].concat() } else { serve.to_vec() };
        let mut process = Command::new(arguments[0]);
        let mut process = process
            .args(&arguments[1..])
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut first = [0];
        process.stdout.as_mut().expect("its output is piped").read_exact(&mut first).expect("it says where it listens");
        kill(&process, "-HUP");
        if is_ignored {
            kill(&process, "-TERM");
        }
        let output = process.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("stopping") && said.contains("the pool is closed"), "{said}");
    }
}

/// Regression: an export that failed left its partial output, and destroyed the previous file.
#[test]
fn an_export_that_fails_leaves_what_was_there() {
    let directory = directory();
    let path = directory.path();
    expect(path, &["put", "key", "-"], &vec![b'v'; 1 << 20], 0);
    std::fs::write(path.join("exported"), "before").expect("a file");
    let mut command = Command::new("bash");
    command.args(["-c", "ulimit -f 100; $0 export exported", env!("CARGO_BIN_EXE_everleaf")]).current_dir(path).stdin(Stdio::null());
    let output = command.output().expect("bash runs");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(4) && message.contains("File too large"), "{:?}: {message}", output.status);
    assert_eq!(std::fs::read(path.join("exported")).expect("the file"), b"before");
    assert_eq!(std::fs::read_dir(path).expect("it is there").count(), 2);
    expect(path, &["export", "exported"], b"", 0);
    let size = std::fs::metadata(path.join("exported")).expect("the file").len();
    assert!(size > 1 << 20, "{size}");
    // A target that is not a regular file is written directly.
    let output = everleaf(path, &["export", "/dev/stdout"], b"");
    assert!(output.status.success() && output.stdout.len() as u64 > size);
}

/// Runs a command at a terminal, if a program that provides one is installed, and returns what the terminal shows.
fn at_terminal(directory: &Path, line: &str) -> Option<String> {
    let line = format!("{} {line}", env!("CARGO_BIN_EXE_everleaf"));
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").current_dir(directory).stdin(Stdio::null());
    let Ok(output) = command.output() else {
        // Bypasses the capture of passing tests' output, so that the test does not seem to have run.
        let _ = writeln!(std::io::stderr(), "SKIPPED: script is not installed (Debian: bsdutils)");
        return None;
    };
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{line}: {shown}");
    Some(shown)
}

#[test]
fn whoever_looks_at_a_terminal_sees_a_check_go_on() {
    let directory = directory();
    let text: Vec<u8> = (0..20_000).flat_map(|number| format!("key {number}\tvalue\n").into_bytes()).collect();
    expect(directory.path(), &["load", "-"], &text, 0);
    let Some(shown) = at_terminal(directory.path(), "check") else { return };
    assert!(shown.contains(" entries, ") && shown.contains("everleaf.pool is sound"), "{shown:?}");
}

/// The server is a mock that gives the replies for this test.
#[test]
fn whoever_looks_at_a_terminal_sees_a_compaction_go_on() {
    let (listener, address) = listener();
    let server = std::thread::spawn(move || {
        let info = |text: &str| format!("${}\r\neverleaf_version:0\r\n{text}\r\n", text.len() + 20);
        let idle = info("");
        let under_way = info("compaction_in_progress:1\r\nlast_compaction_moved:12345\r\nlast_compaction_given_back:65536\r\n");
        let failed = info("compaction_in_progress:0\r\nlast_compaction_status:err\r\nlast_compaction_error:the moon is full\r\n");
        let done = info("compaction_in_progress:0\r\nlast_compaction_status:ok\r\nlast_compaction_is_complete:1\r\n");
        for last in [done, failed] {
            let (mut stream, _) = listener.accept().expect("a client");
            for reply in [&idle, "+OK\r\n", &under_way, &last] {
                let _ = std::io::Read::read(&mut stream, &mut [0; 1000]).expect("a command");
                stream.write_all(reply.as_bytes()).expect("it listens");
            }
        }
    });
    let directory = directory();
    let Some(shown) = at_terminal(directory.path(), &format!("compact --online --server {address}")) else { return };
    assert!(shown.contains("12 345 records and leaves moved, 64 KiB given back") && shown.contains("compacted from"), "{shown:?}");
    let output = everleaf(directory.path(), &["compact", "--online", "--server", &address.to_string()], b"");
    assert!(String::from_utf8_lossy(&output.stderr).contains("its pool: the moon is full; "), "{output:?}");
    server.join().expect("it has said everything");
}

/// Regression: the message was that the server does not say why it has not compacted its pool.
#[test]
fn another_server_is_not_taken_for_one_of_ours() {
    let (listener, address) = listener();
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = [0; 100];
            let size = std::io::Read::read(&mut stream, &mut request).expect("a command");
            assert_eq!(request[..size], *b"*1\r\n$4\r\nINFO\r\n");
            stream.write_all(b"$22\r\nredis_version:7.0.15\r\n\r\n").expect("it listens");
            assert_eq!(std::io::Read::read(&mut stream, &mut request).expect("its end"), 0, "nothing else is asked of it");
        }
    });
    let directory = directory();
    for arguments in [&["compact", "--online"][..], &["stats", "--watch", "--count", "1"]] {
        let output = everleaf(directory.path(), &[arguments, &["--server", &address.to_string()]].concat(), b"");
        assert_eq!(output.status.code(), Some(4));
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains(&format!("ask {address}: this is no Everleaf server")), "{message}");
    }
    server.join().expect("it was asked twice");
}

/// Whatever makes a command fail, the pool is closed: a large one that is not takes long at the next start.
#[test]
fn a_command_that_fails_closes_the_pool() {
    let directory = directory();
    let path = directory.path();
    let (_listener, address) = listener();
    let port = address.port().to_string();
    expect(path, &["put", &"k".repeat(65_537), ""], b"", 3);
    expect(path, &["serve", "--port", &port], b"", 4);
    let info: serde_json::Value = serde_json::from_slice(&expect(path, &["info", "--json"], b"", 0)).expect("JSON");
    assert_eq!(info["state"], "closed");
}

/// Regression: an empty pool was left behind.
#[test]
fn what_cannot_be_done_makes_no_pool() {
    let directory = directory();
    let path = directory.path();
    let (_listener, address) = listener();
    let port = address.port().to_string();
    // Regression: with this value every client was dropped silently.
    for option in ["--query-buffer-size-max", "--output-buffer-size-max"] {
        for size in ["0", "65535"] {
            expect(path, &["serve", "--port", "0", option, size], b"", 2);
        }
    }
    for arguments in [&["serve", "--port", &port][..], &["load", "."], &["load", ".", "--format", "ndjson"], &["import", "."], &["restore", "."]] {
        expect(path, arguments, b"", 4);
    }
    assert_eq!(std::fs::read_dir(path).expect("it is there").count(), 0);
}

/// Regression: an export into a pipe whose reader had died succeeded, and so did a check that could not print its findings.
#[test]
fn only_what_does_nothing_but_print_may_lose_its_reader() {
    let directory = directory();
    let unread = |arguments: &[&str]| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_everleaf"));
        let output =
            command.args(arguments).current_dir(directory.path()).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    expect(directory.path(), &["put", "key", "value"], b"", 0);
    for arguments in [&["get", "key"][..], &["scan"], &["dump"], &["stats"], &["info"], &["completion", "bash"]] {
        assert_eq!(unread(arguments), (Some(0), String::new()), "{arguments:?}");
    }
    for arguments in [&["check"][..], &["export", "-"], &["load", "/dev/null"], &["del", "key"], &["serve", "--port", "0"]] {
        let (code, message) = unread(arguments);
        assert!(code == Some(4) && message.contains("Broken pipe"), "{arguments:?}: {code:?}, {message}");
    }
    // Whatever happened to the output, the pool is closed.
    let info: serde_json::Value = serde_json::from_slice(&expect(directory.path(), &["info", "--json"], b"", 0)).expect("JSON");
    assert_eq!(info["state"], "closed");
}

/// Regression: the command panicked instead of reporting the error.
#[test]
fn nobody_who_reads_errors_is_no_error() {
    let directory = directory();
    let unread = |arguments: &[&str]| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_everleaf"));
        command.args(arguments).current_dir(directory.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer).status().expect("it runs").code()
    };
    assert_eq!(unread(&["get", "key"]), Some(3));
    std::fs::write(directory.path().join("bad"), "a\t1\nbad\n").expect("a file");
    assert_eq!(unread(&["load", "bad"]), Some(1));
    assert_eq!(unread(&["load", "bad", "--strict"]), Some(1));
}

#[test]
fn scans_go_both_ways_and_stop() {
    let directory = directory();
    let path = directory.path();
    expect(path, &["load", "-", "--format", "csv"], b"a,1\nab,2\nb,3\nc,4\n", 0);
    let scan = |arguments: &[&str]| String::from_utf8(expect(path, &[&["scan"], arguments].concat(), b"", 0)).expect("UTF-8");
    assert_eq!(scan(&[]), "a\t1\nab\t2\nb\t3\nc\t4\n");
    assert_eq!(scan(&["--from", "ab", "--to", "b"]), "ab\t2\nb\t3\n");
    assert_eq!(scan(&["--reverse", "--from", "ab", "--to", "bb", "--keys-only"]), "b\nab\n");
    assert_eq!(scan(&["--prefix", "a", "--reverse"]), "ab\t2\na\t1\n");
    assert_eq!(scan(&["--limit", "1", "--json"]), "{\"key\":\"a\",\"value\":\"1\"}\n");
}

/// Regression: a mistyped name looked like a namespace without keys.
#[test]
fn a_namespace_that_there_is_none_of_is_not_an_empty_one() {
    let directory = directory();
    let path = directory.path();
    expect(path, &["create"], b"", 0);
    assert_eq!(expect(path, &["scan"], b"", 0), b"");
    assert_eq!(expect(path, &["dump"], b"", 0), b"");
    expect(path, &["put", "--namespace", "other", "k", "v"], b"", 0);
    for command in [&["scan"][..], &["dump"], &["export", "-"]] {
        let output = everleaf(path, &[command, &["--namespace", "typo"]].concat(), b"");
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "everleaf: there is no namespace \"typo\"; there are: other\n");
    }
}

#[test]
fn what_is_dumped_can_be_loaded() {
    let directory = directory();
    let path = directory.path();
    expect(path, &["put", "binary", "-"], b"\xfe\0", 0);
    expect(path, &["put", "--namespace", "other", "k\u{fc}rbis", "\"\\\n"], b"", 0);
    let dump = expect(path, &["dump"], b"", 0);
    assert_eq!(dump.iter().filter(|&&byte| byte == b'\n').count(), 2);
    expect(path, &["load", "-", "--format", "ndjson", "--pool", "copy.pool"], &dump, 0);
    assert_eq!(expect(path, &["dump", "--pool", "copy.pool"], b"", 0), dump);
    // Into another pool, if the options say so.
    expect(path, &["load", "-", "--format", "ndjson", "--namespace", "all", "--pool", "all.pool"], &dump, 0);
    let all = String::from_utf8(expect(path, &["dump", "--pool", "all.pool"], b"", 0)).expect("UTF-8");
    assert!(all.lines().count() == 2 && all.lines().all(|line| line.contains("\"namespace\":\"all\"")), "{all}");
}

/// Regression: the expiry was lost, and the keys became permanent.
#[test]
fn what_is_dumped_and_loaded_expires_as_before() {
    const FAR: u64 = 32_503_680_000_000;
    let directory = directory();
    let path = directory.path();
    let text = format!("{{\"expires_ms\":{FAR},\"key\":\"k\",\"namespace\":\"0\",\"value\":\"v\"}}\n");
    let lasting = "{\"key\":\"l\",\"namespace\":\"0\",\"value\":\"v\"}\n";
    expect(path, &["load", "-", "--format", "ndjson"], format!("{text}{lasting}").as_bytes(), 0);
    let dump = expect(path, &["dump"], b"", 0);
    assert_eq!(String::from_utf8_lossy(&dump), format!("{text}{lasting}"));
    expect(path, &["load", "-", "--format", "ndjson", "--pool", "copy.pool"], &dump, 0);
    assert_eq!(expect(path, &["dump", "--pool", "copy.pool"], b"", 0), dump);
    let told = format!("{{\"expires_ms\":{FAR},\"key\":\"k\",\"value\":\"v\"}}\n");
    assert_eq!(expect(path, &["get", "--json", "k"], b"", 0), told.as_bytes());
    assert_eq!(expect(path, &["scan", "--json", "--limit", "1"], b"", 0), told.as_bytes());
    // Nothing remains of expired entries, as if they had been loaded in time.
    let late = "{\"expires_ms\":1,\"key\":\"k\",\"value\":\"w\"}\n{\"expires_ms\":1,\"key\":\"m\",\"value\":\"w\"}\n";
    let said = String::from_utf8(expect(path, &["load", "-", "--format", "ndjson"], late.as_bytes(), 0)).expect("UTF-8");
    assert!(said.starts_with("loaded 2 lines in ") && said.ends_with(", 2 of them have expired\n"), "{said}");
    assert_eq!(String::from_utf8_lossy(&expect(path, &["dump"], b"", 0)), lasting);
}

/// Regression: an expiry in a field of another name was silently ignored.
#[test]
fn a_line_with_a_field_that_nobody_knows_is_a_bad_line() {
    let directory = directory();
    let text = concat!(
        "{\"key\":\"a\",\"value\":\"v\"}\n",
        "{\"key\":\"b\",\"value\":\"v\",\"ttl\":10}\n",
        "{\"key\":\"c\",\"value\":\"v\",\"value_base64\":\"dg==\"}\n",
        "{\"key\":\"d\",\"key_base64\":\"ZA==\",\"value\":\"v\"}\n",
        "{\"key\":\"e\",\"value\":\"v\",\"expires_ms\":\"tomorrow\"}\n",
    );
    let output = everleaf(directory.path(), &["load", "-", "--format", "ndjson"], text.as_bytes());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    for line in ["-:2: unknown field \"ttl\"", "-:3: both \"value\" and \"value_base64\"", "-:4: both \"key\" and \"key_base64\"", "-:5: field \"expires_ms\""]
    {
        assert!(errors.contains(line), "{line} is not in {errors}");
    }
    assert_eq!(expect(directory.path(), &["scan", "--keys-only"], b"", 0), b"a\n");
}

#[test]
fn a_pool_is_backed_up_exported_and_compacted() {
    let directory = directory();
    let path = directory.path();
    load(path, 20_000, |number| format!("value {number}"));
    expect(path, &["put", "--namespace", "other", "--index", "lb", "k", "v"], b"", 0);
    let dump = expect(path, &["dump"], b"", 0);
    let said = |bytes: Vec<u8>| serde_json::from_slice::<serde_json::Value>(&bytes).expect("JSON");
    let backup = said(expect(path, &["backup", "--json", "file"], b"", 0));
    assert_eq!((backup["entries"].as_u64(), backup["namespaces"].as_u64()), (Some(20_001), Some(2)));
    expect(path, &["restore", "file", "--pool", "restored.pool"], b"", 0);
    expect(path, &["restore", "file", "--pool", "restored.pool"], b"", 4);
    let message = String::from_utf8_lossy(&everleaf(path, &["restore", "file", "--pool", "restored.pool"], b"").stderr).into_owned();
    assert!(message.starts_with("everleaf: restored.pool is there already") && message.contains("choose another path"), "{message}");
    assert!(expect(path, &["dump", "--pool", "restored.pool"], b"", 0) == dump);
    let report = said(expect(path, &["verify", "--json", "--pool", "restored.pool"], b"", 0));
    assert_eq!((&report["sound"], &report["namespaces"][1]["index"]), (&true.into(), &"lb".into()));
    // Through pipes.
    let stream = expect(path, &["backup", "-"], b"", 0);
    expect(path, &["restore", "-", "--pool", "piped.pool"], &stream, 0);
    assert!(expect(path, &["dump", "--pool", "piped.pool"], b"", 0) == dump);
    // A single namespace.
    let stream = expect(path, &["export", "-", "--namespace", "other"], b"", 0);
    expect(path, &["export", "-", "--namespace", "absent"], b"", 2);
    expect(path, &["import", "-", "--pool", "imported.pool"], &stream, 0);
    let other = expect(path, &["dump", "--pool", "imported.pool"], b"", 0);
    assert_eq!(said(other.clone()), serde_json::json!({ "namespace": "other", "key": "k", "value": "v" }));
    // A damaged file changes nothing; a damaged pipe yields only what came before the damage.
    let mut damaged = std::fs::read(path.join("file")).expect("the backup");
    *damaged.last_mut().expect("a byte") ^= 1;
    std::fs::write(path.join("damaged"), &damaged).expect("a file");
    let output = everleaf(path, &["import", "damaged", "--pool", "imported.pool"], b"");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(4) && message.contains("damaged: the stream is damaged at byte"), "{message}");
    assert!(expect(path, &["dump", "--pool", "imported.pool"], b"", 0) == other);
    expect(path, &["import", "-", "--pool", "imported.pool"], &damaged, 4);
    assert!(expect(path, &["dump", "--pool", "imported.pool"], b"", 0) == dump);
    expect(path, &["restore", "damaged", "--pool", "absent.pool"], b"", 4);
    expect(path, &["import", "absent"], b"", 4);
    expect(path, &["backup", "no/such/directory/file"], b"", 4);
    expect(path, &["backup", "--pool", "absent.pool", "file"], b"", 3);
    // Most keys are deleted, and the pool gets smaller.
    let names: Vec<String> = (0..19_000).map(|number| format!("key {number}")).collect();
    expect(path, &[&["del"], names.iter().map(String::as_str).collect::<Vec<_>>().as_slice()].concat(), b"", 0);
    expect(path, &["put", "large", "-"], &vec![b'v'; 40 << 20], 0);
    expect(path, &["del", "large"], b"", 0);
    let dump = expect(path, &["dump"], b"", 0);
    std::fs::set_permissions(path.join("everleaf.pool"), std::os::unix::fs::PermissionsExt::from_mode(0o640)).expect("it is ours");
    let compacted = said(expect(path, &["compact", "--json"], b"", 0));
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(path.join("everleaf.pool")).expect("the pool"));
    assert_eq!(mode & 0o777, 0o640);
    assert!(compacted["size"].as_u64() < compacted["size_before"].as_u64(), "{compacted}");
    assert_eq!(std::fs::metadata(path.join("everleaf.pool")).expect("the pool").len(), compacted["size"].as_u64().expect("a number"));
    assert!(expect(path, &["dump"], b"", 0) == dump);
    expect(path, &["check"], b"", 0);
    let mut names: Vec<_> = std::fs::read_dir(path).expect("it is there").map(|entry| entry.expect("a file").file_name()).collect();
    names.sort();
    assert_eq!(names, ["damaged", "everleaf.pool", "file", "imported.pool", "piped.pool", "restored.pool"]);
}

/// Regression: such a pool was refused, and nothing was recovered.
#[test]
fn a_pool_that_is_cut_off_is_repaired() {
    let directory = directory();
    let path = directory.path();
    load(path, 3000, |number| format!("value {number}"));
    let pool = std::fs::File::options().write(true).open(path.join("everleaf.pool")).expect("the pool");
    pool.set_len(1_000_000).expect("it is ours");
    expect(path, &["check"], b"", 3);
    let said = String::from_utf8(expect(path, &["repair", "repaired.pool"], b"", 1)).expect("UTF-8");
    assert!(said.contains("namespace 0: 3 000 entries") && said.contains("LOST: whatever lay behind byte 1000000 is lost"), "{said}");
    // Of a header alone little can be found, and of less nothing.
    pool.set_len(4096).expect("it is ours");
    let said = String::from_utf8(expect(path, &["repair", "rest.pool"], b"", 1)).expect("UTF-8");
    assert!(said.contains("a store block without a format: batches that were under way may show in part"), "{said}");
    pool.set_len(100).expect("it is ours");
    for command in [&["check"][..], &["repair", "again.pool"]] {
        let output = everleaf(path, command, b"");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains("of 100 bytes, is a pool that cannot be read, nor repaired: it ends in its header; restore"), "{message}");
        assert_eq!(output.status.code(), Some(3));
    }
    assert!(!path.join("again.pool").exists());
}

#[test]
fn a_check_of_a_pool_that_cannot_be_opened_finds_damage() {
    let directory = directory();
    let path = directory.path();
    load(path, 3000, |number| format!("value {number}"));
    let mut bytes = std::fs::read(path.join("everleaf.pool")).expect("the pool");
    bytes[2048..4096].fill(0xa5);
    std::fs::write(path.join("everleaf.pool"), bytes).expect("it is ours");
    let said = String::from_utf8(expect(path, &["check"], b"", 1)).expect("UTF-8");
    assert!(said.starts_with("DAMAGED: ") && said.contains("cannot be opened") && !said.contains("everleaf check"), "{said}");
    let said = String::from_utf8(expect(path, &["check", "--json"], b"", 1)).expect("UTF-8");
    assert!(said.contains("\"sound\":false"), "{said}");
}

/// After a bit flip in a closed pool, `verify` names the damage, and `repair` makes a pool of the rest.
#[test]
fn a_damaged_pool_is_repaired() {
    let directory = directory();
    let path = directory.path();
    load(path, 2000, |number| format!("value-{number}-"));
    let mut bytes = std::fs::read(path.join("everleaf.pool")).expect("the pool");
    let at = bytes.windows(11).position(|window| window == b"value-1234-").expect("the value lies in the pool");
    bytes[at] ^= 1;
    std::fs::write(path.join("everleaf.pool"), &bytes).expect("a file");
    let report = String::from_utf8(expect(path, &["verify"], b"", 1)).expect("UTF-8");
    assert!(report.contains("DAMAGED: namespace 0: ") && report.contains("checksum"), "{report}");
    let said = String::from_utf8(expect(path, &["repair", "repaired.pool"], b"", 1)).expect("UTF-8");
    assert!(said.contains("namespace 0: 1 999 entries") && said.contains("LOST: namespace 0: key \"key 1234\": a record that does not match"), "{said}");
    expect(path, &["verify", "--pool", "repaired.pool"], b"", 0);
    assert_eq!(expect(path, &["get", "--pool", "repaired.pool", "key 1233"], b"", 0), b"value-1233-");
    expect(path, &["get", "--pool", "repaired.pool", "key 1234"], b"", 1);
    expect(path, &["repair", "repaired.pool"], b"", 4);
    expect(path, &["repair", "again.pool", "--pool", "repaired.pool"], b"", 0);
}

/// Regression: only sixteen were named, and not by their keys.
#[test]
fn every_damage_is_named() {
    let directory = directory();
    let path = directory.path();
    load(path, 200, |number| format!("value-{number:03}-"));
    let mut bytes = std::fs::read(path.join("everleaf.pool")).expect("the pool");
    for number in 0..100 {
        let value = format!("value-{number:03}-");
        let at = bytes.windows(value.len()).position(|window| window == value.as_bytes()).expect("the value lies in the pool");
        bytes[at] ^= 1;
    }
    std::fs::write(path.join("everleaf.pool"), &bytes).expect("a file");
    let said = |arguments: &[&str]| String::from_utf8(expect(path, arguments, b"", 1)).expect("UTF-8");
    let report = said(&["verify"]);
    assert!(report.contains("DAMAGED: namespace 0: key \"key 1\": ") && report.contains("DAMAGED: and 36 more"), "{report}");
    let repaired = said(&["repair", "repaired.pool"]);
    assert!(repaired.contains("LOST: and 36 more") && repaired.contains("100 losses"), "{repaired}");
    for (arguments, field) in [(&["verify", "--json"][..], "damages"), (&["repair", "again.pool", "--json"], "losses")] {
        let said: serde_json::Value = serde_json::from_str(&said(arguments)).expect("JSON");
        let named = |number| {
            said[field].as_array().expect("a list").iter().any(|it| it["what"].as_str().is_some_and(|what| what.contains(&format!("\"key {number}\""))))
        };
        assert!(said[field].as_array().map(Vec::len) == Some(100) && (0..100).all(named), "{said}");
    }
}

#[test]
fn bad_lines_are_reported_by_number() {
    let directory = directory();
    let path = directory.path();
    let text = b"a\t1\nbad\nb\t2\nworse\t\t\nc\t3\n";
    let output = everleaf(path, &["load", "-"], text);
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(errors, "-:2: 1 fields, 2 expected\n-:4: 3 fields, 2 expected\n");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("loaded 3 lines in "));
    expect(path, &["load", "-", "--strict", "--pool", "strict.pool"], text, 1);
    assert_eq!(expect(path, &["scan", "--pool", "strict.pool"], b"", 0), b"a\t1\n");
    // If there are many, only the first are shown, but all are counted.
    let output = everleaf(path, &["load", "-", "--json"], &b"a\t1\n".iter().copied().chain(*b"bad\n").cycle().take(8 * 100).collect::<Vec<_>>());
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((said["loaded"].as_u64(), said["bad"].as_u64()), (Some(100), Some(100)));
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 21);
}

/// Regression: one such line ended the load, and was not named.
#[test]
fn a_line_with_a_namespace_that_cannot_be_is_a_bad_line() {
    let directory = directory();
    let line = |name: &str, key: &str| format!("{{\"key\":\"{key}\",\"namespace\":\"{name}\",\"value\":\"v\"}}\n");
    let text = [line("a", "1"), line("", "2"), line(&"n".repeat(1000), "3"), line("b", "4")].concat();
    let output = everleaf(directory.path(), &["load", "-", "--format", "ndjson"], text.as_bytes());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.starts_with("-:2: \"\" cannot name a namespace") && errors.contains("\n-:3: ") && errors.lines().count() == 2, "{errors}");
    assert_eq!(expect(directory.path(), &["dump"], b"", 0), [line("a", "1"), line("b", "4")].concat().as_bytes());
}

#[test]
fn a_load_that_fails_says_how_much_is_loaded() {
    let directory = directory();
    let mut text = Vec::new();
    for number in 0..200_000 {
        writeln!(text, "key {number}\t{number:0100}").expect("a vector takes everything");
    }
    let output = everleaf(directory.path(), &["load", "-", "--size-max", "4M"], &text);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.starts_with("-: at least ") && errors.contains("\neverleaf: no space: "), "{errors}");
    let loaded: usize = errors.split("at least ").nth(1).and_then(|rest| rest.split(" of ").next()).unwrap().replace(' ', "").parse().expect("a number");
    let found = expect(directory.path(), &["scan", "--keys-only"], b"", 0).split(|byte| *byte == b'\n').count() - 1;
    assert!(loaded > 0 && (loaded..=loaded + 4 * 512).contains(&found), "{loaded} of {found}");
}

/// Regression: these names caused a panic, after the pool was made.
#[test]
fn pools_may_have_names_that_are_no_text() {
    let directory = directory();
    let name = std::os::unix::ffi::OsStringExt::from_vec(b"\xff.pool".to_vec());
    let run = |command: &str| {
        let mut process = Command::new(env!("CARGO_BIN_EXE_everleaf"));
        let output = process.args([command, "--json", "--pool"]).arg::<&std::ffi::OsString>(&name).current_dir(directory.path()).output().expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON")
    };
    assert_eq!(run("create")["pool_base64"], "/y5wb29s");
    assert_eq!(run("info")["pool_base64"], "/y5wb29s");
}

#[test]
fn of_two_lines_with_a_key_the_later_one_wins() {
    let directory = directory();
    let mut text = Vec::new();
    for number in 0..20_000 {
        writeln!(text, "key {}\t{number}", number % 100).expect("a vector takes everything");
    }
    expect(directory.path(), &["load", "-", "--threads", "4"], &text, 0);
    assert_eq!(expect(directory.path(), &["get", "key 42"], b"", 0), b"19942");
}

#[test]
fn a_pool_in_use_can_be_looked_at_but_not_opened() {
    let directory = directory();
    let path = directory.path();
    let (mut server, said) = serve(path, &["--port", "0"]);
    let info = String::from_utf8(expect(path, &["info"], b"", 0)).expect("UTF-8");
    assert!(info.contains(&format!("in use by process {}", server.id())), "{info}");
    let watched = expect(path, &["stats", "--watch", "--server", said["address"].as_str().expect("an address"), "--count", "2", "--interval", "0.01"], b"", 0);
    let watched = String::from_utf8(watched).expect("UTF-8");
    assert!(watched.lines().count() == 3 && watched.starts_with("  clients  commands/s "), "{watched}");
    let address = said["address"].as_str().expect("an address");
    let compacted: serde_json::Value = serde_json::from_slice(&expect(path, &["compact", "--online", "--server", address, "--json"], b"", 0)).expect("JSON");
    assert!(compacted["is_complete"] == true && compacted["size"].as_u64() <= compacted["size_before"].as_u64(), "{compacted}");
    expect(path, &["compact", "--server", address], b"", 2);
    let output = everleaf(path, &["get", "key"], b"");
    assert_eq!(output.status.code(), Some(3));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains(&format!("in use by process {}", server.id())), "{message}");
    server.kill().expect("it runs");
    server.wait().expect("it ends");
}

/// A pool that nobody has closed stays so, and may be read by several at once.
#[test]
fn commands_that_read_a_pool_leave_it_as_it_was() {
    let directory = directory();
    let path = directory.path();
    load(path, 20_000, |number| format!("{number:0100}"));
    let (mut server, _) = serve(path, &["--port", "0"]);
    server.kill().expect("it runs");
    server.wait().expect("it ends");
    let pool = path.join("everleaf.pool");
    let before = std::fs::read(&pool).expect("the pool");
    let mut reader = Command::new(env!("CARGO_BIN_EXE_everleaf"));
    let mut reader = reader.arg("scan").current_dir(path).stdout(Stdio::piped()).spawn().expect("the binary runs");
    // It waits until its output is read.
    reader.stdout.as_mut().expect("its output is piped").read_exact(&mut [0]).expect("it prints");
    assert_eq!(expect(path, &["get", "key 7"], b"", 0), format!("{:0100}", 7).into_bytes());
    let dumped = expect(path, &["dump"], b"", 0);
    assert_eq!(dumped.iter().filter(|byte| **byte == b'\n').count(), 20_000);
    for command in [&["check"][..], &["stats"], &["scan", "--keys-only"], &["backup", "-"], &["export", "-"]] {
        assert!(!expect(path, command, b"", 0).is_empty());
    }
    let output = everleaf(path, &["put", "key", "value"], b"");
    assert!(output.status.code() == Some(3) && String::from_utf8_lossy(&output.stderr).contains("in use"), "{output:?}");
    reader.kill().expect("it waits");
    reader.wait().expect("it ends");
    assert!(std::fs::read(&pool).expect("the pool") == before);
    assert!(String::from_utf8_lossy(&expect(path, &["info"], b"", 0)).contains("left unclosed"));
    expect(path, &["put", "key", "value"], b"", 0);
    assert!(String::from_utf8_lossy(&expect(path, &["info"], b"", 0)).contains("closed"));
}

#[test]
fn a_server_is_found_by_its_name_and_says_that_it_wants_a_password() {
    let directory = directory();
    let path = directory.path();
    std::fs::write(path.join("password"), "secret\n").expect("a file");
    let (mut server, said) = serve(path, &["--port", "0", "--password-file", "password"]);
    let watch = ["stats", "--watch", "--count", "1", "--server", &format!("localhost:{}", said["port"])];
    let output = everleaf(path, &watch, b"");
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&output.stderr).contains("name the file that holds it by --password-file"), "{output:?}");
    expect(path, &[&watch[..], &["--password-file", "password"]].concat(), b"", 0);
    server.kill().expect("it runs");
    server.wait().expect("it ends");
}

#[test]
fn a_server_listens_where_it_is_told_to_and_nowhere_else() {
    let directory = directory();
    let path = directory.path();
    let start = || serve(path, &["--unix-socket", "redis.sock", "--unix-socket-mode", "770"]);
    let (mut server, said) = start();
    assert_eq!((&said["port"], &said["tls_port"], &said["unix_socket"]), (&serde_json::Value::Null, &serde_json::Value::Null, &"redis.sock".into()));
    let watch = ["stats", "--watch", "--count", "1", "--server", "./redis.sock"];
    expect(path, &watch, b"", 0);
    // Another pool, the same socket: no pool is made.
    let output = everleaf(path, &["serve", "--pool", "other.pool", "--unix-socket", "redis.sock"], b"");
    assert!(output.status.code() == Some(4) && String::from_utf8_lossy(&output.stderr).contains("a server listens there"), "{output:?}");
    server.kill().expect("it runs");
    server.wait().expect("it ends");
    assert!(path.join("redis.sock").exists());
    expect(path, &watch, b"", 4);
    let (mut server, _) = start();
    expect(path, &watch, b"", 0);
    kill(&server, "-TERM");
    assert!(server.wait().expect("it ends").success() && !path.join("redis.sock").exists());

    std::fs::write(path.join("cert.pem"), "").expect("a file");
    let tls = ["serve", "--pool", "other.pool", "--tls-port", "0"];
    for (arguments, code, why) in [
        (&["--tls-cert", "cert.pem", "--tls-key", "key.pem"][..], 4, "cert.pem holds no certificate"),
        (&["--tls-cert", "absent.pem", "--tls-key", "key.pem"], 4, "absent.pem cannot be read"),
        (&["--tls-cert", "cert.pem"], 2, "--tls-key"),
        (&["--unix-socket-mode", "8"], 2, "in octal"),
        (&[], 2, "--tls-cert"),
    ] {
        let output = everleaf(path, &[&tls[..], arguments].concat(), b"");
        assert!(output.status.code() == Some(code) && String::from_utf8_lossy(&output.stderr).contains(why), "{output:?}");
    }
    let output = everleaf(path, &["serve", "--pool", "other.pool", "--tls-cert", "cert.pem", "--tls-key", "key.pem"], b"");
    assert!(output.status.code() == Some(2) && String::from_utf8_lossy(&output.stderr).contains("add --tls-port"), "{output:?}");
    assert!(!path.join("other.pool").exists());
}

/// By default, a shell allows its programs a thousand open files; a server that kept this limit could not accept the promised number of connections.
#[test]
fn a_server_opens_as_many_files_as_it_may() {
    let directory = directory();
    let shell = |script: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", script, env!("CARGO_BIN_EXE_everleaf")]).current_dir(directory.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let serve = |limit: &str, connections: usize| {
        let mut server = shell(&format!("ulimit {limit}; exec $0 serve --json --port 0 --threads 2")).spawn().expect("it starts");
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(server.stdout.take().expect("its output is piped")), &mut line)
            .expect("it says where it listens");
        let said: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        let mut clients = Vec::new();
        for _ in 0..connections {
            let mut client = std::net::TcpStream::connect(said["address"].as_str().expect("an address")).expect("it listens");
            client.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a limit of time");
            client.write_all(b"CONFIG GET maxclients\r\n").expect("it listens");
            clients.push(client);
        }
        let mut told = String::new();
        for client in &mut clients {
            let mut reply = [0; 100];
            let size = std::io::Read::read(client, &mut reply).expect("a reply");
            told = String::from_utf8_lossy(&reply[..size]).into_owned();
            assert!(told.starts_with("*2\r\n$10\r\nmaxclients\r\n"), "{told:?}");
        }
        if limit == "-n 100" {
            let client = &mut clients[0];
            client.write_all(b"CONFIG SET maxclients 65\r\n").expect("it listens");
            let mut reply = [0; 300];
            let size = std::io::Read::read(client, &mut reply).expect("a reply");
            assert!(reply[..size].ends_with(b"try with 64\r\n"), "{:?}", String::from_utf8_lossy(&reply[..size]));
        }
        drop(clients);
        let ended = Command::new("kill").args(["-TERM", &server.id().to_string()]).status().expect("kill");
        assert!(ended.success());
        let output = server.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{output:?}");
        let count: usize = told.lines().last().expect("a line").parse().expect("a number");
        (count, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (count, message) = serve("-n 100", 64);
    assert_eq!(count, 64);
    assert!(message.contains("no more than 64 of the 10000 connections at a time: the system lets this process open 100 files"), "{message}");
    let most = String::from_utf8(shell("ulimit -Hn").output().expect("bash runs").stdout).expect("UTF-8");
    let possible = most.trim().parse::<usize>().map_or(10_000, |most| most.saturating_sub(36).min(10_000));
    assert_eq!(serve("-Sn 64", 200.min(possible)).0, possible);
}

/// The lines of a result file.
fn lines(text: &[u8]) -> Vec<serde_json::Value> {
    text.split_inclusive(|byte| *byte == b'\n').map(|line| serde_json::from_slice(line).expect("JSON")).collect()
}

fn count(lines: &[serde_json::Value], kind: &str) -> usize {
    lines.iter().filter(|line| line["line"] == kind).count()
}

/// The lab's own tests cover the measurements; this tests that the command reports, stores and repeats them.
#[test]
fn the_lab_measures_and_measures_again() {
    let directory = directory();
    let path = directory.path();
    let run =
        ["lab", "run", "--systems", "isle,store", "--workload", "insert", "--keys", "1000", "--threads", "1,2", "--rounds", "2", "--output", "results.jsonl"];
    let table = String::from_utf8(expect(path, &run, b"", 0)).expect("UTF-8");
    assert!(table.contains("store") && table.contains("2 threads"), "{table}");
    let first = lines(&std::fs::read(path.join("results.jsonl")).expect("it was written"));
    assert!(first[0]["line"] == "header" && count(&first, "measurement") == 2 * 2 * 2 && first[first.len() - 1]["complete"] == true, "{first:?}");
    let again = lines(&expect(path, &["lab", "rerun", "results.jsonl", "--json"], b"", 0));
    assert!(again[0]["plan"] == first[0]["plan"] && count(&again, "measurement") == 8);
    expect(path, &run, b"", 4);
    expect(path, &["lab", "run", "--systems", "pear"], b"", 2);
    expect(path, &["lab", "run", "--workload", "pear"], b"", 2);
    // What makes no sense is found before there is a file.
    for wrong in [["--value-bytes", "0"], ["--baseline", "lb"]] {
        expect(path, &[&["lab", "run", "--systems", "isle", "--output", "none.jsonl"][..], &wrong].concat(), b"", 2);
    }
    assert!(!path.join("none.jsonl").exists());
    expect(path, &["lab", "rerun", "missing.jsonl"], b"", 4);
    std::fs::write(path.join("other.jsonl"), "{}\n").expect("a file");
    expect(path, &["lab", "rerun", "other.jsonl"], b"", 4);
    let listed = String::from_utf8(expect(path, &["lab", "list"], b"", 0)).expect("UTF-8");
    assert!(["isle", "ycsb-a", "status-update", "readseq", "A3"].iter().all(|name| listed.contains(name)), "{listed}");
    expect(path, &["lab", "rerun", "results.jsonl", "--report", "everything"], b"", 0);
    assert!(["results.jsonl", "report.html", "figures/run.svg"].iter().all(|name| path.join("everything").join(name).is_file()));
    expect(path, &["lab", "rerun", "results.jsonl", "--report", "everything"], b"", 4);
    let claims = lines(&expect(path, &["lab", "reproduce", "sentinels", "--scale", "tiny", "--json"], b"", 0));
    let counted = lines(&expect(path, &["lab", "reproduce", "nv", "--claims", "D22,D23", "--scale", "tiny", "--rounds", "1", "--json"], b"", 0));
    assert!(count(&counted, "claim") == 2 && counted.iter().all(|line| line["line"] != "measurement" || line["experiment"] == "nv-counts"));
    expect(path, &["lab", "reproduce", "nv", "--claims", "A1"], b"", 2);
    assert!(count(&claims, "claim") == 6 && claims.iter().all(|line| line["line"] != "claim" || !line["why"].as_str().unwrap_or_default().is_empty()));
}

/// Memory and instructions are measured in processes that the lab starts.
#[test]
fn the_lab_measures_in_processes_of_its_own() {
    let directory = directory();
    let space = ["lab", "run", "--systems", "isle,volatile", "--workload", "load", "--keys", "200000", "--measure", "space", "--json"];
    let found = lines(&expect(directory.path(), &space, b"", 0));
    assert_eq!(count(&found, "measurement"), 2);
    assert!(found.iter().filter(|line| line["line"] == "measurement").all(|line| line["metrics"]["dram"]["value"].as_f64() > Some(0.0)), "{found:?}");
    let instructions = ["lab", "run", "--systems", "isle", "--workload", "search", "--keys", "1000", "--instructions", "--json"];
    let output = everleaf(directory.path(), &instructions, b"");
    if std::process::Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success()) {
        let found = lines(&output.stdout);
        let counted = found.iter().find(|line| line["line"] == "measurement").expect("a measurement");
        let of = |name: &str| counted["metrics"][name]["value"].as_f64();
        assert!(of("instructions") > Some(50.0) && of("data reads") > Some(5.0) && of("data reads") < of("instructions"), "{counted}");
    } else {
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(4) && message.contains("valgrind"), "{message}");
    }
}

/// Ctrl-C ends a run with far too much work after the first figures; the results so far are a valid file, and can be drawn.
#[test]
fn a_lab_that_is_interrupted_leaves_a_good_file() {
    let directory = directory();
    let arguments = ["lab", "run", "--systems", "isle", "--workload", "insert", "--keys", "2000", "--rounds", "1000000", "--output", "results.jsonl"];
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_everleaf"))
        .args(arguments)
        .current_dir(directory.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the program");
    let read = || std::fs::read(directory.path().join("results.jsonl")).unwrap_or_default();
    while String::from_utf8_lossy(&read()).matches(r#""line":"measurement""#).count() < 2 {
        assert!(child.try_wait().expect("its state").is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    let sent = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
    assert!(sent.success());
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.code() == Some(130) && String::from_utf8_lossy(&output.stdout).contains("stopped"), "{output:?}");
    let found = lines(&read());
    assert!(count(&found, "measurement") >= 2 && found[found.len() - 1]["complete"] == false, "{:?}", found.last());
    expect(directory.path(), &["lab", "report", "results.jsonl", "--out", "report"], b"", 0);
    assert!(std::fs::read_to_string(directory.path().join("report/report.html")).expect("a page").contains("isle"));
}

/// It waited ten seconds for a server that could not be started, and then said nothing of what to install.
#[test]
fn a_benchmark_without_its_programs_says_what_to_install() {
    let directory = directory();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_everleaf"));
    let output = command.args(["bench", "server", "--directory", "."]).current_dir(directory.path()).env("PATH", "").output().expect("the program");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(4) && message.contains("redis-server, redis-tools"), "{message}");
    assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 0, "nothing was begun");
}

#[test]
fn completions_are_for_this_program() {
    let directory = directory();
    for shell in ["bash", "zsh", "fish"] {
        let script = String::from_utf8(expect(directory.path(), &["completion", shell], b"", 0)).expect("UTF-8");
        assert!(script.contains("everleaf") && script.contains("accept-dirty-shutdown"), "{shell}");
    }
}

#[test]
fn a_report_is_drawn_of_what_a_run_left_and_of_nothing_else() {
    let directory = directory();
    let path = directory.path();
    let plan =
        r#"{"experiments":[{"id":"one","title":"One","systems":["isle"],"baseline":null,"cases":[],"figure":null}],"claims":["B3"],"rounds":1,"seed":1}"#;
    let machine =
        r#"{"processor":"p","cores":2,"caches":{},"memory_bytes":1,"kernel":"k","page_bytes":4096,"huge_pages":"","flush_instruction":"clwb","raw_ns":{}}"#;
    let header = format!(r#"{{"line":"header","format":1,"version":"0","command":["lab"],"started":0,"machine":{machine},"plan":{plan}}}"#);
    let parameters =
        r#"{"keys":1,"key":"integer","value_bytes":8,"threads":1,"write_latency_ns":0,"domain":"adr","memory":"anonymous","scan_length":1,"measure":"time"}"#;
    let metrics = r#"{"throughput":{"value":2e6,"unit":"op/s"}}"#;
    let names = r#""experiment":"one","system":"isle","durability":"","leaf_bytes":512,"workload":"w","phase":"insert","round":0"#;
    let measurement = format!(r#"{{"line":"measurement",{names},"parameters":{parameters},"metrics":{metrics}}}"#);

    // Without a last line: Ctrl-C in the middle of a line leaves this.
    std::fs::write(path.join("cut.jsonl"), format!("{header}\n{measurement}\n{}", &measurement[..40])).expect("a file");
    expect(path, &["lab", "report", "cut.jsonl", "--out", "out"], b"", 0);
    let page = std::fs::read_to_string(path.join("out/report.html")).expect("a page");
    assert!(page.contains("cut short") && page.contains("million operations a second"));
    assert!(page.contains("32, 49, 66 B; 2, 0, 0 slots"), "claims are judged though the run has not come to that");
    for extension in ["svg", "png", "csv"] {
        assert!(path.join("out/figures/one").with_extension(extension).exists(), "{extension}");
    }

    std::fs::write(path.join("damaged.jsonl"), format!("{header}\n{measurement}\n{{}}\n{measurement}\n")).expect("a file");
    let output = everleaf(path, &["lab", "report", "damaged.jsonl", "--out", "none"], b"");
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&output.stderr).contains("line 3"), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!path.join("none").exists());
    std::fs::write(path.join("empty.jsonl"), "").expect("a file");
    expect(path, &["lab", "report", "empty.jsonl", "--out", "none"], b"", 4);
    expect(path, &["lab", "report", "absent.jsonl", "--out", "none"], b"", 4);
}
