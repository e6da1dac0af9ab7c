//! The server under test: the real binary in a separate process.

use std::fmt;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A running server. It is killed when dropped, unless it has ended before.
pub(crate) struct Server {
    process: Child,
    pub(crate) port: u16,
    pub(crate) memcached_port: u16,
    pub(crate) ending: Ending,
    /// Time from the start of the process until it listens.
    pub(crate) started_in: Duration,
}

/// Whether the test is about to end the server: before that, it has no reason to close a connection.
#[derive(Clone, Default)]
pub(crate) struct Ending(Arc<AtomicBool>);

impl Ending {
    fn announce(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Panics unless the announced end explains the error of `who`: it breaks connections, but garbles no reply and leaves no client waiting for half a minute.
    pub(crate) fn must_explain(&self, who: impl fmt::Display, error: &io::Error) {
        let is_broken = ![io::ErrorKind::InvalidData, io::ErrorKind::WouldBlock].contains(&error.kind());
        assert!(is_broken && self.0.load(Ordering::SeqCst), "{who}: {error}");
    }
}

/// The location of the data.
pub(crate) struct Place<'a> {
    pub(crate) pool: PathBuf,
    /// The index of namespaces created there.
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
    /// Starts the server, and waits until it listens.
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
        Self { process, port: port("port"), memcached_port: port("memcached_port"), ending: Ending::default(), started_in }
    }

    /// Starts the server and kills it after this time, wherever it is by then.
    pub(crate) fn kill_at_start(place: &Place<'_>, after: Duration) {
        let mut process = command(place).spawn().expect("the server starts");
        thread::sleep(after);
        kill(&mut process);
        process.wait().expect("it ends");
    }

    /// Makes `everleaf check` read all of a pool that no server has open.
    pub(crate) fn check(place: &Place<'_>) {
        let output = Command::new(env!("CARGO_BIN_EXE_everleaf")).args(["check", "--pool"]).arg(&place.pool).output().expect("the check runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
    }

    /// `kill -9`, at once.
    pub(crate) fn kill(mut self) {
        self.ending.announce();
        kill(&mut self.process);
    }

    /// Ends the server as if by a defect of its own: without an announcement.
    pub(crate) fn fail(&mut self) {
        self.process.kill().expect("it can be killed");
        self.process.wait().expect("it ends");
    }

    /// Stops it gracefully by SIGTERM.
    pub(crate) fn stop(mut self) {
        self.ending.announce();
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
        assert!(self.process.wait().expect("it ends").success(), "a graceful stop is no failure");
    }
}

/// Kills a process that is running. Killing one that has ended by itself would succeed too, until it is waited for.
fn kill(process: &mut Child) {
    let ended = process.try_wait().expect("it can be asked");
    assert!(ended.is_none(), "the server has ended before it was killed: {ended:?}");
    process.kill().expect("it can be killed");
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail if it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
