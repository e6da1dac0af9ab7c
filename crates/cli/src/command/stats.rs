//! `everleaf stats`: numbers of a pool; with `--watch`, those of a running server, again and again.

use crate::failure::Failure;
use crate::options::PoolArguments;
use crate::output::Output;
use crate::text;
use clap::Args;
use everleaf::Stats;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// Lines between two headings.
const LINES_PER_HEADING: u64 = 20;
/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: PoolArguments,
    /// Watch a server instead of looking into a pool that nobody uses
    #[arg(long)]
    watch: bool,
    /// The server
    #[arg(long, default_value = "127.0.0.1:6379", value_name = "ADDR:PORT", requires = "watch")]
    server: SocketAddr,
    /// File whose first line is the server's password
    #[arg(long, value_name = "PATH", requires = "watch")]
    password_file: Option<PathBuf>,
    /// Seconds from one line to the next
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", requires = "watch")]
    interval: f64,
    /// Number of lines; without end if not given
    #[arg(long, value_name = "N", requires = "watch")]
    count: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if self.watch { self.watch() } else { self.look() }
    }

    fn look(&self) -> Result<(), Failure> {
        let stats = self.pool.with_store(|store| Ok(store.stats()))?;
        let mut out = Output::new();
        if self.json {
            out.json(&as_json(&stats))?;
            return out.flush();
        }
        out.line(format!("pool {}: {} of at most {}", self.pool.pool.display(), text::size(stats.pool.size), text::size(stats.pool.size_max)))?;
        for space in &stats.namespaces {
            out.line(format!(
                "namespace {}: {} keys in {}, {} leaves of {} in {} levels",
                text::escape(space.name.as_bytes()),
                text::count(space.keys),
                space.index,
                text::count(space.leaves),
                text::size(space.leaf_bytes as usize),
                space.depth
            ))?;
        }
        out.flush()
    }

    fn watch(&self) -> Result<(), Failure> {
        let interval = Duration::try_from_secs_f64(self.interval).map_err(|error| Failure::Usage(format!("--interval {}: {error}", self.interval)))?;
        let failure = |source| Failure::Io { action: format!("ask {}", self.server), source };
        let password = self.password_file.as_deref().map(super::serve::read_password).transpose()?;
        let mut server = Server::connect(self.server, password.as_deref()).map_err(failure)?;
        let mut before: Option<(Instant, Info)> = None;
        let mut out = Output::new();
        for line in 0..self.count.unwrap_or(u64::MAX) {
            if line > 0 {
                thread::sleep(interval);
            }
            let (now, info) = (Instant::now(), server.info().map_err(failure)?);
            let rate = before.as_ref().map(|(then, before)| {
                info.number("total_commands_processed").saturating_sub(before.number("total_commands_processed")) as f64 / (now - *then).as_secs_f64()
            });
            if self.json {
                out.json(&info.as_json(rate))?;
            } else {
                if line.is_multiple_of(LINES_PER_HEADING) {
                    out.line("  clients  commands/s        keys        pool    resident   held back  expired")?;
                }
                out.line(info.line(rate))?;
            }
            out.flush()?;
            before = Some((now, info));
        }
        Ok(())
    }
}

fn as_json(stats: &Stats) -> Value {
    let namespaces: Vec<_> = stats
        .namespaces
        .iter()
        .map(|space| {
            json!({
                "name": space.name, "index": space.index, "keys": space.keys, "leaves": space.leaves, "leaf_bytes": space.leaf_bytes, "depth": space.depth,
            })
        })
        .collect();
    json!({ "size": stats.pool.size, "size_max": stats.pool.size_max, "namespaces": namespaces })
}

/// A connection to a server.
struct Server(BufReader<TcpStream>);

impl Server {
    fn connect(address: SocketAddr, password: Option<&[u8]>) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut server = Self(BufReader::new(stream));
        if let Some(password) = password {
            server.ask(&[b"AUTH", password])?;
        }
        Ok(server)
    }

    fn info(&mut self) -> io::Result<Info> {
        let text = self.ask(&[b"INFO"])?;
        let field = |line: &str| line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        Ok(Info(text.lines().filter_map(field).collect()))
    }

    /// Sends a command, and returns the status or the bulk string that it replies.
    fn ask(&mut self, words: &[&[u8]]) -> io::Result<String> {
        let mut command = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            command.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            command.extend_from_slice(word);
            command.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&command)?;
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let strange = |what: &str| io::Error::other(format!("the server says {:?}", what.trim_end()));
        match line.split_at_checked(1) {
            Some(("+", status)) => Ok(status.trim_end().to_owned()),
            Some(("$", size)) => {
                let size: u64 = size.trim_end().parse().map_err(|_| strange(&line))?;
                let mut text = Vec::new();
                self.0.by_ref().take(size + 2).read_to_end(&mut text)?;
                String::from_utf8(text).map_err(|_| strange("what is no text"))
            }
            _ => Err(strange(&line)),
        }
    }
}

/// What INFO says.
struct Info(BTreeMap<String, String>);

impl Info {
    fn number(&self, name: &str) -> u64 {
        self.0.get(name).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// Keys of all databases: `db0:keys=5,...`.
    fn keys(&self) -> u64 {
        let keys = |value: &String| value.split(',').find_map(|field| field.strip_prefix("keys=")?.parse::<u64>().ok());
        self.0.iter().filter(|(name, _)| name.starts_with("db")).filter_map(|(_, value)| keys(value)).sum()
    }

    fn line(&self, rate: Option<f64>) -> String {
        format!(
            "{:>9}{:>12}{:>12}{:>12}{:>12}{:>12}{:>9}",
            self.number("connected_clients"),
            rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}")),
            text::count(self.keys()),
            text::size(self.number("pool_size") as usize),
            text::size(self.number("used_memory_rss") as usize),
            text::count(self.number("held_back_versions")),
            text::count(self.number("expired_keys"))
        )
    }

    /// Everything, numbers as such, and the rate.
    fn as_json(&self, rate: Option<f64>) -> Value {
        let value = |text: &String| text.parse::<i64>().map_or_else(|_| Value::from(text.as_str()), Value::from);
        let mut object: Map<String, Value> = self.0.iter().map(|(name, text)| (name.clone(), value(text))).collect();
        object.insert("keys".into(), self.keys().into());
        object.insert("commands_per_second".into(), rate.into());
        Value::Object(object)
    }
}
