//! CONFIG: settings, under the names that Redis gives them.
//!
//! Only `maxclients`, `requirepass` and the settings of the slow log can change while the server runs. Setting another to its current value is no error, for
//! scripts that ensure a setting; setting it to any other value is an error, and never silently ignored.

use super::{Call, Failure};
use crate::config::Config;
use crate::glob;
use crate::shared::Shared;
use std::sync::atomic::Ordering;

/// Every setting and its value.
fn settings(server: &Shared) -> Vec<(&'static str, Vec<u8>)> {
    let config = &server.config;
    let number = |value: usize| value.to_string().into_bytes();
    vec![
        ("appendfsync", b"always".to_vec()),
        ("appendonly", b"no".to_vec()),
        ("bind", config.address.to_string().into_bytes()),
        ("client-query-buffer-limit", number(config.limits.query_buffer_size_max)),
        ("dbfilename", server.backups.path.file_name().unwrap_or_default().as_encoded_bytes().to_vec()),
        ("databases", number(server.databases.len())),
        ("dir", parent_directory(server)),
        ("io-threads", number(server.thread_count())),
        ("maxclients", number(server.connection_count_max.load(Ordering::Relaxed))),
        ("maxmemory", number(server.store.fill().limit)),
        ("maxmemory-policy", b"noeviction".to_vec()),
        ("port", number(config.port.unwrap_or(0).into())),
        ("proto-max-bulk-len", number(config.limits.bulk_size_max)),
        ("requirepass", server.password().unwrap_or_default()),
        ("save", Vec::new()),
        ("slowlog-log-slower-than", server.calls.slow.slower_than_us.load(Ordering::Relaxed).to_string().into_bytes()),
        ("slowlog-max-len", number(server.calls.slow.length_max.load(Ordering::Relaxed))),
        ("tcp-keepalive", number(config.keepalive_seconds as usize)),
        ("timeout", number(0)),
        ("tls-port", number(tls_port(config).into())),
        ("unixsocket", config.unix_socket.as_deref().map(|path| path.as_os_str().as_encoded_bytes().to_vec()).unwrap_or_default()),
        ("unixsocketperm", format!("{:o}", config.unix_socket_mode).into_bytes()),
    ]
}

/// The port with TLS; 0 if there is none.
pub(super) fn tls_port(config: &Config) -> u16 {
    config.tls.as_ref().and_then(|tls| tls.port).unwrap_or(0)
}

/// The directory of the backups: by default, that of the pool.
fn parent_directory(server: &Shared) -> Vec<u8> {
    let path = std::path::absolute(&server.backups.path).unwrap_or_else(|_| server.backups.path.clone());
    path.parent().unwrap_or(&path).as_os_str().as_encoded_bytes().to_vec()
}

/// Whether one of the server's own names matches a pattern. Patterns longer than any name could need are refused.
pub(crate) fn is_like(name: &str, pattern: &[u8]) -> Result<bool, Failure> {
    if pattern.len() > PATTERN_SIZE_MAX {
        return Err(Failure::fixed("ERR the pattern is longer than 256 bytes"));
    }
    glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes(), &mut 0)
}

/// Most entries of the slow log: each may take some 4 KiB.
const SLOW_MAX: usize = 1 << 16;
/// Longest pattern for the server's own names, in bytes.
const PATTERN_SIZE_MAX: usize = 256;

pub(crate) fn get(call: &mut Call<'_>) -> Result<(), Failure> {
    let mut chosen: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for (name, value) in settings(call.server) {
        let mut asked = None;
        for pattern in call.few_from(2)? {
            if is_like(name, pattern)? {
                asked = Some(pattern);
                break;
            }
        }
        // A client that asks for a setting by name gets the name as it wrote it.
        let shown = |asked: &[u8]| if asked.eq_ignore_ascii_case(name.as_bytes()) { asked.to_vec() } else { name.into() };
        chosen.extend(asked.map(|asked| (shown(asked), value)));
    }
    call.reply.map(chosen.len());
    for (name, value) in chosen {
        call.reply.bulk(&name);
        call.reply.bulk(&value);
    }
    Ok(())
}

pub(crate) fn set(call: &mut Call<'_>) -> Result<(), Failure> {
    if !call.arguments.len().is_multiple_of(2) {
        return Err(Failure::SYNTAX);
    }
    let (mut connection_count_max, mut password, mut slower_than_us, mut slow_max) = (None, None, None, None);
    let integer = |name, value| crate::resp::parse_integer(value).ok_or_else(|| failed(name, "argument couldn't be parsed into an integer"));
    let settings = settings(call.server);
    // Before any value is judged, as in Redis.
    for index in (2..call.arguments.len()).step_by(2) {
        let known = settings.iter().find(|(known, _)| call.arguments.is(index, known));
        if let Some((name, _)) = known
            && (2..index).step_by(2).any(|before| call.arguments.is(before, name))
        {
            return Err(failed(name, "duplicate parameter"));
        }
    }
    for index in (2..call.arguments.len()).step_by(2) {
        let (name, value) = (call.argument(index), call.argument(index + 1));
        let Some((name, current)) = settings.iter().find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name)) else {
            return Err(Failure::bytes([b"ERR Unknown option or number of arguments for CONFIG SET - '", name, b"'"].concat()));
        };
        match *name {
            "maxclients" => {
                let count = usize::try_from(integer(name, value)?)
                    .ok()
                    .filter(|&count| count > 0)
                    .ok_or_else(|| failed(name, "argument must be between 1 and 4294967295 inclusive"))?;
                let room = call.server.config.limits.connection_room;
                if count > room {
                    return Err(failed(name, &format!("The operating system is not able to handle the specified number of clients, try with {room}")));
                }
                connection_count_max = Some(count);
            }
            "slowlog-log-slower-than" => {
                let is_allowed = |microseconds: &i64| *microseconds >= -1;
                let microseconds = Some(integer(name, value)?).filter(is_allowed);
                slower_than_us = Some(microseconds.ok_or_else(|| failed(name, "argument must be between -1 and 9223372036854775807 inclusive"))?);
            }
            "slowlog-max-len" => {
                let length = usize::try_from(integer(name, value)?).ok().filter(|length| *length <= SLOW_MAX);
                slow_max = Some(length.ok_or_else(|| failed(name, "argument must be between 0 and 65536 inclusive"))?);
            }
            "requirepass" => password = Some((!value.is_empty()).then(|| value.to_vec())),
            _ if value.eq_ignore_ascii_case(current) => {}
            _ => return Err(failed(name, "can't set immutable config")),
        }
    }
    // Nothing is changed unless everything can be.
    if let Some(count) = connection_count_max {
        call.server.connection_count_max.store(count, Ordering::Relaxed);
    }
    if let Some(password) = password {
        call.server.set_password(password);
    }
    if let Some(microseconds) = slower_than_us {
        call.server.calls.slow.slower_than_us.store(microseconds, Ordering::Relaxed);
    }
    if let Some(length) = slow_max {
        call.server.calls.slow.length_max.store(length, Ordering::Relaxed);
    }
    call.reply.ok();
    Ok(())
}

fn failed(name: &str, why: &str) -> Failure {
    Failure::text(format_args!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"))
}

pub(crate) fn resetstat(call: &mut Call<'_>) -> Result<(), Failure> {
    call.server.reset_totals();
    call.reply.ok();
    Ok(())
}
