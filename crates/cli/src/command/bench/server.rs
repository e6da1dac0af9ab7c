//! `everleaf bench server`: this server, with writes that survive the process and with writes that survive the machine, compared with redis-server without
//! persistence, and with its log synchronised every second and always, on the same file system. Each server has one core and one thread, and redis-benchmark
//! another core. Servers take turns, in a new order each time.

use super::aim::Aim;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::Output;
use crate::text;
use clap::Args;
use everleaf_lab::Samples;
use everleaf_lab::machine::{file_system, is_installed};
use everleaf_lab::result::Machine;
use indicatif::ProgressBar;
use rand::seq::SliceRandom;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Requests of a measurement at 50 connections with a pipeline of 16; the other measurements, being slower, have fewer
    #[arg(long, default_value_t = 2_000_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..))]
    requests: u64,
    /// Number of keys; each request takes a random one
    #[arg(long, default_value_t = 1_000_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Size of the values in bytes
    #[arg(long, default_value_t = 100, value_name = "BYTES")]
    value_size: u32,
    /// Number of rounds, of which the median is printed
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Directory of the pool and of Redis's logs
    #[arg(long, default_value = ".", value_name = "PATH")]
    directory: PathBuf,
    /// Core of the servers
    #[arg(long, default_value_t = 0, value_name = "N")]
    server_core: u16,
    /// Core of redis-benchmark
    #[arg(long, default_value_t = 1, value_name = "N")]
    client_core: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The servers.
const SERVERS: [Kind; 5] = [
    Kind { name: "everleaf", program: Program::Everleaf { domain: None } },
    Kind { name: "everleaf, msync", program: Program::Everleaf { domain: Some("msync") } },
    Kind { name: "redis, appendonly no", program: Program::Redis { append_sync: None } },
    Kind { name: "redis, everysec", program: Program::Redis { append_sync: Some("everysec") } },
    Kind { name: "redis, always", program: Program::Redis { append_sync: Some("always") } },
];
const EVERLEAF: usize = 0;
const EVERLEAF_MSYNC: usize = 1;
const REDIS: usize = 2;
const REDIS_ALWAYS: usize = 4;

struct Kind {
    name: &'static str,
    program: Program,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Program {
    Everleaf {
        /// The persistence domain, if it is not to be detected.
        domain: Option<&'static str>,
    },
    Redis {
        /// How it synchronises its log, if it has one.
        append_sync: Option<&'static str>,
    },
}

impl Program {
    /// Whether each write waits for the disk.
    fn waits(self) -> bool {
        matches!(self, Self::Everleaf { domain: Some("msync") } | Self::Redis { append_sync: Some("always") })
    }
}

/// Connections, requests that each sends at once, and the factor by which a measurement is smaller than the largest.
const LOADS: [Load; 3] =
    [Load { connections: 1, pipeline: 1, share: 40 }, Load { connections: 50, pipeline: 1, share: 10 }, Load { connections: 50, pipeline: 16, share: 1 }];

struct Load {
    connections: u32,
    pipeline: u32,
    share: u64,
}

impl Load {
    fn name(&self) -> String {
        format!("{} x {}", self.connections, self.pipeline)
    }
}

/// The factor by which measurements of a server that waits for a disk are smaller.
const SLOW_SHARE: u64 = 8;

const COMMANDS: [&str; 2] = ["SET", "GET"];
/// Keys set at once before anything is measured, and the reply to each.
const PRELOADED: usize = 256;
const OK: &[u8; 5] = b"+OK\r\n";

/// Requests per second by load, command and server.
type Rates = [[[Samples; SERVERS.len()]; COMMANDS.len()]; LOADS.len()];

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if !["taskset", "redis-server", "redis-benchmark"].into_iter().all(is_installed) {
            return Err(cannot_run(std::io::ErrorKind::NotFound.into()));
        }
        interrupt::hold()?;
        // A signal from the keyboard has ended the servers as well, and what then fails is not what is to be told.
        self.measure().map_err(|failure| interrupt::check().err().unwrap_or(failure))
    }

    fn measure(&self) -> Result<(), Failure> {
        let directory = tempfile::tempdir_in(&self.directory).map_err(|source| Failure::io("create a directory in", &self.directory, source))?;
        let servers = SERVERS.iter().map(|kind| self.start(kind, directory.path())).collect::<Result<Vec<_>, _>>()?;
        let progress = ProgressBar::new(u64::from(self.rounds) * (LOADS.len() * SERVERS.len()) as u64);
        for server in &servers {
            self.preload(server)?;
        }
        let (mut rates, mut turns, mut random) = (Rates::default(), Vec::from_iter(0..SERVERS.len()), rand::rng());
        for _ in 0..self.rounds {
            for (load, rates) in LOADS.iter().zip(&mut rates) {
                // In a fixed order each server would follow the same other one in every round.
                turns.shuffle(&mut random);
                for &at in &turns {
                    interrupt::check()?;
                    let share = load.share * if SERVERS[at].program.waits() { SLOW_SHARE } else { 1 };
                    for (command, rate) in self.benchmark(&servers[at], load, (self.requests / share).max(100))? {
                        if let Some(number) = COMMANDS.iter().position(|name| *name == command) {
                            rates[number][at].push(rate);
                        }
                    }
                    progress.inc(1);
                }
            }
        }
        progress.finish_and_clear();
        drop(servers);
        let aims = aims(&rates);
        let mut out = Output::new();
        if self.json {
            out.json(&self.as_json(&rates, &aims))?
        } else {
            self.print(&rates, &aims, &mut out)?
        }
        out.flush()
    }

    /// Starts a server on its core, and waits until it listens.
    fn start(&self, kind: &Kind, directory: &Path) -> Result<Running, Failure> {
        let mut command = Command::new("taskset");
        command.args(["-c", &self.server_core.to_string()]).stdin(Stdio::null());
        let append_sync = match kind.program {
            Program::Redis { append_sync } => append_sync,
            Program::Everleaf { domain } => return self.start_own(&mut command, domain, directory),
        };
        let port = free_port()?;
        let place = directory.join(append_sync.unwrap_or("none"));
        std::fs::create_dir_all(&place).map_err(|source| Failure::io("create", &place, source))?;
        command.args(["redis-server", "--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--dir"]).arg(&place).stdout(Stdio::null());
        if let Some(sync) = append_sync {
            // A rewrite of the log is work that belongs to no request.
            command.args(["--appendonly", "yes", "--appendfsync", sync, "--auto-aof-rewrite-percentage", "0"]);
        }
        let mut running = Running { process: spawn(&mut command)?, port };
        let start = Instant::now();
        while let Err(source) = TcpStream::connect(("127.0.0.1", port)) {
            interrupt::check()?;
            let ended = running.process.try_wait().map_err(cannot_run)?;
            if let Some(status) = ended {
                return Err(cannot_run(std::io::Error::other(format!("it ended with {status}"))));
            }
            if start.elapsed() > Duration::from_secs(10) {
                return Err(Failure::Io { action: "connect to redis-server, which should have started".into(), source });
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(running)
    }

    /// The same for this program, started by a command that puts it on its core.
    fn start_own(&self, command: &mut Command, domain: Option<&str>, directory: &Path) -> Result<Running, Failure> {
        let own = std::env::current_exe().map_err(|source| Failure::Io { action: "find this program".into(), source })?;
        command.arg(own).args(["serve", "--json", "--port", "0", "--threads", "1"]).stdout(Stdio::piped());
        command.arg("--pool").arg(directory.join(domain.unwrap_or("found")).with_extension("pool"));
        if let Some(domain) = domain {
            command.args(["--domain", domain]);
        }
        let mut running = Running { process: spawn(command)?, port: 0 };
        let mut line = String::new();
        if let Some(output) = running.process.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(|source| Failure::Io { action: "read what the server says".into(), source })?;
        }
        let said: Value = serde_json::from_str(&line).unwrap_or_default();
        let port = said["port"].as_u64().and_then(|port| u16::try_from(port).ok());
        running.port = port.ok_or_else(|| Failure::Usage("the server did not start; its message is above".into()))?;
        Ok(running)
    }

    /// Sets every key that redis-benchmark may request; otherwise GET would measure misses.
    fn preload(&self, server: &Running) -> Result<(), Failure> {
        let failed = |source| Failure::Io { action: "set the keys of a server".into(), source };
        let mut socket = TcpStream::connect(("127.0.0.1", server.port)).map_err(failed)?;
        let value = "x".repeat(self.value_size as usize);
        let set = |number: u64| format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:{number:012}\r\n${}\r\n{value}\r\n", value.len());
        for first in (0..self.keys).step_by(PRELOADED) {
            interrupt::check()?;
            let numbers = first..self.keys.min(first + PRELOADED as u64);
            let mut replies = numbers.clone().flat_map(|_| *OK).collect::<Vec<u8>>();
            socket.write_all(numbers.map(set).collect::<String>().as_bytes()).and_then(|()| socket.read_exact(&mut replies)).map_err(failed)?;
            if replies.chunks(OK.len()).any(|reply| reply != OK) {
                return Err(Failure::Usage(format!("a server does not take its keys: {}", String::from_utf8_lossy(&replies))));
            }
        }
        Ok(())
    }

    /// Runs redis-benchmark; returns commands with their rates per second.
    fn benchmark(&self, server: &Running, load: &Load, requests: u64) -> Result<Vec<(String, f64)>, Failure> {
        let mut command = Command::new("taskset");
        command.args(["-c", &self.client_core.to_string(), "redis-benchmark", "-h", "127.0.0.1", "--csv", "-t", "set,get"]);
        for (option, value) in [
            ("-p", u64::from(server.port)),
            ("-n", requests),
            ("-r", self.keys),
            ("-d", self.value_size.into()),
            ("-c", load.connections.into()),
            ("-P", load.pipeline.into()),
        ] {
            command.arg(option).arg(value.to_string());
        }
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().map_err(cannot_run)?;
        let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(output.stdout.as_slice());
        let rates = reader.records().filter_map(|record| {
            let record = record.ok()?;
            Some((record.get(0)?.to_owned(), record.get(1)?.parse().ok()?))
        });
        let rates: Vec<_> = rates.collect();
        if output.status.success() && !rates.is_empty() { Ok(rates) } else { Err(Failure::Usage(format!("redis-benchmark has failed: {}", output.status))) }
    }

    fn setting(&self) -> String {
        format!(
            "{}; one core and one thread for the server, another core for redis-benchmark; {} keys, values of {} B; pool and logs on {}; medians of {} rounds",
            Machine::this().summary(),
            text::count(self.keys),
            self.value_size,
            file_system(&self.directory),
            self.rounds
        )
    }

    fn print(&self, rates: &Rates, aims: &[Aim], out: &mut Output) -> Result<(), Failure> {
        out.line(self.setting())?;
        out.line("")?;
        let heads: String = SERVERS.iter().map(|kind| format!("{:>22}", kind.name)).collect();
        out.line(format!("{:24}{heads}", "thousand requests per s"))?;
        for (load, rates) in LOADS.iter().zip(rates) {
            for (command, rates) in COMMANDS.iter().zip(rates) {
                let cells: String = rates.iter().map(|samples| format!("{:22.1}", samples.median() / 1e3)).collect();
                out.line(format!("{:24}{cells}", format!("{command} {}", load.name())))?;
            }
        }
        out.line("")?;
        aims.iter().try_for_each(|aim| aim.print(out))
    }

    fn as_json(&self, rates: &Rates, aims: &[Aim]) -> Value {
        let mut results = Vec::new();
        for (load, rates) in LOADS.iter().zip(rates) {
            for (command, rates) in COMMANDS.iter().zip(rates) {
                for (kind, samples) in SERVERS.iter().zip(rates) {
                    let (connections, pipeline) = (load.connections, load.pipeline);
                    results.push(json!({
                        "server": kind.name, "command": command, "connections": connections, "pipeline": pipeline, "requests_per_second": samples.spread(),
                    }));
                }
            }
        }
        json!({ "setting": self.setting(), "results": results, "aims": aims.iter().map(Aim::json).collect::<Vec<_>>() })
    }
}

/// A running server; killed when dropped: its data is for measuring only.
struct Running {
    process: Child,
    port: u16,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail if it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(command: &mut Command) -> Result<Child, Failure> {
    command.spawn().map_err(cannot_run)
}

fn cannot_run(source: std::io::Error) -> Failure {
    Failure::Io { action: "run taskset, redis-server or redis-benchmark (Debian: util-linux, redis-server, redis-tools)".into(), source }
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16, Failure> {
    let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).map(|address| address.port());
    port.map_err(|source| Failure::Io { action: "find a free port".into(), source })
}

fn aims(rates: &Rates) -> Vec<Aim> {
    let mut aims = Vec::new();
    for (load, rates) in LOADS.iter().zip(rates) {
        for (command, rates) in COMMANDS.iter().zip(rates) {
            let mut aim = |own: usize, other: usize, at_least| {
                let what = format!("{command} {}: {} / {}", load.name(), SERVERS[own].name, SERVERS[other].name);
                aims.push(Aim { what, ratio: rates[own].by(&rates[other]).median(), at_least });
            };
            match (load.connections, load.pipeline, *command) {
                (50, 16, _) => aim(EVERLEAF, REDIS, 1.5),
                (50, 1, _) => aim(EVERLEAF, REDIS, 1.0),
                // Both survive a power failure.
                (1, 1, "SET") => aim(EVERLEAF_MSYNC, REDIS_ALWAYS, 5.0),
                _ => {}
            }
            if (load.connections, *command) == (50, "SET") {
                aim(EVERLEAF_MSYNC, REDIS_ALWAYS, 1.0);
            }
        }
    }
    aims
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes that survive only the process were compared with writes that wait for the disk, and medians of rounds whose ratios differed from theirs.
    #[test]
    fn aims_are_of_like_with_like_in_the_same_rounds() {
        let mut rates = Rates::default();
        for round in [1.0, 4.0, 3.0] {
            for (at, rate) in [9.0, 6.0, 3.0, 3.0, 2.0].into_iter().enumerate() {
                // The Redis server that waits for the disk is disturbed in another round.
                let rate = if at == REDIS_ALWAYS && round == 1.0 { 3.5 * rate } else { rate };
                rates.iter_mut().flatten().for_each(|servers| servers[at].push(round * rate));
            }
        }
        let aims = aims(&rates);
        assert!(aims.iter().all(|aim| !aim.what.ends_with("redis, always") || aim.what.contains("everleaf, msync") && aim.ratio == 3.0));
        assert_eq!(aims.iter().filter(|aim| aim.what.ends_with("redis, always")).count(), 3);
        assert!(aims.iter().filter(|aim| aim.what.ends_with("appendonly no")).all(|aim| aim.ratio == 3.0));
    }
}
