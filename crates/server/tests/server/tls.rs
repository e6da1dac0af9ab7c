//! Ports with TLS.

use crate::info::number;
use crate::peer::{Client, Running, encode};
use everleaf::{Domain, Options};
use everleaf_server::{Config, Limits, Listener, Tls};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// An authority, and a directory for what it signs.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
    directory: tempfile::TempDir,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // With the same name as what it signs, that would look signed by itself.
        params.distinguished_name.push(DnType::CommonName, "authority");
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("ca.pem"), certificate.pem()).unwrap();
        Self { issuer: Issuer::new(params, key), certificate, directory }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A certificate for `localhost` and its key.
    fn sign(&self) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        (CertificateParams::new(["localhost".into()]).unwrap().signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// Ports with a new certificate, in a file that has the authority's, too.
    fn tls(&self) -> Tls {
        let (certificate, key) = self.sign();
        fs::write(self.path("cert.pem"), certificate.pem() + &self.certificate.pem()).unwrap();
        fs::write(self.path("key.pem"), key.serialize_pem()).unwrap();
        Tls { port: Some(0), memcached_port: Some(0), certificate: self.path("cert.pem"), key: self.path("key.pem"), authority: None }
    }

    pub(crate) fn config(&self) -> Config {
        Config { tls: Some(self.tls()), threads: 2, ..Config::default() }
    }

    /// What a client needs that trusts this authority, and shows `own`.
    fn client(&self, version: &'static SupportedProtocolVersion, own: Option<(rcgen::Certificate, KeyPair)>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap().with_root_certificates(roots);
        Arc::new(match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
                builder.with_client_auth_cert(vec![certificate.der().clone()], key).unwrap()
            }
        })
    }

    fn connect(&self, address: Option<SocketAddr>) -> StreamOwned<ClientConnection, TcpStream> {
        connect(address, self.client(&TLS13, None))
    }
}

fn connect(address: Option<SocketAddr>, config: Arc<ClientConfig>) -> StreamOwned<ClientConnection, TcpStream> {
    let session = ClientConnection::new(config, ServerName::try_from("localhost").unwrap()).unwrap();
    StreamOwned::new(session, Client::connect(address.unwrap()).socket)
}

trait Talk: Read + Write {
    #[track_caller]
    fn says(&mut self, sent: &[u8], expected: &[u8]) {
        self.write_all(sent).unwrap();
        self.expect(expected);
    }

    #[track_caller]
    fn expect(&mut self, expected: &[u8]) {
        let mut got = vec![0; expected.len()];
        self.read_exact(&mut got).unwrap();
        assert!(got == expected, "{}", String::from_utf8_lossy(&got[..got.len().min(300)]));
    }

    /// Everything up to a close_notify: without that, reading fails.
    #[track_caller]
    fn rest(&mut self) -> Vec<u8> {
        let mut got = Vec::new();
        self.read_to_end(&mut got).expect("the server says that nothing follows");
        got
    }
}

impl Talk for StreamOwned<ClientConnection, TcpStream> {}

/// A value, and the reply with it.
fn value(size: usize) -> (Vec<u8>, Vec<u8>) {
    (vec![b'v'; size], [format!("${size}\r\n").as_bytes(), &vec![b'v'; size], b"\r\n"].concat())
}

#[test]
fn both_protocols_and_both_versions() {
    let authority = Authority::new();
    let server = Running::with(authority.config());
    for version in [&TLS12, &TLS13] {
        let mut client = connect(server.tls, authority.client(version, None));
        client.says(&encode(&[b"SET", b"k", b"v"]), b"+OK\r\n");
        client.says(b"GET k\r\n", b"$1\r\nv\r\n");
        assert_eq!(client.conn.protocol_version(), Some(version.version));
        client.says(b"QUIT\r\n", b"+OK\r\n");
        assert_eq!(client.rest(), b"");
        let mut client = connect(server.memcached_tls, authority.client(version, None));
        client.says(b"set k 0 0 1\r\nw\r\nget k\r\n", b"STORED\r\nVALUE k 0 1\r\nw\r\nEND\r\n");
        client.write_all(b"quit\r\n").unwrap();
        assert_eq!(client.rest(), b"");
    }
    let mut client = server.client();
    client.says("GET k", "$1\r\nv\r\n");
    let info = String::from_utf8(client.call(&[b"INFO", b"server"])).unwrap();
    assert!(info.contains(&format!("\r\nlistener2:name=tls,bind=127.0.0.1,port={}\r\n", server.tls.unwrap().port())), "{info}");
    let mut client = authority.connect(server.tls);
    client.write_all(b"CLIENT INFO\r\n").unwrap();
    let mut line = [0; 300];
    let size = client.read(&mut line).unwrap();
    let address = format!(" addr={} laddr={} ", client.sock.local_addr().unwrap(), server.tls.unwrap());
    assert!(String::from_utf8_lossy(&line[..size]).contains(&address));
}

/// What a session has decrypted is reported by no event: commands beyond a full buffer were to wait for the next ones.
#[test]
fn a_client_that_sends_much_at_once_need_not_send_more() {
    let authority = Authority::new();
    let server = Running::with(Config { threads: 1, ..authority.config() });
    let mut client = authority.connect(server.tls);
    client.says(b"PING\r\n", b"+PONG\r\n");
    for count in [1, 100, 5461, 5462, 10_000, 100_000] {
        client.says(&b"PING\r\n".repeat(count), &b"+PONG\r\n".repeat(count));
    }
    let (large, reply) = value(20_000_000);
    client.says(&encode(&[b"SET", b"k", &large]), b"+OK\r\n");
    client.says(b"GET k\r\n", &reply);
}

/// Also records of a few bytes, and bytes one by one, from the handshake on.
#[test]
fn records_come_as_they_may() {
    let authority = Authority::new();
    let server = Running::with(authority.config());
    for version in [&TLS12, &TLS13] {
        let mut config = Arc::unwrap_or_clone(authority.client(version, None));
        config.max_fragment_size = Some(32);
        let mut client = connect(server.tls, Arc::new(config));
        client.says(&encode(&[b"ECHO", &[b'x'; 10_000]]), &[b"$10000\r\n", &[b'x'; 10_000][..], b"\r\n"].concat());

        let mut session = ClientConnection::new(authority.client(version, None), ServerName::try_from("localhost").unwrap()).unwrap();
        let mut socket = Client::connect(server.tls.unwrap()).socket;
        session.writer().write_all(b"PING\r\n").unwrap();
        let mut got = Vec::new();
        while got != b"+PONG\r\n" {
            let mut bytes = Vec::new();
            while session.wants_write() {
                session.write_tls(&mut bytes).unwrap();
            }
            bytes.iter().for_each(|byte| socket.write_all(&[*byte]).unwrap());
            session.read_tls(&mut socket).unwrap();
            session.process_new_packets().unwrap();
            let mut piece = [0; 16];
            match session.reader().read(&mut piece) {
                Ok(size) => got.extend_from_slice(&piece[..size]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }
}

/// A pipeline is sent before the first reply is read.
#[test]
fn a_hundred_megabytes_fit_through_tls() {
    const SIZE: usize = 100_000;
    let authority = Authority::new();
    let server = Running::with(authority.config());
    let (value, reply) = value(SIZE);
    for version in [&TLS12, &TLS13] {
        let mut client = connect(server.tls, authority.client(version, None));
        client.says(&encode(&[b"SET", b"k", &value]), b"+OK\r\n");
        client.write_all(&encode(&[b"GET", b"k"]).repeat(1000)).unwrap();
        // Others are served while replies wait.
        server.client().says("PING", "+PONG\r\n");
        for _ in 0..1000 {
            client.expect(&reply);
        }
    }
}

/// Replies to commands that are run together are made while others wait to be taken by the socket.
#[test]
fn commands_that_wait_for_a_device_are_answered_in_order() {
    let authority = Authority::new();
    let server = Running::over(Options { domain: Some(Domain::Msync), ..Options::default() }, authority.config());
    let (value, reply) = value(30_000);
    let clients: Vec<_> = (0..4)
        .map(|number| {
            let (mut client, value, reply) = (authority.connect(server.tls), value.clone(), reply.clone());
            thread::spawn(move || {
                let key = format!("k{number}");
                let set = encode(&[b"SET", key.as_bytes(), &value]);
                let (get, delete) = (encode(&[b"GET", key.as_bytes()]), encode(&[b"DEL", key.as_bytes()]));
                client.write_all(&[&set[..], &get, &get, &delete, &get].concat().repeat(50)).unwrap();
                (0..50).for_each(|_| client.expect(&[b"+OK\r\n", &reply[..], &reply, b":1\r\n$-1\r\n"].concat()));
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
}

/// With close_notify or without, with the end of the TCP stream or without, alone or together with commands.
#[test]
fn a_client_that_has_said_all_is_told_all() {
    let authority = Authority::new();
    let server = Running::with(authority.config());
    let (value, reply) = value(1_000_000);
    authority.connect(server.tls).says(&encode(&[b"SET", b"k", &value]), b"+OK\r\n");
    for (notify, shutdown) in [(true, false), (true, true), (false, true)] {
        for count in [1, 20] {
            let mut client = authority.connect(server.tls);
            client.says(b"PING\r\n", b"+PONG\r\n");
            client.conn.writer().write_all(&encode(&[b"GET", b"k"]).repeat(count)).unwrap();
            if notify {
                client.conn.send_close_notify();
            }
            let mut bytes = Vec::new();
            while client.conn.wants_write() {
                client.conn.write_tls(&mut bytes).unwrap();
            }
            client.sock.write_all(&bytes).unwrap();
            if shutdown {
                client.sock.shutdown(Shutdown::Write).unwrap();
            }
            assert!(client.rest() == reply.repeat(count), "{notify} {shutdown} {count}");
        }
    }
}

#[test]
fn a_stop_delivers_the_replies_through_tls() {
    let authority = Authority::new();
    let server = Running::with(Config { threads: 1, stop_patience: Duration::from_secs(60), ..authority.config() });
    let (value, reply) = value(10_000_000);
    let mut client = authority.connect(server.tls);
    client.says(&encode(&[b"SET", b"k", &value]), b"+OK\r\n");
    // One that never begins its handshake, and one in the middle of it, are not waited for.
    let (_silent, mut slow) = (TcpStream::connect(server.tls.unwrap()).unwrap(), TcpStream::connect(server.tls.unwrap()).unwrap());
    slow.write_all(&[0x16, 3, 1, 2]).unwrap();
    client.write_all(b"GET k\r\n").unwrap();
    client.expect(&reply[..10]);
    server.stop.stop();
    assert!([&reply[..10], &client.rest()].concat() == reply);
    server.wait().unwrap();
}

#[test]
fn a_client_without_a_certificate_that_is_wanted_gets_nothing() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let tls = Tls { authority: Some(authority.path("ca.pem")), ..authority.tls() };
    let server = Running::with(Config { tls: Some(tls), threads: 2, ..Config::default() });
    for version in [&TLS12, &TLS13] {
        for address in [server.tls, server.memcached_tls] {
            for own in [None, Some(stranger.sign())] {
                let mut client = connect(address, authority.client(version, own));
                // It may not know yet that it is refused.
                let _ = client.write_all(b"set k 0 0 1\r\nv\r\nSET k v\r\n");
                assert!(client.read(&mut [0; 1]).is_err());
            }
        }
        connect(server.tls, authority.client(version, Some(authority.sign()))).says(b"EXISTS k\r\n", b":0\r\n");
        connect(server.memcached_tls, authority.client(version, Some(authority.sign()))).says(b"get k\r\n", b"END\r\n");
    }
    assert_eq!(number(&mut server.client(), "failed_tls_handshakes"), 8);
}

/// It gets an alert, which is a record of kind 21, and the end.
#[test]
fn a_client_without_tls_is_turned_away() {
    let authority = Authority::new();
    let server = Running::with(authority.config());
    for address in [server.tls, server.memcached_tls] {
        for text in [&b"SET k v\r\n"[..], b"*1\r\n$4\r\nPING\r\n", b"\x16\x03\x01\xff\xff", &[0; 5]] {
            let mut client = Client::connect(address.unwrap());
            client.send(text);
            let told = client.read_to_end();
            assert!(told.len() == 7 && told[0] == 21, "{text:?}: {told:?}");
        }
    }
    authority.connect(server.tls).says(b"EXISTS k\r\n", b":0\r\n");
}

#[test]
fn a_handshake_has_its_time() {
    let authority = Authority::new();
    let server = Running::with(Config { handshake_patience: Duration::ZERO, ..authority.config() });
    for bytes in [&b""[..], &[0x16, 3, 1, 2, 0, 1]] {
        let mut client = Client::connect(server.tls.unwrap());
        // It may be gone already.
        let _ = client.socket.write_all(bytes);
        assert_eq!(client.read_to_end(), b"");
    }
    assert_eq!(number(&mut server.client(), "failed_tls_handshakes"), 2);
}

#[test]
fn one_client_too_many_is_closed() {
    let authority = Authority::new();
    let server = Running::with(Config { limits: Limits { connection_count_max: 1, ..Limits::default() }, ..authority.config() });
    let mut client = authority.connect(server.tls);
    client.says(b"PING\r\n", b"+PONG\r\n");
    assert!(authority.connect(server.tls).write_all(b"PING\r\n").is_err());
    client.says(b"PING\r\n", b"+PONG\r\n");
}

#[test]
fn files_that_do_not_fit_are_named() {
    let authority = Authority::new();
    let good = Tls { authority: Some(authority.path("ca.pem")), ..authority.tls() };
    let refusal = |tls: &Tls| Listener::bind(&Config { port: None, tls: Some(tls.clone()), ..Config::default() }).err().map(|error| error.to_string());
    assert_eq!(refusal(&good), None);
    let write = |name: &str, text: &str| {
        fs::write(authority.path(name), text).unwrap();
        authority.path(name)
    };
    let (_, other_key) = authority.sign();
    let other_key = write("other.pem", &other_key.serialize_pem());
    let broken = write("broken.pem", "-----BEGIN CERTIFICATE-----\nno base64!\n-----END CERTIFICATE-----\n");
    let strange = write("strange.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let locked = write("locked.pem", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n");
    let (empty, absent, directory) = (write("empty.pem", ""), authority.path("absent.pem"), authority.directory.path().to_owned());
    #[track_caller]
    fn expect(refused: Option<String>, path: &Path, why: &str) {
        let refused = refused.expect("it is refused");
        assert!(refused.contains(&path.display().to_string()) && refused.contains(why), "{refused}");
    }
    for (path, why) in [(&absent, "cannot be read"), (&directory, "cannot be read"), (&empty, "there is none"), (&broken, "no certificate that can be used")] {
        expect(refusal(&Tls { certificate: path.clone(), ..good.clone() }), path, why);
        expect(refusal(&Tls { authority: Some(path.clone()), ..good.clone() }), path, why);
    }
    for (path, why) in [(&absent, "cannot be read"), (&empty, "no private key"), (&good.certificate, "no private key"), (&locked, "no private key")] {
        expect(refusal(&Tls { key: path.clone(), ..good.clone() }), path, why);
    }
    expect(refusal(&Tls { certificate: strange.clone(), ..good.clone() }), &strange, "cannot be used");
    expect(refusal(&Tls { authority: Some(strange.clone()), ..good.clone() }), &strange, "no authority");
    expect(refusal(&Tls { key: other_key.clone(), ..good.clone() }), &other_key, "does not go with the key");
}

/// A renewed certificate is shown to new clients; files that do not go together, as while they are replaced, change nothing.
#[test]
fn a_new_certificate_needs_no_restart() {
    static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let authority = Authority::new();
    let config = Config { log: |line| LOGGED.lock().unwrap().push(line.into()), ..authority.config() };
    let server = Running::with(config);
    let shown = |client: &StreamOwned<ClientConnection, TcpStream>| client.conn.peer_certificates().unwrap()[0].to_vec();
    let mut first = authority.connect(server.tls);
    first.says(b"PING\r\n", b"+PONG\r\n");
    let former = shown(&first);
    for round in 0..2 {
        fs::write(authority.path("key.pem"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
        while LOGGED.lock().unwrap().len() == round {
            let mut client = authority.connect(server.tls);
            client.says(b"PING\r\n", b"+PONG\r\n");
            assert_eq!(shown(&client), former);
            thread::sleep(Duration::from_millis(20));
        }
    }
    let logged = LOGGED.lock().unwrap().clone();
    assert!(logged.iter().all(|line| line.contains("does not go with the key") && line.contains("former certificate")), "{logged:?}");
    // A pipe, from which nothing would come.
    LOGGED.lock().unwrap().clear();
    fs::remove_file(authority.path("cert.pem")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(authority.path("cert.pem")).status().unwrap().success());
    while LOGGED.lock().unwrap().is_empty() {
        authority.connect(server.tls).says(b"PING\r\n", b"+PONG\r\n");
        thread::sleep(Duration::from_millis(20));
    }
    assert!(LOGGED.lock().unwrap()[0].contains("not a regular file"));
    fs::remove_file(authority.path("cert.pem")).unwrap();
    authority.tls();
    loop {
        let mut client = authority.connect(server.tls);
        client.says(b"PING\r\n", b"+PONG\r\n");
        if shown(&client) != former {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    first.says(b"PING\r\n", b"+PONG\r\n");
    assert!(LOGGED.lock().unwrap().last().unwrap().contains("begin with the new certificate"));
}
