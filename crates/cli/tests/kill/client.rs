//! A minimal client of the Redis protocol for the test. It does not share the server's parser, so that both cannot be wrong in the same way.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Status(String),
    Error(String),
    Integer(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Reply>),
}

/// A connection.
pub(crate) struct Client {
    reader: BufReader<TcpStream>,
    requests: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(port: u16) -> io::Result<Self> {
        Ok(Self { reader: connect(port)?, requests: Vec::new() })
    }

    /// Adds a request to those that the next [`Client::send`] sends.
    pub(crate) fn push(&mut self, words: &[&[u8]]) {
        write!(self.requests, "*{}\r\n", words.len()).expect("a vector takes everything");
        for word in words {
            write!(self.requests, "${}\r\n", word.len()).expect("a vector takes everything");
            self.requests.extend_from_slice(word);
            self.requests.extend_from_slice(b"\r\n");
        }
    }

    /// Sends what has been pushed.
    pub(crate) fn send(&mut self) -> io::Result<()> {
        let sent = self.reader.get_mut().write_all(&self.requests);
        self.requests.clear();
        sent
    }

    /// A request and its reply.
    pub(crate) fn call(&mut self, words: &[&[u8]]) -> io::Result<Reply> {
        self.push(words);
        self.send()?;
        self.receive()
    }

    /// The next reply.
    pub(crate) fn receive(&mut self) -> io::Result<Reply> {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line)?;
        let Some(line) = line.strip_suffix(b"\r\n") else { return Err(io::ErrorKind::UnexpectedEof.into()) };
        let text = std::str::from_utf8(line).map_err(|_| malformed(line))?;
        let (kind, rest) = text.split_at_checked(1).ok_or_else(|| malformed(line))?;
        let number = || rest.parse::<i64>().map_err(|_| malformed(line));
        Ok(match kind {
            "+" => Reply::Status(rest.into()),
            "-" => Reply::Error(rest.into()),
            ":" => Reply::Integer(number()?),
            "$" => match usize::try_from(number()?) {
                Ok(size) => Reply::Bulk(Some(self.bulk(size)?)),
                Err(_) => Reply::Bulk(None),
            },
            "*" => Reply::Array((0..number()?).map(|_| self.receive()).collect::<io::Result<_>>()?),
            _ => return Err(malformed(line)),
        })
    }

    fn bulk(&mut self, size: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; size + 2];
        self.reader.read_exact(&mut bytes)?;
        if bytes.split_off(size) != b"\r\n" { Err(malformed(&bytes)) } else { Ok(bytes) }
    }
}

/// A connection to a server on this machine.
pub(crate) fn connect(port: u16) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    // No request takes this long. A server that hangs must fail the test, not block it.
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    Ok(BufReader::new(stream))
}

fn malformed(what: &[u8]) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a reply: {}", what.escape_ascii()))
}
