//! Items of memcached under `kill -9`: each connection has its own keys, and knows for each the last acknowledged state, and possible later ones.

use crate::client::connect;
use crate::server::Ending;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// Keys of a connection.
const KEYS: usize = 200;
/// Most requests that are sent at once.
const PIPELINE_MAX: usize = 40;
/// Approximate size of the longest item in bytes.
const SIZE_MAX: usize = 600;

/// The state of an item: the number of the request that set it, or `None` if it is absent.
type State = Option<u64>;

/// A key, as its owner knows it.
#[derive(Default)]
struct Key {
    acknowledged: State,
    /// Its states after each request in flight, in order.
    under_way: Vec<State>,
}

/// A connection that writes, and its knowledge.
pub(crate) struct Keeper {
    number: usize,
    random: StdRng,
    keys: Vec<Key>,
    /// Requests so far.
    sent: u64,
    pub(crate) acknowledged: u64,
}

/// A minimal client for the test.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(port: u16) -> io::Result<Self> {
        connect(port).map(Self)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        line.strip_suffix("\r\n").map(str::to_owned).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl Keeper {
    pub(crate) fn new(number: usize, seed: u64) -> Self {
        let keys = (0..KEYS).map(|_| Key::default()).collect();
        Self { number, random: StdRng::seed_from_u64(seed), keys, sent: 0, acknowledged: 0 }
    }

    fn name(&self, key: usize) -> String {
        format!("keeper-{}-{key}", self.number)
    }

    /// Writes until the server ends, or for this many pipelines.
    pub(crate) fn run(&mut self, port: u16, ending: &Ending, pipelines_max: usize) {
        let outcome = Client::connect(port).and_then(|mut client| (0..pipelines_max).try_for_each(|_| self.exchange(&mut client)));
        if let Err(error) = outcome {
            ending.must_explain(format_args!("keeper {}", self.number), &error);
        }
    }

    fn exchange(&mut self, client: &mut Client) -> io::Result<()> {
        let mut requests = Vec::new();
        let mut written = Vec::new();
        for _ in 0..self.random.random_range(1..=PIPELINE_MAX) {
            self.sent += 1;
            let key = self.random.random_range(0..KEYS);
            let name = self.name(key);
            let state = self.random.random_ratio(3, 4).then_some(self.sent);
            match state {
                Some(number) => {
                    let item = item(&name, number);
                    let (flags, exptime) = (number as u32, if number % 3 == 0 { 1_000_000 } else { 0 });
                    write!(requests, "set {name} {flags} {exptime} {}\r\n{item}\r\n", item.len())?;
                }
                None => write!(requests, "delete {name}\r\n")?,
            }
            self.keys[key].under_way.push(state);
            written.push(key);
        }
        client.0.get_mut().write_all(&requests)?;
        for number in written {
            let reply = client.line()?;
            let key = &mut self.keys[number];
            let state = key.under_way.remove(0);
            let expected = match (state, key.acknowledged) {
                (Some(_), _) => "STORED",
                (None, Some(_)) => "DELETED",
                (None, None) => "NOT_FOUND",
            };
            assert_eq!(reply, expected, "of {}", self.name(number));
            self.keys[number].acknowledged = state;
            self.acknowledged += 1;
        }
        Ok(())
    }

    /// Checks that each item is in its acknowledged state or that of a request in flight; the connection continues from there.
    pub(crate) fn verify(&mut self, port: u16) -> Result<(), String> {
        let names: Vec<_> = (0..KEYS).map(|key| self.name(key)).collect();
        let found = Client::connect(port).and_then(|mut client| read(&mut client, &names)).map_err(|error| error.to_string())?;
        for (key, name) in self.keys.iter_mut().zip(&names) {
            let state = found.get(name).copied();
            if state != key.acknowledged && !key.under_way.contains(&state) {
                return Err(format!("{name} is {state:?}; acknowledged was {:?}, and under way {:?}", key.acknowledged, key.under_way));
            }
            key.acknowledged = state;
            key.under_way.clear();
        }
        Ok(())
    }
}

/// Sends requests of another client, which reads no replies.
pub(crate) fn disturb(port: u16, requests: &str) {
    let mut client = Client::connect(port).expect("the server listens");
    client.0.get_mut().write_all(format!("{requests}mn\r\n").as_bytes()).expect("it takes them");
    while client.line().expect("it replies") != "MN" {}
}

/// The item that the request of this number sets.
pub(crate) fn item(name: &str, number: u64) -> String {
    let size = StdRng::seed_from_u64(number).random_range(0..SIZE_MAX);
    format!("{number} {name} {}", "i".repeat(size))
}

/// The items of these names. Each begins with its number, which is also in its flags and determines the rest.
fn read(client: &mut Client, names: &[String]) -> io::Result<HashMap<String, u64>> {
    client.0.get_mut().write_all(format!("get {}\r\n", names.join(" ")).as_bytes())?;
    let mut found = HashMap::new();
    loop {
        let line = client.line()?;
        if line == "END" {
            return Ok(found);
        }
        let words: Vec<_> = line.split(' ').collect();
        let [_, name, flags, size] = words[..] else { return Err(io::Error::other(line)) };
        let mut bytes = vec![0; size.parse::<usize>().map_err(io::Error::other)? + 2];
        client.0.read_exact(&mut bytes)?;
        let text = String::from_utf8(bytes).map_err(io::Error::other)?;
        let is_whole = |number: &u64| (*number as u32).to_string() == flags && text.strip_suffix("\r\n") == Some(item(name, *number).as_str());
        let number = text.split(' ').next().and_then(|number| number.parse::<u64>().ok()).filter(is_whole);
        found.insert(name.to_owned(), number.ok_or_else(|| io::Error::other(format!("{line}: {text}")))?);
    }
}
