//! Programs of users, against our server. Those that are not installed are skipped, with a message.

use crate::peer::{Running, skipped};
use crate::tls::Authority;
use everleaf::Options;
use everleaf_server::Config;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Runs a program; if it is not installed, says so and returns `None`.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    let output = Command::new(program).args(arguments).output();
    output.inspect_err(|error| skipped(format_args!("{program} cannot be run: {error}"))).ok()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn redis_cli() {
    let server = Running::start();
    let port = server.address.port().to_string();
    let lines: [(&[&str], &str); 6] = [
        (&["SET", "k", "v"], "OK\n"),
        (&["GET", "k"], "v\n"),
        (&["-3", "CONFIG", "GET", "save"], "save \n"),
        (&["MSET", "a", "1", "b", "2"], "OK\n"),
        (&["RANGE", "a", "z"], "a\n1\nb\n2\nk\nv\n"),
        (&["--scan", "--pattern", "[ab]"], "a\nb\n"),
    ];
    for (line, expected) in lines {
        let Some(output) = run("redis-cli", &[&["-p", &port], line].concat()) else { return };
        assert_eq!(text(&output), expected, "{line:?}");
    }
    let Some(output) = run("redis-cli", &["-p", &port, "--bigkeys"]) else { return };
    assert!(text(&output).contains("Sampled 3 keys"), "{}", text(&output));
}

#[test]
fn redis_cli_by_unix_socket_and_tls() {
    let authority = Authority::new();
    let path = authority.path("redis.sock");
    let server = Running::with(Config { unix_socket: Some(path.clone()), ..authority.config() });
    let port = server.tls.expect("it listens there").port().to_string();
    let authorities = authority.path("ca.pem").to_string_lossy().into_owned();
    for way in [&["-s", &path.to_string_lossy()][..], &["--tls", "--cacert", &authorities, "-h", "localhost", "-p", &port]] {
        let Some(output) = run("redis-cli", &[way, &["ECHO", "hello"]].concat()) else { return };
        if text(&output).contains("Unrecognized option") {
            skipped(format_args!("redis-cli was built without TLS"));
            return;
        }
        assert_eq!(text(&output), "hello\n", "{way:?}");
    }
}

#[test]
fn redis_benchmark() {
    let server = Running::start();
    let port = server.address.port().to_string();
    for pipeline in ["1", "16"] {
        let Some(output) =
            run("redis-benchmark", &["-p", &port, "-t", "ping,set,get,incr,mset", "-n", "5000", "-c", "20", "-P", pipeline, "-r", "1000", "--csv"])
        else {
            return;
        };
        let text = text(&output);
        assert!(output.status.success() && text.lines().count() >= 6 && !text.contains("rror"), "{text}");
    }
}

#[test]
fn redis_py() {
    let server = Running::start();
    run_script("redis", "redis_py.py", server.address.port());
}

#[test]
fn pymemcache() {
    let server = Running::with_memcached(Options::default(), Config::default());
    run_script("pymemcache", "memcached_py.py", server.memcached.expect("it listens there").port());
}

/// Runs a Python script that uses a module, with a port as its argument.
fn run_script(module: &str, script: &str, port: u16) {
    let python = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("python/bin/python3");
    // Uses a virtual environment that the test run prepared, or else the installed python3.
    let python = if python.exists() { python.to_string_lossy().into_owned() } else { "python3".to_owned() };
    if !run(&python, &["-c", &format!("import {module}")]).is_some_and(|output| output.status.success()) {
        skipped(format_args!("{python} has no module {module}; `pip install {module}` brings it"));
        return;
    }
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(script);
    let Some(output) = run(&python, &[&script.to_string_lossy(), &port.to_string()]) else { return };
    println!("{}", text(&output));
    assert!(output.status.success(), "{}", text(&output));
}
