//! Commands about this connection: greetings, password, database.

use super::{Call, Failure};
use crate::REDIS_VERSION;
use crate::client::{Closing, is_name};
use crate::reply::Protocol;

const WRONG_PASSWORD: Failure = Failure::fixed("WRONGPASS invalid username-password pair or user is disabled.");
const NO_PASSWORD: Failure =
    Failure::fixed("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?");
const HELLO_WANTS_AUTH: Failure = Failure::fixed(
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the \
     client and select the RESP protocol version at the same time",
);
pub(crate) const INVALID_NAME: Failure = Failure::fixed("ERR Client names cannot contain spaces, newlines or special characters.");

pub(crate) fn ping(call: &mut Call<'_>) -> Result<(), Failure> {
    match call.arguments.len() {
        1 => call.reply.simple("PONG"),
        2 => call.reply.bulk(call.argument(1)),
        _ => return Err(Failure::arity("ping")),
    }
    Ok(())
}

pub(crate) fn echo(call: &mut Call<'_>) -> Result<(), Failure> {
    call.reply.bulk(call.argument(1));
    Ok(())
}

pub(crate) fn quit(call: &mut Call<'_>) -> Result<(), Failure> {
    call.reply.ok();
    call.session.closing = Closing::AfterReplies;
    Ok(())
}

pub(crate) fn reset(call: &mut Call<'_>) -> Result<(), Failure> {
    call.session.reset(!call.server.has_password());
    call.reply.protocol = Protocol::Resp2;
    call.reply.simple("RESET");
    Ok(())
}

pub(crate) fn select(call: &mut Call<'_>) -> Result<(), Failure> {
    call.session.database = database_number(call, 1)?;
    call.reply.ok();
    Ok(())
}

/// The argument at `index` as the number of an existing database.
pub(crate) fn database_number(call: &Call<'_>, index: usize) -> Result<usize, Failure> {
    let number = i32::try_from(call.integer(index)?).map_err(|_| Failure::NOT_AN_INT)?;
    let number = usize::try_from(number).ok().filter(|number| *number < call.server.databases.len());
    number.ok_or(Failure::fixed("ERR DB index is out of range"))
}

pub(crate) fn auth(call: &mut Call<'_>) -> Result<(), Failure> {
    match call.arguments.len() {
        2 if !call.server.has_password() => return Err(NO_PASSWORD),
        2 => authenticate(call, b"default", call.argument(1))?,
        3 => authenticate(call, call.argument(1), call.argument(2))?,
        _ => return Err(Failure::SYNTAX),
    }
    call.reply.ok();
    Ok(())
}

fn authenticate(call: &mut Call<'_>, user: &[u8], password: &[u8]) -> Result<(), Failure> {
    if user != b"default" || !call.server.is_password(password) {
        return Err(WRONG_PASSWORD);
    }
    call.session.authenticated = true;
    Ok(())
}

pub(crate) fn hello(call: &mut Call<'_>) -> Result<(), Failure> {
    let mut protocol = call.reply.protocol;
    if call.arguments.len() > 1 {
        protocol = match crate::resp::parse_integer(call.argument(1)) {
            Some(2) => Protocol::Resp2,
            Some(3) => Protocol::Resp3,
            Some(_) => return Err(Failure::fixed("NOPROTO unsupported protocol version")),
            None => return Err(Failure::fixed("ERR Protocol version is not an integer or out of range")),
        };
    }
    let mut name = None;
    let mut index = 2;
    while index < call.arguments.len() {
        let more = call.arguments.len() - 1 - index;
        if call.arguments.is(index, "auth") && more >= 2 {
            authenticate(call, call.argument(index + 1), call.argument(index + 2))?;
            index += 3;
        } else if call.arguments.is(index, "setname") && more >= 1 {
            name = Some(call.argument(index + 1));
            index += 2;
        } else {
            let mut text = b"ERR Syntax error in HELLO option '".to_vec();
            text.extend_from_slice(call.argument(index));
            text.push(b'\'');
            return Err(Failure::bytes(text));
        }
    }
    if call.session.owes_password(call.server) {
        return Err(HELLO_WANTS_AUTH);
    }
    if let Some(name) = name {
        if !is_name(name) {
            return Err(INVALID_NAME);
        }
        call.session.client.seen.lock().name = name.to_vec();
    }
    call.reply.protocol = protocol;
    describe_server(call);
    Ok(())
}

fn describe_server(call: &mut Call<'_>) {
    let id = call.session.client.id as i64;
    let reply = &mut *call.reply;
    reply.map(7);
    for (key, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    for (key, value) in [("proto", reply.protocol.version()), ("id", id)] {
        reply.bulk(key.as_bytes());
        reply.integer(value);
    }
    for (key, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
}
