//! Unix sockets, and the files that they leave.

use crate::peer::{Running, encode, skipped};
use everleaf::{Options, Store};
use everleaf_server::{Config, Listener, Server};
use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

fn at(path: &Path) -> Config {
    Config { unix_socket: Some(path.to_owned()), threads: 2, ..Config::default() }
}

fn connect(path: &Path) -> UnixStream {
    let client = UnixStream::connect(path).unwrap();
    // A lost reply should fail a test, not hang it.
    client.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    client
}

/// All that a client is told that sends `bytes` and nothing more.
fn answer(path: &Path, bytes: &[u8]) -> Vec<u8> {
    let mut client = connect(path);
    client.write_all(bytes).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut replies = Vec::new();
    client.read_to_end(&mut replies).unwrap();
    replies
}

/// Why no server can listen at a path.
fn refusal(path: &Path) -> String {
    let refused = Listener::bind(&Config { port: None, ..at(path) }).err().expect("it cannot listen there").to_string();
    assert!(refused.contains(&path.display().to_string()), "{refused}");
    refused
}

#[test]
fn a_client_of_a_unix_socket_is_one_like_others() {
    let directory = tempfile::tempdir().unwrap();
    let (path, items) = (directory.path().join("redis.sock"), directory.path().join("memcached.sock"));
    let server = Running::with(Config { memcached_unix_socket: Some(items.clone()), ..at(&path) });
    assert_eq!(answer(&path, &[encode(&[b"SET", b"k", b"v"]), encode(&[b"GET", b"k"])].concat()), b"+OK\r\n$1\r\nv\r\n");
    assert_eq!(answer(&items, b"set k 1 0 1\r\nv\r\nget k\r\n"), b"STORED\r\nVALUE k 1 1\r\nv\r\nEND\r\n");

    let address = format!("{}:0", path.display());
    let list = String::from_utf8(answer(&path, b"CLIENT LIST\r\n")).unwrap();
    assert!(list.contains(&format!(" addr={address} laddr={address} ")) && list.contains(" flags=U "), "{list}");
    let info = String::from_utf8(answer(&path, b"INFO server\r\n")).unwrap();
    assert!(info.contains(&format!("\r\nlistener1:name=unix,bind={}\r\n", path.display())), "{info}");
    let name = path.to_str().unwrap();
    let expected = [encode(&[b"unixsocket", name.as_bytes()]), encode(&[b"unixsocketperm", b"700"])].map(|reply| reply[4..].to_vec()).concat();
    assert_eq!(answer(&path, b"CONFIG GET unixsocket unixsocketperm\r\n"), [b"*4\r\n", &expected[..]].concat());

    let (mut killed, mut client) = (connect(&path), server.client());
    killed.write_all(b"MULTI\r\n").unwrap();
    killed.read_exact(&mut [0; 5]).unwrap();
    assert!(String::from_utf8(client.call(&[b"CLIENT", b"LIST"])).unwrap().contains(" flags=xU "));
    client.says(&format!("CLIENT KILL ADDR {address}"), ":1\r\n");
    assert_eq!(killed.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_server_may_have_nothing_but_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("redis.sock");
    let store = Arc::new(Store::anonymous(Options { size_max: 64 << 20, ..Options::default() }).unwrap());
    let server = Server::bind(Config { port: None, ..at(&path) }, store).unwrap();
    assert_eq!((server.local_addr(), server.tls_addr(), server.memcached_addr(), server.memcached_tls_addr()), (None, None, None, None));
    let running = thread::spawn(move || server.run());
    let info = String::from_utf8(answer(&path, b"INFO server\r\n")).unwrap();
    assert!(info.contains("\r\ntcp_port:0\r\n") && !info.contains("listener0"), "{info}");
    assert_eq!(answer(&path, b"SHUTDOWN\r\n"), b"");
    running.join().unwrap().unwrap();
    assert!(!path.exists(), "the socket goes with its server");
}

/// A pipeline is sent before the first reply is read; the replies are more than sockets buffer.
#[test]
fn a_hundred_megabytes_fit_through_a_unix_socket() {
    const SIZE: usize = 100_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("redis.sock");
    let _server = Running::with(at(&path));
    answer(&path, &encode(&[b"SET", b"k", &[b'v'; SIZE]]));
    let replies = answer(&path, &encode(&[b"GET", b"k"]).repeat(1000));
    let one = [format!("${SIZE}\r\n").as_bytes(), &[b'v'; SIZE], b"\r\n"].concat();
    assert!(replies.len() == 1000 * one.len() && replies.chunks(one.len()).all(|reply| reply == one));
}

#[test]
fn a_socket_has_its_permissions_and_goes_with_its_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("redis.sock");
    for mode in [Config::default().unix_socket_mode, 0o777, 0o600] {
        let server = Running::with(Config { unix_socket_mode: mode, ..at(&path) });
        let found = fs::symlink_metadata(&path).unwrap();
        assert!(found.file_type().is_socket() && found.permissions().mode() & 0o7777 == mode, "{found:?}");
        drop(server);
        assert!(!path.exists());
    }
    // Without a server, too, whose pool cannot be opened, say.
    drop(Listener::bind(&Config { port: None, ..at(&path) }).unwrap());
    assert!(!path.exists());
    let server = Running::with(at(&path));
    fs::remove_file(&path).unwrap();
    fs::write(&path, "somebody else's").unwrap();
    drop(server);
    assert_eq!(fs::read(&path).unwrap(), b"somebody else's");
}

#[test]
fn only_a_dead_socket_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    // As a server leaves it that was killed: the library does not remove it.
    drop(UnixListener::bind(path("dead")).unwrap());
    assert!(path("dead").exists());
    let _server = Running::with(at(&path("dead")));
    assert_eq!(answer(&path("dead"), b"PING\r\n"), b"+PONG\r\n");
    assert!(refusal(&path("dead")).contains("a server listens there"));
    assert_eq!(answer(&path("dead"), b"PING\r\n"), b"+PONG\r\n");

    fs::write(path("file"), "kept").unwrap();
    fs::create_dir(path("directory")).unwrap();
    drop(UnixListener::bind(path("other")).unwrap());
    std::os::unix::fs::symlink(path("other"), path("link")).unwrap();
    for name in ["file", "directory", "link"] {
        assert!(refusal(&path(name)).contains("no socket"), "{name}");
    }
    assert_eq!(fs::read(path("file")).unwrap(), b"kept");
    assert!(path("directory").is_dir() && path("link").is_symlink() && path("other").exists());
    assert!(refusal(&path("absent").join("redis.sock")).contains("a directory that exists"));
}

#[test]
fn a_path_that_is_too_long_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let of_size = |size: usize| {
        let room = size.checked_sub(directory.path().as_os_str().len() + 1)?;
        Some(directory.path().join("x".repeat(room))).filter(|path: &PathBuf| path.as_os_str().len() == size)
    };
    let (Some(longest), Some(too_long)) = (of_size(107), of_size(108)) else {
        skipped(format_args!("the directory for temporary files has a name of more than 100 bytes"));
        return;
    };
    assert!(refusal(&too_long).contains("108 bytes"));
    assert!(Listener::bind(&at(Path::new(""))).is_err());
    let _server = Running::with(at(&longest));
    assert_eq!(answer(&longest, b"PING\r\n"), b"+PONG\r\n");
}
