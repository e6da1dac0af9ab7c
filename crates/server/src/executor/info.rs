//! INFO: the server and its state, in sections as Redis has them.

use super::config::tls_port;
use super::{Call, Failure};
use crate::REDIS_VERSION;
use crate::shared::{CODES, Shared};
use everleaf::{Domain, Shrunk};
use std::fmt::{self, Write};
use std::sync::atomic::Ordering;
use std::time::UNIX_EPOCH;

/// Minimum frequency of the search for expired keys when there is little to do; Redis reports it as `hz`.
const SWEEPS_PER_SECOND: u32 = 1000 / crate::server::SWEEP_PAUSE.as_millis() as u32;

/// The section about commands.
const COMMANDS: &str = "Commandstats";

type WriteSection = fn(&mut String, &Shared) -> fmt::Result;

/// Names of the sections, with their functions.
const SECTIONS: [(&str, WriteSection); 12] = [
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", persistence),
    ("Stats", stats),
    ("Store", store),
    ("Replication", replication),
    ("CPU", cpu),
    (COMMANDS, commands),
    ("Errorstats", errors),
    ("Cluster", cluster),
    ("Keyspace", keyspace),
];

pub(crate) fn info(call: &mut Call<'_>) -> Result<(), Failure> {
    let asked = |words: &[&str]| (1..call.arguments.len()).any(|index| words.iter().any(|word| call.arguments.is(index, word)));
    let everything = asked(&["all", "everything"]);
    let default = everything || call.arguments.len() == 1 || asked(&["default"]);
    let mut text = String::new();
    for (name, write) in SECTIONS {
        // Long, so it is not among the default sections.
        if (if name == COMMANDS { everything } else { default }) || asked(&[name]) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            // Writing to a string cannot fail.
            let _ = write!(text, "# {name}\r\n");
            let _ = write(&mut text, call.server);
        }
    }
    call.reply.verbatim(b"txt", text.as_bytes());
    Ok(())
}

fn server(text: &mut String, server: &Shared) -> fmt::Result {
    let uptime = server.now().saturating_duration_since(server.started).as_secs();
    write!(text, "redis_version:{REDIS_VERSION}\r\neverleaf_version:{}\r\nredis_mode:standalone\r\n", env!("CARGO_PKG_VERSION"))?;
    write!(text, "os:{} {}\r\narch_bits:{}\r\nmultiplexing_api:epoll\r\n", std::env::consts::OS, std::env::consts::ARCH, usize::BITS)?;
    // As in Redis, the port with TLS if there is no other.
    let (config, tls_port) = (&server.config, tls_port(&server.config));
    let port = config.port.unwrap_or(tls_port);
    write!(text, "process_id:{}\r\nrun_id:{}\r\ntcp_port:{port}\r\nio_threads:{}\r\n", std::process::id(), server.run_id, server.thread_count())?;
    let now_us = UNIX_EPOCH.elapsed().map_or(0, |now| now.as_micros());
    write!(text, "server_time_usec:{now_us}\r\nhz:{SWEEPS_PER_SECOND}\r\n")?;
    write!(text, "uptime_in_seconds:{uptime}\r\nuptime_in_days:{}\r\n", uptime / 86_400)?;
    // As in Redis, whose numbers are those of the kinds.
    if let Some(port) = config.port {
        write!(text, "listener0:name=tcp,bind={},port={port}\r\n", config.address)?;
    }
    if let Some(path) = &config.unix_socket {
        write!(text, "listener1:name=unix,bind={}\r\n", path.display())?;
    }
    if tls_port > 0 {
        write!(text, "listener2:name=tls,bind={},port={tls_port}\r\n", config.address)?;
    }
    Ok(())
}

fn clients(text: &mut String, server: &Shared) -> fmt::Result {
    let max = server.connection_count_max.load(Ordering::Relaxed);
    write!(text, "connected_clients:{}\r\nmaxclients:{max}\r\nblocked_clients:0\r\ntracking_clients:0\r\n", server.clients.count())
}

/// Memory in use: of the pool, which has keys, values and leaves, and which `maxmemory` limits; and of the process itself, which nothing limits.
fn memory(text: &mut String, server: &Shared) -> fmt::Result {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    // Blocks about to be freed are not in use.
    server.store.pool().collect();
    let (fill, own) = (server.store.fill(), memory_size(&status, "RssAnon:").unwrap_or(0));
    let pool = fill.used as u64;
    size(text, "used_memory", pool)?;
    write!(text, "used_memory_dataset:{pool}\r\nused_memory_overhead:{own}\r\n")?;
    // Pages of the pool that the process has touched count here, even when nothing is left in them.
    size(text, "used_memory_rss", memory_size(&status, "VmRSS:").unwrap_or(0))?;
    // More may be in use now than the process has ever touched.
    size(text, "used_memory_peak", memory_size(&status, "VmHWM:").unwrap_or(0).max(pool + own))?;
    if let Some(total) = memory_size(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemTotal:") {
        size(text, "total_system_memory", total)?;
    }
    // Writes are refused when the pool is full.
    size(text, "maxmemory", fill.limit as u64)?;
    write!(text, "maxmemory_policy:noeviction\r\nlazyfree_pending_objects:0\r\n")
}

/// A size in bytes, and in a unit for people, as in Redis.
fn size(text: &mut String, name: &str, bytes: u64) -> fmt::Result {
    write!(text, "{name}:{bytes}\r\n{name}_human:")?;
    match bytes.checked_ilog2().unwrap_or(0) as usize / 10 {
        0 => write!(text, "{bytes}B\r\n"),
        step => write!(text, "{:.2}{}\r\n", bytes as f64 / (1_u64 << (10 * step)) as f64, ["K", "M", "G", "T", "P", "E"][step - 1]),
    }
}

/// The amount of a kind of memory that the system reports, in bytes.
fn memory_size(status: &str, kind: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(kind))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kib| kib * 1024)
}

fn persistence(text: &mut String, server: &Shared) -> fmt::Result {
    let pool = server.store.pool().info();
    let domain = pool.domain.map_or("none", Domain::name);
    let survives = server.store.pool().survives().unwrap_or("nothing");
    let saves = server.backups.state();
    let took = saves.last_background_s.map_or(-1, |took| took as i64);
    let changes = server.change_count().saturating_sub(saves.last_change_count);
    let current = saves.running_since.map_or(-1, |since| since.elapsed().as_secs() as i64);
    // No change waits for a save: each is durable when it is acknowledged.
    write!(text, "loading:0\r\nrdb_changes_since_last_save:{changes}\r\nrdb_bgsave_in_progress:{}\r\n", u8::from(saves.running_since.is_some()))?;
    write!(text, "rdb_saves:{}\r\nrdb_last_save_time:{}\r\n", saves.done_count, saves.last_s)?;
    outcome(text, "rdb_last_bgsave", saves.failure.as_deref())?;
    write!(text, "rdb_last_bgsave_time_sec:{took}\r\n")?;
    write!(
        text,
        "rdb_current_bgsave_time_sec:{current}\r\naof_enabled:0\r\naof_rewrite_in_progress:0\r\naof_last_write_status:ok\r\nbackup_path:{}\r\n",
        server.backups.path.display()
    )?;
    write!(text, "backup_last_entries:{}\r\nbackup_last_size:{}\r\n", saves.last_passed.entries, saves.last_passed.stream_bytes)?;
    write!(text, "pool_path:{}\r\npool_size:{}\r\npool_size_max:{}\r\n", server.store.path().display(), pool.size, pool.size_max)?;
    let fill = server.store.fill();
    write!(text, "pool_used:{}\r\npool_limit:{}\r\npool_near_limit:{}\r\n", fill.used, fill.limit, u8::from(fill.is_near_limit()))?;
    let compactions = server.compactions.state();
    let Shrunk { size_before, size, given_back, records, leaves, is_complete } = compactions.last;
    write!(text, "compaction_in_progress:{}\r\n", u8::from(compactions.is_running))?;
    outcome(text, "last_compaction", compactions.failure.as_deref())?;
    write!(text, "last_compaction_is_complete:{}\r\nlast_compaction_size_before:{size_before}\r\n", u8::from(is_complete))?;
    write!(text, "last_compaction_size:{size}\r\nlast_compaction_given_back:{given_back}\r\n")?;
    write!(text, "last_compaction_moved:{}\r\n", records + leaves)?;
    // Opened all the same, after a failure that its domain does not survive.
    write!(text, "pool_may_be_torn:{}\r\n", u8::from(!server.store.pool().flaws().is_empty()))?;
    write!(text, "persistence_domain:{domain}\r\nacknowledged_writes_survive:{survives}\r\n")
}

/// The status of the last `name`, and the reason if it failed.
fn outcome(text: &mut String, name: &str, failure: Option<&str>) -> fmt::Result {
    match failure {
        None => write!(text, "{name}_status:ok\r\n"),
        // A file name may contain any byte.
        Some(reason) => write!(text, "{name}_status:err\r\n{name}_error:{}\r\n", reason.replace(['\r', '\n'], " ")),
    }
}

fn stats(text: &mut String, server: &Shared) -> fmt::Result {
    let totals = server.totals();
    write!(text, "total_connections_received:{}\r\ntotal_commands_processed:{}\r\n", totals.connections, totals.commands)?;
    write!(text, "total_net_input_bytes:{}\r\ntotal_net_output_bytes:{}\r\n", totals.input_size, totals.output_size)?;
    write!(text, "instantaneous_ops_per_sec:{}\r\nrejected_connections:{}\r\n", server.commands_per_second(), totals.rejected)?;
    write!(text, "expired_keys:{}\r\nevicted_keys:0\r\nlatest_fork_usec:0\r\n", totals.expired)?;
    write!(text, "client_query_buffer_limit_disconnections:{}\r\n", totals.query_overflows)?;
    write!(text, "client_output_buffer_limit_disconnections:{}\r\n", totals.output_overflows)?;
    write!(text, "failed_tls_handshakes:{}\r\n", totals.failed_handshakes)?;
    write!(text, "keyspace_hits:{}\r\nkeyspace_misses:{}\r\ntotal_error_replies:{}\r\n", totals.hits, totals.misses, totals.errors)
}

fn commands(text: &mut String, server: &Shared) -> fmt::Result {
    server.calls.describe(text)
}

/// Errors by code. Those whose code is not counted by itself count as ERR.
fn errors(text: &mut String, server: &Shared) -> fmt::Result {
    let totals = server.totals();
    let coded = CODES.map(|(code, _, sum)| (code, sum(&totals)));
    let others = totals.errors.saturating_sub(coded.iter().map(|(_, count)| count).sum());
    let mut counts = std::iter::once(("ERR", others)).chain(coded).filter(|(_, count)| *count > 0);
    counts.try_for_each(|(code, count)| write!(text, "errorstat_{code}:count={count}\r\n"))
}

/// What snapshots hold back, including those of watching clients and backups.
fn store(text: &mut String, server: &Shared) -> fmt::Result {
    let held = server.store.held_back();
    let watching = server.clients.all().iter().filter(|client| client.is_watching()).count();
    write!(text, "snapshots:{}\r\n", held.snapshots)?;
    write!(text, "clients_watching:{watching}\r\nheld_back_versions:{}\r\nheld_back_age:{}\r\n", held.count, held.age)?;
    write!(text, "held_back_bytes:{}\r\nheld_back_cleared_keys:{}\r\n", held.bytes, held.cleared_keys)
}

/// There is no replication; clients look here for the role.
fn replication(text: &mut String, server: &Shared) -> fmt::Result {
    write!(text, "role:master\r\nconnected_slaves:0\r\nmaster_replid:{}\r\nmaster_repl_offset:0\r\n", server.run_id)
}

/// CPU seconds of this process, and of its children, if any. Nothing where the system does not report them.
fn cpu(text: &mut String, _server: &Shared) -> fmt::Result {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, may contain anything; the fields after it, from the third on, are separated by spaces.
    let fields: Vec<_> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace().collect();
    for (name, field) in [("sys", 15), ("user", 14), ("sys_children", 17), ("user_children", 16)] {
        if let Some(ticks) = fields.get(field - 3).and_then(|ticks| ticks.parse::<u64>().ok()) {
            write!(text, "used_cpu_{name}:{:.6}\r\n", ticks as f64 / rustix::param::clock_ticks_per_second() as f64)?;
        }
    }
    Ok(())
}

/// There is no cluster.
fn cluster(text: &mut String, _server: &Shared) -> fmt::Result {
    write!(text, "cluster_enabled:0\r\n")
}

fn keyspace(text: &mut String, server: &Shared) -> fmt::Result {
    for (index, database) in server.databases.iter().enumerate() {
        let count = database.count();
        if count > 0 {
            // Monitoring programs expect all three. In Redis, too, an average of 0 means unknown.
            write!(text, "db{index}:keys={count},expires={},avg_ttl=0\r\n", database.count_expiring())?;
        }
    }
    Ok(())
}
