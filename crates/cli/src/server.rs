//! A server as its client sees it.

use crate::command::serve::read_password;
use crate::failure::Failure;
use clap::Args;
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest line in a reply, in bytes.
const LINE_MAX: u64 = 64 << 10;

/// The server to connect to.
#[derive(Args)]
pub(crate) struct ServerArguments {
    /// The server, or the path of its Unix socket [default: 127.0.0.1:6379]
    #[arg(long, value_name = "HOST:PORT|PATH")]
    server: Option<String>,
    /// File whose first line is the server's password
    #[arg(long, value_name = "PATH")]
    password_file: Option<PathBuf>,
}

impl ServerArguments {
    /// Connects to it.
    pub(crate) fn connect(&self) -> Result<Server, Failure> {
        let password = self.password_file.as_deref().map(read_password).transpose()?;
        let name = self.server.as_deref().unwrap_or("127.0.0.1:6379");
        // Neither a host nor a port has a slash.
        if name.contains('/') {
            return Server::at(Path::new(name), password.as_deref()).map_err(|source| Failure::Io { action: format!("ask {name}"), source });
        }
        let addresses = name.to_socket_addrs().map_err(|source| match source.kind() {
            io::ErrorKind::InvalidInput => Failure::Usage(format!("--server {name}: {source}; write HOST:PORT, or a path with a slash in it")),
            _ => Failure::Io { action: format!("find {name}"), source },
        })?;
        // A name may have several addresses, and a server listen on one of them only.
        let mut outcome = Err(io::ErrorKind::AddrNotAvailable.into());
        for address in addresses {
            outcome = Server::connect(address, password.as_deref());
            if outcome.is_ok() {
                break;
            }
        }
        outcome.map_err(|source| {
            let refused = source.kind() == io::ErrorKind::ConnectionRefused;
            let advice = if refused { " (start a server with `everleaf serve`, or name another with --server)" } else { "" };
            Failure::Io { action: format!("ask {name}{advice}"), source }
        })
    }

    /// Refuses these options where no server is used.
    pub(crate) fn expect_none(&self, without: &str) -> Result<(), Failure> {
        match (&self.server, &self.password_file) {
            (None, None) => Ok(()),
            _ => Err(Failure::Usage(format!("no server is asked without {without}: leave --server and --password-file out, or add it"))),
        }
    }
}

/// A connection to a server.
pub(crate) struct Server {
    address: String,
    stream: BufReader<Box<dyn Stream>>,
}

trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

impl Server {
    fn connect(address: SocketAddr, password: Option<&[u8]>) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Self::over(Box::new(stream), address.to_string(), password)
    }

    fn at(path: &Path, password: Option<&[u8]>) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Self::over(Box::new(stream), path.display().to_string(), password)
    }

    fn over(stream: Box<dyn Stream>, address: String, password: Option<&[u8]>) -> io::Result<Self> {
        let mut server = Self { address, stream: BufReader::new(stream) };
        if let Some(password) = password {
            server.call(&[b"AUTH", password])?;
        }
        Ok(server)
    }

    /// Returns the fields of INFO.
    ///
    /// # Errors
    /// It does not answer, or is no Everleaf server: another lacks the fields that are needed, or gives them another meaning.
    pub(crate) fn info(&mut self) -> Result<Info, Failure> {
        let text = self.ask(&[b"INFO"])?;
        let field = |line: &str| line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        let info = Info(text.lines().filter_map(field).collect());
        if info.field("everleaf_version").is_none() {
            let source = io::Error::other("this is no Everleaf server, its INFO names no everleaf_version; choose another with --server");
            return Err(Failure::Io { action: format!("ask {}", self.address), source });
        }
        Ok(info)
    }

    /// Sends a command, and returns the status or the bulk string in reply.
    pub(crate) fn ask(&mut self, words: &[&[u8]]) -> Result<String, Failure> {
        self.call(words).map_err(|source| Failure::Io { action: format!("ask {}", self.address), source })
    }

    fn call(&mut self, words: &[&[u8]]) -> io::Result<String> {
        let mut command = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            command.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            command.extend_from_slice(word);
            command.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&command)?;
        let mut line = String::new();
        self.stream.by_ref().take(LINE_MAX).read_line(&mut line)?;
        let strange = |what: &str| io::Error::other(format!("the server says {:?}", what.trim_end()));
        match line.split_at_checked(1) {
            Some(("+", status)) => Ok(status.trim_end().to_owned()),
            Some(("$", size)) => {
                let size: u64 = size.trim_end().parse().map_err(|_| strange(&line))?;
                let mut text = Vec::new();
                self.stream.by_ref().take(size.saturating_add(2)).read_to_end(&mut text)?;
                String::from_utf8(text).map_err(|_| strange("what is no text"))
            }
            _ if line.starts_with("-NOAUTH") => Err(io::Error::other("the server wants a password: name the file that holds it by --password-file")),
            _ => Err(strange(&line)),
        }
    }
}

/// The fields of INFO.
pub(crate) struct Info(BTreeMap<String, String>);

impl Info {
    /// A number; 0 if there is no such field.
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.0.get(name).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// A field, if it exists.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All fields: name and value.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&String, &String)> {
        self.0.iter()
    }
}
