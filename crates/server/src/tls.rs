//! TLS: a session of rustls over a TCP socket that does not block.
//!
//! It guarantees:
//!
//! 1. *Nothing but TLS 1.2 and 1.3 passes*, with a certificate of the client if an authority for these is configured. Bytes of a client are commands only after
//!    its handshake, and no early data are accepted, which could be replayed. A client that breaks the protocol, or does not speak it at all, gets an alert,
//!    and its connection ends.
//! 2. *Readiness is that of the socket.* The poll reports edges of the TCP socket only, but bytes may also wait inside the session, decrypted, and nothing
//!    would ever report these. So [`Session::read`] goes on until it has filled the buffer, or has emptied both the socket and the session: as with TCP, a
//!    short read says that the next edge will be reported, and a full one that there may be more. [`Session::has_more`] tells what a short read leaves, such as
//!    the end.
//! 3. *What was written is with the system.* [`Session::write`] encrypts a piece of the replies, and counts it as written when the socket has taken all records
//!    of it. Until then it would block, exactly as long as the socket does, and is to be called again with bytes that begin with the same ones. So a connection
//!    whose replies are all written can be closed, and a client that takes none costs no more than a piece.
//! 4. *Memory is bounded*: the records of a piece of replies ([`PIECE_SIZE_MAX`]), and of input one record (16 KiB), or 64 KiB during the handshake. An idle
//!    session keeps room for 4 KiB of input.
//! 5. *The client hears of the end*: a close_notify is sent when the connection is closed, unless the socket takes nothing more. Nobody waits for that, as
//!    replies say where they end.
//!
//! What the session itself has to say (the handshake, tickets, new keys, alerts) is sent while reading, and the rest by [`Session::flush`] as soon as the
//! socket takes more.

use crate::config::Tls;
use crate::server::Error;
use mio::net::TcpStream;
use parking_lot::Mutex;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of replies that are encrypted together: four records, which one call hands to the system.
const PIECE_SIZE_MAX: usize = 64 * 1024;
/// Pieces of input that one read takes at most, for fairness to others: a client may send records without content, as many as it likes.
const RECEIVE_COUNT_MAX: usize = 1024;

/// A session, and the socket below it.
pub(crate) struct Session {
    pub(crate) socket: TcpStream,
    tls: ServerConnection,
    /// Bytes of replies in records that the socket has not taken yet.
    promised: usize,
    /// See [`Session::has_more`].
    has_more: bool,
    /// Whether the client has broken the protocol.
    has_failed: bool,
}

impl Session {
    pub(crate) fn new(socket: TcpStream, config: Arc<ServerConfig>) -> io::Result<Self> {
        let mut tls = ServerConnection::new(config).map_err(io::Error::other)?;
        tls.set_buffer_limit(Some(PIECE_SIZE_MAX));
        Ok(Self { socket, tls, promised: 0, has_more: false, has_failed: false })
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Whether the last read, though short, has left something that no edge reports: the end, a failure, or more records without content.
    pub(crate) fn has_more(&self) -> bool {
        self.has_more
    }

    /// See the head of this module. An end without close_notify is an end like others: commands say where they end.
    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let (mut size, mut is_empty) = (0, false);
        self.has_more = false;
        for _ in 0..RECEIVE_COUNT_MAX {
            while size < bytes.len() {
                match self.tls.reader().read(&mut bytes[size..]) {
                    Ok(more @ 1..) => size += more,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Ok(0) | Err(_) => {
                        self.has_more = size > 0;
                        return Ok(size);
                    }
                }
            }
            // A read that returns nothing must have heard from the socket itself that there is nothing.
            if size == bytes.len() || (is_empty && size > 0) {
                return Ok(size);
            }
            match self.receive() {
                Ok(now) => is_empty = now,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if size == 0 => return Err(error),
                Err(error) => {
                    self.has_more = error.kind() != ErrorKind::WouldBlock;
                    return Ok(size);
                }
            }
        }
        // Others wait for their turns.
        self.has_more = true;
        if size > 0 { Ok(size) } else { Err(ErrorKind::Interrupted.into()) }
    }

    /// Reads some bytes from the socket, and decrypts the records that are complete. Returns whether the socket is empty now.
    fn receive(&mut self) -> io::Result<bool> {
        if self.has_failed {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        let mut source = Emptied { socket: &mut self.socket, is_empty: false };
        self.tls.read_tls(&mut source)?;
        let is_empty = source.is_empty;
        let outcome = self.tls.process_new_packets();
        self.has_failed = outcome.is_err();
        // The alert that goes with a failure, too. What the socket does not take now is flushed later; if it is broken, the next read says so.
        let _ = self.flush();
        outcome.map(|_| is_empty).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
    }

    /// See the head of this module.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.flush()?;
        // Nothing is answered before. A client that is turned away has not asked for the reason.
        if self.is_handshaking() {
            return Err(ErrorKind::WouldBlock.into());
        }
        if self.promised == 0 {
            self.promised = self.tls.writer().write(bytes)?;
            self.flush()?;
        }
        assert!(self.promised <= bytes.len(), "bytes were encrypted that are no longer to be written");
        Ok(std::mem::take(&mut self.promised))
    }

    /// Hands all records to the socket.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Tells the client that nothing follows.
    pub(crate) fn end_writing(&mut self) -> io::Result<()> {
        self.tls.send_close_notify();
        let _ = self.flush();
        self.socket.shutdown(Shutdown::Write)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_handshaking() {
            self.tls.send_close_notify();
            let _ = self.flush();
        }
    }
}

/// Notes whether a read has emptied the socket, so that it need not be asked again.
struct Emptied<'a> {
    socket: &'a mut TcpStream,
    is_empty: bool,
}

impl Read for Emptied<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let size = self.socket.read(bytes)?;
        self.is_empty = size < bytes.len();
        Ok(size)
    }
}

/// What sessions begin with. Its files are read again when they have changed: certificates are renewed every few weeks, and nobody should have to restart the
/// server for that. Sessions that have begun go on as they are.
pub(crate) struct Credentials {
    files: Tls,
    log: fn(&str),
    current: Mutex<Current>,
}

struct Current {
    config: Arc<ServerConfig>,
    /// The files that it was made of.
    stamps: Vec<Stamp>,
    /// Those that could not be used since, and why.
    failed: Option<(Vec<Stamp>, String)>,
    /// When they were looked at last.
    looked: Instant,
}

/// Device, number, size, and time of the last change of a file; `None` if there is none, or something else: reading a pipe may take for ever.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// How long files are believed to be as they were.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

impl Credentials {
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn new(tls: &Tls, log: fn(&str)) -> Result<Self, Error> {
        // In this order: what changes meanwhile is read again.
        let (looked, stamps) = (Instant::now(), stamps(tls));
        Ok(Self { current: Mutex::new(Current { config: load(tls)?, stamps, failed: None, looked }), files: tls.clone(), log })
    }

    /// For the next session.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        let mut current = self.current.lock();
        if current.looked.elapsed() >= LOOK_INTERVAL {
            current.looked = Instant::now();
            let stamps = stamps(&self.files);
            if stamps == current.stamps {
                current.failed = None;
            } else {
                match reload(&self.files, &stamps) {
                    Ok(config) => {
                        (self.log)(&format!("sessions begin with the new certificate in {}", self.files.certificate.display()));
                        *current = Current { config, stamps, failed: None, looked: current.looked };
                    }
                    // Perhaps only some of them have been replaced so far, or the system had no room: it is tried again, but said once.
                    Err(error) => {
                        let failed = Some((stamps, error.to_string()));
                        if current.failed != failed {
                            (self.log)(&format!("{error}; sessions begin with the former certificate until that is mended"));
                            current.failed = failed;
                        }
                    }
                }
            }
        }
        current.config.clone()
    }
}

fn paths(tls: &Tls) -> impl Iterator<Item = &PathBuf> {
    [&tls.certificate, &tls.key].into_iter().chain(&tls.authority)
}

fn stamps(tls: &Tls) -> Vec<Stamp> {
    let stamp = |path| {
        let found = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        Some((found.dev(), found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
    };
    paths(tls).map(stamp).collect()
}

/// [`load`], unless a file is none.
fn reload(tls: &Tls, stamps: &[Stamp]) -> Result<Arc<ServerConfig>, Error> {
    match paths(tls).zip(stamps).find(|(_, stamp)| stamp.is_none()) {
        Some((path, _)) => Err(Error::Tls { path: path.clone(), what: "is missing, or not a regular file".into() }),
        None => load(tls),
    }
}

/// Reads the files that `tls` names, and checks that they fit together.
///
/// # Errors
/// One of them cannot be used.
fn load(tls: &Tls) -> Result<Arc<ServerConfig>, Error> {
    let provider = Arc::new(ring::default_provider());
    let fail = |path: &Path, what: String| Error::Tls { path: path.to_owned(), what };
    let chain = certificates(&tls.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&contents(&tls.key)?)
        .map_err(|error| fail(&tls.key, format!("holds no private key that can be used ({error}); give one in PEM, without a passphrase")))?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| fail(&tls.certificate, error.to_string()))?;
    let builder = match &tls.authority {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| fail(path, format!("holds what is no authority ({error}); give those that sign for clients")))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| fail(path, error.to_string()))?)
        }
    };
    let config = builder.with_single_cert(chain, key);
    config.map(Arc::new).map_err(|error| {
        let what = match error {
            rustls::Error::InconsistentKeys(_) => {
                format!("does not go with the key in {} ({error}); give a certificate and the key that it was made for", tls.key.display())
            }
            error => format!("holds a certificate that cannot be used ({error}); give one of version 3"),
        };
        fail(&tls.certificate, what)
    })
}

/// The certificates in a file, at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found = CertificateDer::pem_slice_iter(&contents(path)?).collect::<Result<Vec<_>, _>>();
    let why = match found {
        Ok(found) if !found.is_empty() => return Ok(found),
        Ok(_) => "there is none".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(Error::Tls { path: path.to_owned(), what: format!("holds no certificate that can be used ({why}); give one or more in PEM") })
}

fn contents(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|error| Error::Tls { path: path.to_owned(), what: format!("cannot be read: {error}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, StreamOwned};
    use socket2::SockRef;
    use std::net;
    use std::thread;

    /// Who closes a connection whose replies are written must not lose a part of them.
    #[test]
    fn what_the_socket_has_not_taken_is_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
        let (certificate, key) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
        fs::write(&certificate, made.cert.pem()).unwrap();
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let config = load(&Tls { certificate, key, ..Tls::default() }).unwrap();

        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider())).with_safe_default_protocol_versions().unwrap();
        let client = Arc::new(builder.with_root_certificates(roots).with_no_client_auth());
        let client = ClientConnection::new(client, ServerName::try_from("localhost").unwrap()).unwrap();
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = StreamOwned::new(client, net::TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        SockRef::from(&socket).set_send_buffer_size(4096).unwrap();
        let mut session = Session::new(TcpStream::from_std(socket), config).unwrap();
        assert_eq!(session.write(b"early").map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));

        let greeting = thread::spawn(move || client.write_all(b"x").map(|()| client));
        while !matches!(session.read(&mut [0; 10]), Ok(1)) {
            session.flush().unwrap();
            thread::yield_now();
        }
        let mut client = greeting.join().unwrap().unwrap();
        // More than the sockets buffer.
        let bytes = vec![b'v'; 64 << 20];
        let mut written = 0;
        let blocked = loop {
            match session.write(&bytes[written..]) {
                Ok(size) => written += size,
                Err(error) => break error,
            }
        };
        assert_eq!(blocked.kind(), ErrorKind::WouldBlock);
        session.socket.shutdown(Shutdown::Write).unwrap();
        let (mut got, mut piece) = (0, [0; 16 * 1024]);
        while let Ok(size @ 1..) = client.read(&mut piece) {
            got += size;
        }
        assert!((written..written + PIECE_SIZE_MAX).contains(&got), "{written} bytes were written, {got} have come");
    }
}
