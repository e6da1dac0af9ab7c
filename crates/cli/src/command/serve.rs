//! `everleaf serve`: a pool behind the protocols of Redis and memcached.

use crate::failure::Failure;
use crate::interrupt;
use crate::options::{ByteSize, IndexArgument, PoolArguments};
use crate::output::tell;
use crate::text;
use clap::Args;
use everleaf::Store;
use everleaf_pmem::{Domain, Found, Info};
use everleaf_server::{Config, Limits, Listener, Server, Tls};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use signal_hook::iterator::Signals;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// A smaller buffer has no room for a useful request, beside what else it holds: whoever asks for that means something else.
const BUFFER_SIZE_MIN: usize = 64 << 10;
/// Files that a server may have open besides its connections: the pool, backups, its standard input and output.
const OTHER_FILES: usize = 32;
/// Files of each thread.
const FILES_PER_THREAD: usize = 2;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pool: PoolArguments,
    #[command(flatten)]
    index: IndexArgument,
    /// Address to listen on; with another than the default, set a password too
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_name = "ADDR")]
    bind: IpAddr,
    /// TCP port; 0 takes a free one [default: 6379, and none with --tls-port or --unix-socket]
    #[arg(long, value_name = "N")]
    port: Option<u16>,
    /// TCP port for clients of memcached; 0 takes a free one. Their items are in the namespace "memcached"
    #[arg(long, value_name = "N")]
    memcached_port: Option<u16>,
    /// TCP port with TLS; 0 takes a free one
    #[arg(long, value_name = "N", requires = "tls_cert")]
    tls_port: Option<u16>,
    /// TCP port with TLS for clients of memcached; 0 takes a free one
    #[arg(long, value_name = "N", requires = "tls_cert")]
    memcached_tls_port: Option<u16>,
    /// File with the server's certificate and those between it and its authority, in PEM
    #[arg(long, value_name = "PATH", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// File with the private key of the certificate, in PEM
    #[arg(long, value_name = "PATH", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// File with authorities, in PEM: clients of the ports with TLS need a certificate that one of them has signed
    #[arg(long, value_name = "PATH", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// Path of a Unix socket
    #[arg(long, value_name = "PATH")]
    unix_socket: Option<PathBuf>,
    /// Path of a Unix socket for clients of memcached
    #[arg(long, value_name = "PATH")]
    memcached_unix_socket: Option<PathBuf>,
    /// Permissions of the Unix sockets, in octal: whoever may write can connect
    #[arg(long, default_value = "700", value_name = "MODE", value_parser = parse_mode)]
    unix_socket_mode: u32,
    /// Threads that serve connections; by default as many as the machine has cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Databases for SELECT
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    databases: u16,
    /// Password that clients must send with AUTH; other users of the machine can see it in the list of processes
    #[arg(long, value_name = "TEXT")]
    password: Option<String>,
    /// File whose first line is the password
    #[arg(long, value_name = "PATH", conflicts_with = "password")]
    password_file: Option<PathBuf>,
    /// File to which SAVE and BGSAVE write a backup; by default the pool's name with .backup appended
    #[arg(long, value_name = "PATH")]
    backup: Option<PathBuf>,
    /// Connections at a time; fewer if the system does not let the server open so many files
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    connections_max: u32,
    /// Longest request, and size of waiting requests while a client takes no replies; a client that sends more is dropped
    #[arg(long, default_value = "1G", value_name = "BYTES")]
    query_buffer_size_max: ByteSize,
    /// Size of replies that may wait for a client, roughly; one that leaves more waiting is dropped, a transaction or script with longer replies is refused
    #[arg(long, default_value = "1G", value_name = "BYTES")]
    output_buffer_size_max: ByteSize,
    /// Print the start message as one line of JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let config = self.config()?;
        if is_open_to_all(&config) {
            tell(format_args!("no password: whoever reaches {} can read and write everything; set one by --password-file", config.address));
        }
        self.backup.iter().try_for_each(|backup| check_backup(backup, &self.pool.file.pool))?;
        // First: if a port is taken, no pool is created or recovered.
        let listener = Listener::bind(&config)?;
        let start = Instant::now();
        let store = Arc::new(self.pool.open_or_create(&self.index)?);
        let served = self.serve(listener, config, &store, start.elapsed());
        // In any case: a failure to print the greeting is no reason for a recovery at the next start.
        let closed = match Arc::try_unwrap(store) {
            // What a panicked thread has left in DRAM must not be kept.
            Ok(_) if matches!(served, Err(Failure::Server(everleaf_server::Error::Panicked))) => Ok(()),
            Ok(store) => store.close().map_err(everleaf::Error::from),
            Err(_) => unreachable!("the server and the signal watcher have ended, and nobody else holds the store"),
        };
        served?;
        closed?;
        match self.pool.file.pool.exists() {
            true => tell("stopped, the pool is closed"),
            false => tell(format_args!("stopped, and {} is gone: somebody has removed or renamed it meanwhile", self.pool.file.pool.display())),
        }
        Ok(())
    }

    /// Serves until it is told to stop. Afterwards nothing holds the store any more.
    fn serve(&self, listener: Listener, config: Config, store: &Arc<Store>, opened_in: Duration) -> Result<(), Failure> {
        // Again, as the pool may be new.
        self.backup.iter().try_for_each(|backup| check_backup(backup, &self.pool.file.pool))?;
        check_databases(store, config.databases)?;
        let server = Server::on(listener, config, store.clone())?;
        // Before the announcement: a program that has read it may send a signal at once.
        interrupt::catch()?;
        let mut signals = Signals::new(interrupt::signals()).map_err(|source| Failure::Io { action: "catch signals".into(), source })?;
        let handle = signals.handle();
        let stop = server.stop_handle();
        let watcher = thread::spawn(move || {
            if signals.forever().next().is_some() {
                tell("stopping; Ctrl-C now ends it at once");
                stop.stop();
            }
        });
        let served = self.announce(store, &server, opened_in).and_then(|()| Ok(server.run()?));
        handle.close();
        // It never panics, and has no result.
        let _ = watcher.join();
        served
    }

    fn config(&self) -> Result<Config, Failure> {
        let defaults = Config::default();
        let password = match &self.password_file {
            Some(path) => Some(read_password(path)?),
            // An empty password would be none: a variable set wrongly must not silently disable the password.
            None if self.password.as_deref() == Some("") => return Err(Failure::Usage("--password is empty; leave it out to ask for none".into())),
            None => self.password.clone().map(String::into_bytes),
        };
        for (option, size) in [("--query-buffer-size-max", self.query_buffer_size_max.0), ("--output-buffer-size-max", self.output_buffer_size_max.0)] {
            if size < BUFFER_SIZE_MIN {
                return Err(Failure::Usage(format!("{option} is {size} bytes; give {BUFFER_SIZE_MIN} or more")));
            }
        }
        let threads = self.threads.map_or(defaults.threads, usize::from);
        let (connection_count_max, connection_room) = make_room(self.connections_max as usize, threads);
        Ok(Config {
            address: self.bind,
            // Whoever asks for TLS or a Unix socket may rely on them: what others can read, or reach, is open only if it is asked for, too.
            port: self.port.or((self.tls_port.is_none() && self.unix_socket.is_none()).then_some(6379)),
            memcached_port: self.memcached_port,
            tls: self.tls()?,
            unix_socket: self.unix_socket.clone(),
            memcached_unix_socket: self.memcached_unix_socket.clone(),
            unix_socket_mode: self.unix_socket_mode,
            threads,
            databases: usize::from(self.databases),
            password,
            backup: self.backup.clone(),
            limits: Limits {
                connection_count_max,
                connection_room,
                query_buffer_size_max: self.query_buffer_size_max.0,
                output_buffer_size_max: self.output_buffer_size_max.0,
                ..defaults.limits
            },
            log: |line| tell(line),
            ..defaults
        })
    }

    fn tls(&self) -> Result<Option<Tls>, Failure> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        let (port, memcached_port) = (self.tls_port, self.memcached_tls_port);
        // Whoever names a certificate expects encryption, and would get a server without.
        if port.or(memcached_port).is_none() {
            return Err(Failure::Usage("--tls-cert without a port: add --tls-port or --memcached-tls-port, or leave it out".into()));
        }
        Ok(Some(Tls { port, memcached_port, certificate: certificate.clone(), key: key.clone(), authority: self.tls_ca.clone() }))
    }

    /// Tells the operator, or a program, what was found and how to continue.
    fn announce(&self, store: &Store, server: &Server, opened_in: Duration) -> Result<(), Failure> {
        let info = store.pool().info();
        let path = std::path::absolute(store.path()).unwrap_or_else(|_| store.path().to_owned());
        let keys: u64 = store.stats().namespaces.iter().map(|namespace| namespace.keys).sum();
        let text = if self.json {
            let found = match info.found {
                Found::Absent => "absent",
                Found::Clean => "clean",
                Found::Unclean | Found::InUse { .. } => "unclean",
            };
            let domain = info.domain.map(Domain::name);
            let pid = std::process::id();
            let port = |address: Option<SocketAddr>| address.map(|address| address.port());
            let name = |path: &Option<PathBuf>| path.as_deref().map(|path| path.to_string_lossy().into_owned());
            let said = json!({
                "address": server.local_addr().map(|address| address.to_string()), "port": port(server.local_addr()), "tls_port": port(server.tls_addr()),
                "unix_socket": name(&self.unix_socket), "memcached_port": port(server.memcached_addr()),
                "memcached_tls_port": port(server.memcached_tls_addr()), "memcached_unix_socket": name(&self.memcached_unix_socket),
                "pid": pid, "size": info.size, "keys": keys, "found": found, "domain": domain, "opened_in_ms": opened_in.as_secs_f64() * 1e3,
            });
            format!("{}\n", text::with_pool(said, &path))
        } else {
            self.greeting(&info, store, &path, keys, server, opened_in)
        };
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::Output)
    }

    fn greeting(&self, info: &Info, store: &Store, path: &Path, keys: u64, server: &Server, opened_in: Duration) -> String {
        let opened = match info.found {
            Found::Absent => "created".to_owned(),
            Found::Clean => format!("{} keys, opened after a clean stop in {:.0?}", text::count(keys), opened_in),
            Found::Unclean | Found::InUse { .. } => format!("{} keys, recovered after a crash in {:.0?}", text::count(keys), opened_in),
        };
        let domain = match info.domain {
            Some(domain) => {
                let why = match (self.pool.domain, domain) {
                    (Some(_), _) if store.pool().left_in() != info.domain => " (chosen, for measuring: this is no persistent memory)",
                    (Some(_), _) => " (chosen)",
                    (None, Domain::Msync) => " (as before)",
                    (None, _) => "",
                };
                format!("{domain}{why}: acknowledged writes survive {}", store.pool().survives().unwrap_or(domain.survives()))
            }
            None => "none: the pool ends with the process".into(),
        };
        let at = |address: SocketAddr| match address.ip().is_unspecified() {
            true => format!("-p {}", address.port()),
            false => format!("-h {} -p {}", address.ip(), address.port()),
        };
        let plain = server.local_addr().map(|address| format!("redis-cli {}", at(address)));
        let unix = self.unix_socket.as_ref().map(|path| format!("redis-cli -s {}", path.display()));
        let tls = server.tls_addr().map(|address| format!("redis-cli --tls {}", at(address)));
        let ways: Vec<String> = [plain, unix, tls].into_iter().flatten().collect();
        let plain = server.memcached_addr().map(|address| address.to_string());
        let unix = self.memcached_unix_socket.as_ref().map(|path| path.display().to_string());
        let tls = server.memcached_tls_addr().map(|address| format!("{address} with TLS"));
        let memcached: Vec<String> = [plain, unix, tls].into_iter().flatten().collect();
        let memcached = if memcached.is_empty() { String::new() } else { format!("; memcached's clients to {}", memcached.join(", ")) };
        let pid = std::process::id();
        format!(
            "everleaf {version}\n  pool     {path}: {size} of at most {size_max}{already}, {opened}\n  domain   {domain}\n  \
             connect  {ways}{memcached}\n  stop     Ctrl-C, kill {pid}, or {way} SHUTDOWN\n",
            ways = ways.join(", "),
            way = ways[0],
            version = env!("CARGO_PKG_VERSION"),
            path = path.display(),
            size = text::size(info.size),
            size_max = text::size(info.size_max),
            already = if info.size_max > self.pool.size_max.0 { " (more than --size-max, since it is that long already)" } else { "" },
        )
    }
}

/// Whether others than this machine's users need neither a password nor a certificate.
fn is_open_to_all(config: &Config) -> bool {
    let plain = config.port.or(config.memcached_port).is_some();
    let tls = config.tls.as_ref().is_some_and(|tls| tls.authority.is_none());
    !config.address.is_loopback() && config.password.is_none() && (plain || tls)
}

/// Permissions of a file, in octal.
fn parse_mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777).ok_or_else(|| "give permissions in octal, from 0 to 777".into())
}

/// Raises the limit of open files as far as permitted, since each connection is one; returns how many of the wanted connections fit, and how many in all.
fn make_room(wanted: usize, threads: usize) -> (usize, usize) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let Some(limit) = (if raised.is_ok() { maximum } else { current }) else { return (wanted, usize::MAX) };
    let room = (limit as usize).saturating_sub(OTHER_FILES + FILES_PER_THREAD * threads).max(1);
    if room < wanted {
        tell(format_args!(
            "no more than {room} of the {wanted} connections at a time: the system lets this process open {limit} files, which `ulimit -Hn` may raise"
        ));
    }
    (room.min(wanted), room)
}

/// Refuses a place for backups that no backup could be written to: the first BGSAVE would be late to notice.
fn check_backup(backup: &Path, pool: &Path) -> Result<(), Failure> {
    let refuse = |why: &str| Err(Failure::Usage(format!("--backup {} {why}", backup.display())));
    let parent = backup.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (backup.canonicalize(), pool.canonicalize()) {
        (Ok(backup), Ok(pool)) if backup == pool => refuse("is the pool itself; name another file"),
        _ if backup.is_dir() => refuse("is a directory; name a file in it"),
        _ if !parent.is_dir() => refuse("is in no directory that exists; create it first"),
        _ => Ok(()),
    }
}

/// Refuses to serve fewer databases than the pool has: nobody would see the others, nor would FLUSHALL empty them.
fn check_databases(store: &Store, databases: usize) -> Result<(), Failure> {
    let number_of = |name: &String| name.parse::<u16>().ok().filter(|number| number.to_string() == *name && usize::from(*number) >= databases);
    for number in store.namespaces().iter().filter_map(number_of) {
        let keys = store.namespace(&number.to_string())?.count();
        if keys > 0 {
            let keys = text::count(keys);
            return Err(Failure::Usage(format!("--databases {databases} leaves out database {number} of the pool, with {keys} keys; serve more")));
        }
    }
    Ok(())
}

/// The first line of a file, without its end.
pub(crate) fn read_password(path: &Path) -> Result<Vec<u8>, Failure> {
    let content = std::fs::read(path).map_err(|source| Failure::io("read", path, source))?;
    let line = content.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii_end();
    match line {
        [] => Err(Failure::Usage(format!("{} holds no password in its first line", path.display()))),
        line => Ok(line.to_vec()),
    }
}
