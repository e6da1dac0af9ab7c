//! Transfers between accounts, each a transaction; the server is killed meanwhile.
//!
//! A writer's transfers are a function of its number and of the number of its transfers so far, which each transaction increments under a key of the writer. So
//! after a kill that count shows exactly which transfers must be there, and so the balance of each account:
//! 1. a writer's count is at least what was acknowledged, and at most what was sent;
//! 2. each account holds the result of the counted transfers of all writers: none is there in part, twice, or without being counted;
//! 3. so the sum is unchanged.
//!
//! Accounts are in two databases. Writers with even numbers send many transfers at once (MULTI, DECRBY, INCRBY, EXEC); the others read the balances and write
//! new ones (WATCH, GET, MULTI, SET, EXEC), and retry after a conflict.

use crate::client::{Client, Reply};
use crate::server::{Ending, Server};
use std::io;

/// Number of accounts: few, so that writers meet.
const ACCOUNTS: u64 = 8;
/// Initial balance of each account.
const BALANCE: i64 = 1000;
/// Number of transfers in flight together.
const PIPELINE: u64 = 16;

/// A connection that transfers.
pub(crate) struct Teller {
    number: u64,
    /// Transfers that were acknowledged.
    pub(crate) acknowledged: u64,
    /// Transfers that were sent.
    sent: u64,
    /// Number of its conflicts.
    pub(crate) overtaken: u64,
}

/// A transfer.
struct Transfer {
    from: u64,
    to: u64,
    amount: i64,
}

/// A deterministic word that looks random.
pub(crate) fn mix(teller: u64, count: u64) -> u64 {
    let mixed = (teller << 32 | count).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
}

fn transfer(teller: u64, count: u64) -> Transfer {
    let chance = mix(teller, count);
    Transfer { from: chance % ACCOUNTS, to: chance / ACCOUNTS % ACCOUNTS, amount: (chance >> 20) as i64 % 100 }
}

fn account(number: u64) -> (String, String) {
    ((number % 2).to_string(), format!("account {number}"))
}

fn teller_key(number: u64) -> String {
    format!("transfers of {number}")
}

/// Opens the accounts.
pub(crate) fn open(server: &Server) {
    let mut client = Client::connect(server.port).expect("the server listens");
    for number in 0..ACCOUNTS {
        let (database, key) = account(number);
        client.call(&[b"SELECT", database.as_bytes()]).expect("a reply");
        let reply = client.call(&[b"SET", key.as_bytes(), BALANCE.to_string().as_bytes()]).expect("a reply");
        assert_eq!(reply, Reply::Status("OK".into()));
    }
}

impl Teller {
    pub(crate) fn new(number: u64) -> Self {
        Self { number, acknowledged: 0, sent: 0, overtaken: 0 }
    }

    /// Makes transfers until the server ends.
    pub(crate) fn run(&mut self, port: u16, ending: &Ending) {
        let outcome = Client::connect(port)
            .and_then(|mut client| if self.number.is_multiple_of(2) { self.transfer_blindly(&mut client) } else { self.transfer_watching(&mut client) });
        if let Err(error) = outcome {
            ending.must_explain(format_args!("teller {}", self.number), &error);
        }
    }

    fn transfer_blindly(&mut self, client: &mut Client) -> io::Result<()> {
        loop {
            for count in self.acknowledged..self.acknowledged + PIPELINE {
                let Transfer { from, to, amount } = transfer(self.number, count);
                let ((payer_database, payer), (payee_database, payee)) = (account(from), account(to));
                client.push(&[b"MULTI"]);
                client.push(&[b"SELECT", payer_database.as_bytes()]);
                client.push(&[b"DECRBY", payer.as_bytes(), amount.to_string().as_bytes()]);
                client.push(&[b"SELECT", payee_database.as_bytes()]);
                client.push(&[b"INCRBY", payee.as_bytes(), amount.to_string().as_bytes()]);
                client.push(&[b"SELECT", b"0"]);
                client.push(&[b"SET", teller_key(self.number).as_bytes(), (count + 1).to_string().as_bytes()]);
                client.push(&[b"EXEC"]);
            }
            self.sent = self.acknowledged + PIPELINE;
            client.send()?;
            for _ in 0..PIPELINE {
                let mut reply = client.receive()?;
                for _ in 0..7 {
                    assert!(matches!(&reply, Reply::Status(status) if status == "OK" || status == "QUEUED"), "teller {}: {reply:?}", self.number);
                    reply = client.receive()?;
                }
                assert!(matches!(&reply, Reply::Array(replies) if replies.len() == 6), "teller {}: EXEC replies {reply:?}", self.number);
                self.acknowledged += 1;
            }
        }
    }

    /// One at a time, all in one database, based on the balance that was read.
    fn transfer_watching(&mut self, client: &mut Client) -> io::Result<()> {
        loop {
            let Transfer { from, to, amount } = transfer(self.number, self.acknowledged);
            let (places, count) = ([account(from), account(to)], (self.acknowledged + 1).to_string());
            let mut balances = [0; 2];
            for ((database, key), balance) in places.iter().zip(&mut balances) {
                client.call(&[b"SELECT", database.as_bytes()])?;
                client.call(&[b"WATCH", key.as_bytes()])?;
                *balance = number(client.call(&[b"GET", key.as_bytes()])?).expect("a balance");
            }
            client.push(&[b"MULTI"]);
            // A transfer from an account to itself changes nothing.
            let changes = if from == to { [0, 0] } else { [-amount, amount] };
            for (((database, key), balance), change) in places.iter().zip(balances).zip(changes) {
                client.push(&[b"SELECT", database.as_bytes()]);
                client.push(&[b"SET", key.as_bytes(), (balance + change).to_string().as_bytes()]);
            }
            client.push(&[b"SELECT", b"0"]);
            client.push(&[b"SET", teller_key(self.number).as_bytes(), count.as_bytes()]);
            client.push(&[b"EXEC"]);
            self.sent = self.acknowledged + 1;
            client.send()?;
            for _ in 0..7 {
                client.receive()?;
            }
            match client.receive()? {
                Reply::Array(replies) if replies.len() == 6 => self.acknowledged += 1,
                Reply::Array(replies) if replies.is_empty() => self.overtaken += 1,
                other => panic!("teller {}: EXEC replies {other:?}", self.number),
            }
        }
    }
}

fn number(reply: Reply) -> Option<i64> {
    match reply {
        Reply::Bulk(Some(text)) => std::str::from_utf8(&text).ok()?.parse().ok(),
        _ => None,
    }
}

/// Checks that the server has the required state; the tellers continue from there.
pub(crate) fn verify(server: &Server, tellers: &mut [Teller]) -> Result<(), String> {
    let mut client = Client::connect(server.port).map_err(|error| error.to_string())?;
    let mut get = |database: &str, key: &str| {
        client.call(&[b"SELECT", database.as_bytes()]).and_then(|_| client.call(&[b"GET", key.as_bytes()])).map_err(|error| error.to_string()).map(number)
    };
    let mut expected = [BALANCE; ACCOUNTS as usize];
    for teller in tellers {
        let done = get("0", &teller_key(teller.number))?.unwrap_or(0) as u64;
        if !(teller.acknowledged..=teller.sent.max(teller.acknowledged)).contains(&done) {
            return Err(format!("teller {}: {} transfers acknowledged, {} sent, {done} counted", teller.number, teller.acknowledged, teller.sent));
        }
        (teller.acknowledged, teller.sent) = (done, done);
        for Transfer { from, to, amount } in (0..done).map(|count| transfer(teller.number, count)) {
            expected[from as usize] -= amount;
            expected[to as usize] += amount;
        }
    }
    let mut sum = 0;
    for (number, expected) in expected.iter().enumerate() {
        let (database, key) = account(number as u64);
        let balance = get(&database, &key)?.ok_or_else(|| format!("{key} is gone"))?;
        if balance != *expected {
            return Err(format!("{key} holds {balance}, and the counted transfers leave {expected}"));
        }
        sum += balance;
    }
    if sum == BALANCE * ACCOUNTS as i64 { Ok(()) } else { Err(format!("the sum is {sum}")) }
}
