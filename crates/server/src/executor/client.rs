//! CLIENT: this connection and others.

use super::connection::INVALID_NAME;
use super::{Call, Failure};
use crate::client::{Client, Closing, Replies, is_name};
use crate::resp::parse_integer;
use std::sync::Arc;

pub(crate) fn id(call: &mut Call<'_>) -> Result<(), Failure> {
    call.reply.integer(call.session.client.id as i64);
    Ok(())
}

pub(crate) fn getname(call: &mut Call<'_>) -> Result<(), Failure> {
    let name = call.session.client.seen.lock().name.clone();
    if name.is_empty() {
        call.reply.null()
    } else {
        call.reply.bulk(&name)
    }
    Ok(())
}

pub(crate) fn setname(call: &mut Call<'_>) -> Result<(), Failure> {
    let name = call.argument(2);
    if !is_name(name) {
        return Err(INVALID_NAME);
    }
    call.session.client.seen.lock().name = name.to_vec();
    call.reply.ok();
    Ok(())
}

pub(crate) fn setinfo(call: &mut Call<'_>) -> Result<(), Failure> {
    let value = call.argument(3);
    let mut seen = call.session.client.seen.lock();
    let (field, name) = if call.arguments.is(2, "lib-name") {
        (&mut seen.library, "lib-name")
    } else if call.arguments.is(2, "lib-ver") {
        (&mut seen.library_version, "lib-ver")
    } else {
        return Err(Failure::bytes([b"ERR Unrecognized option '", call.argument(2), b"'"].concat()));
    };
    if !is_name(value) {
        return Err(Failure::text(format_args!("ERR {name} cannot contain spaces, newlines or special characters.")));
    }
    *field = value.to_vec();
    drop(seen);
    call.reply.ok();
    Ok(())
}

pub(crate) fn on_or_off(call: &mut Call<'_>) -> Result<(), Failure> {
    if !call.arguments.is(2, "on") && !call.arguments.is(2, "off") {
        return Err(Failure::SYNTAX);
    }
    call.reply.ok();
    Ok(())
}

pub(crate) fn reply(call: &mut Call<'_>) -> Result<(), Failure> {
    if call.arguments.is(2, "on") {
        call.session.replies = Replies::On;
        call.reply.ok();
    } else if call.arguments.is(2, "off") {
        call.session.replies = Replies::Off;
    } else if call.arguments.is(2, "skip") {
        if call.session.replies != Replies::Off {
            call.session.replies = Replies::SkipNext;
        }
    } else {
        return Err(Failure::SYNTAX);
    }
    Ok(())
}

pub(crate) fn info(call: &mut Call<'_>) -> Result<(), Failure> {
    call.session.publish(call.server, 0, call.reply);
    let mut text = call.session.client.describe(call.server);
    text.push(b'\n');
    call.reply.verbatim(b"txt", &text);
    Ok(())
}

/// Kinds of clients in Redis; all of this server's are normal.
fn is_normal(kind: &[u8]) -> Result<bool, Failure> {
    match kind.to_ascii_lowercase().as_slice() {
        b"normal" => Ok(true),
        b"master" | b"replica" | b"slave" | b"pubsub" => Ok(false),
        _ => Err(Failure::bytes([b"ERR Unknown client type '", kind, b"'"].concat())),
    }
}

pub(crate) fn list(call: &mut Call<'_>) -> Result<(), Failure> {
    call.session.publish(call.server, 0, call.reply);
    let clients = call.server.clients.all();
    let wanted: Vec<Arc<Client>> = if call.arguments.len() == 2 {
        clients
    } else if call.arguments.len() == 4 && call.arguments.is(2, "type") {
        let normal = is_normal(call.argument(3))?;
        clients.into_iter().filter(|_| normal).collect()
    } else if call.arguments.len() > 3 && call.arguments.is(2, "id") {
        let ids: Option<Vec<i64>> = call.few_from(3)?.map(parse_integer).collect();
        let ids = ids.ok_or(Failure::fixed("ERR Invalid client ID"))?;
        ids.into_iter().filter_map(|id| call.server.clients.get(u64::try_from(id).ok()?)).collect()
    } else {
        return Err(Failure::SYNTAX);
    };
    let mut text = Vec::new();
    for client in wanted {
        text.append(&mut client.describe(call.server));
        text.push(b'\n');
    }
    call.reply.verbatim(b"txt", &text);
    Ok(())
}

/// Which clients KILL closes.
struct Filter<'a> {
    id: Option<i64>,
    address: Option<&'a [u8]>,
    local: Option<&'a [u8]>,
    normal: bool,
    skip_me: bool,
}

pub(crate) fn kill(call: &mut Call<'_>) -> Result<(), Failure> {
    let by_address = call.arguments.len() == 3;
    let filter = if by_address { Filter { id: None, address: Some(call.argument(2)), local: None, normal: true, skip_me: false } } else { kill_filter(call)? };
    let mut killed = 0;
    for client in call.server.clients.all() {
        // A killed client counts as gone, though its thread may not have closed it yet.
        let chosen = !client.is_killed()
            && filter.normal
            && filter.id.is_none_or(|id| id == client.id as i64)
            && filter.address.is_none_or(|address| address == client.address.to_string().as_bytes())
            && filter.local.is_none_or(|address| address == client.local.to_string().as_bytes())
            && !(filter.skip_me && client.id == call.session.client.id);
        if chosen {
            killed += 1;
            if client.id == call.session.client.id {
                call.session.closing = Closing::AfterReplies;
            } else {
                call.server.kill(&client);
            }
        }
    }
    match (by_address, killed) {
        (true, 0) => return Err(Failure::fixed("ERR No such client")),
        (true, _) => call.reply.ok(),
        (false, _) => call.reply.integer(killed),
    }
    Ok(())
}

fn kill_filter<'a>(call: &Call<'a>) -> Result<Filter<'a>, Failure> {
    let mut filter = Filter { id: None, address: None, local: None, normal: true, skip_me: true };
    for index in (2..call.arguments.len()).step_by(2) {
        // As in Redis, what precedes the option without a value is judged first.
        let value = call.arguments.get(index + 1).ok_or(Failure::SYNTAX)?;
        if call.arguments.is(index, "id") {
            filter.id = Some(parse_integer(value).filter(|&id| id > 0).ok_or(Failure::fixed("ERR client-id should be greater than 0"))?);
        } else if call.arguments.is(index, "type") {
            filter.normal = is_normal(value)?;
        } else if call.arguments.is(index, "addr") {
            filter.address = Some(value);
        } else if call.arguments.is(index, "laddr") {
            filter.local = Some(value);
        } else if call.arguments.is(index, "user") {
            if value != b"default" {
                return Err(Failure::bytes([b"ERR No such user '", value, b"'"].concat()));
            }
        } else if call.arguments.is(index, "skipme") {
            filter.skip_me = match value.to_ascii_lowercase().as_slice() {
                b"yes" => true,
                b"no" => false,
                _ => return Err(Failure::SYNTAX),
            };
        } else {
            return Err(Failure::SYNTAX);
        }
    }
    Ok(filter)
}
