//! The server under test: the binary itself, as its own process.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A running server. Killed, if nothing else has ended it, when dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) port: u16,
    pub(crate) memcached_port: u16,
    /// From the start of the process until it listens.
    pub(crate) started_in: Duration,
}

/// Where the data lies.
pub(crate) struct Place<'a> {
    pub(crate) pool: PathBuf,
    /// The index of namespaces that are made there.
    pub(crate) index: &'a str,
    pub(crate) domain: &'a str,
}

fn command(place: &Place<'_>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everleaf"));
    command
        .args([
            "serve",
            "--json",
            "--port",
            "0",
            "--memcached-port",
            "0",
            "--threads",
            "2",
            "--size-max",
            "4G",
            "--index",
            place.index,
            "--domain",
            place.domain,
            "--pool",
        ])
        .arg(&place.pool);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

impl Server {
    /// Starts it, and waits until it listens.
    pub(crate) fn start(place: &Place<'_>) -> Self {
        let start = Instant::now();
        let mut process = command(place).spawn().expect("the server starts");
        let mut line = String::new();
        let output = process.stdout.take().expect("its output is piped");
        BufReader::new(output).read_line(&mut line).expect("the server says where it listens");
        let started_in = start.elapsed();
        let said: serde_json::Value =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("the server says {line:?} instead of where it listens: {error}"));
        let port = |name: &str| said[name].as_u64().and_then(|port| u16::try_from(port).ok()).expect("a port");
        Self { process, port: port("port"), memcached_port: port("memcached_port"), started_in }
    }

    /// Starts it and kills it `after` that, wherever it is by then.
    pub(crate) fn kill_at_start(place: &Place<'_>, after: Duration) {
        let mut process = command(place).spawn().expect("the server starts");
        thread::sleep(after);
        process.kill().expect("it can be killed");
        process.wait().expect("it ends");
    }

    /// Has `everleaf check` read all of a pool that no server has open.
    pub(crate) fn check(place: &Place<'_>) {
        let output = Command::new(env!("CARGO_BIN_EXE_everleaf")).args(["check", "--pool"]).arg(&place.pool).output().expect("the check runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
    }

    /// `kill -9`, at once.
    pub(crate) fn kill(mut self) {
        self.process.kill().expect("it can be killed");
    }

    /// SIGTERM, and its graceful end.
    pub(crate) fn stop(mut self) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
        assert!(self.process.wait().expect("it ends").success(), "a graceful stop is no failure");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail when it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
