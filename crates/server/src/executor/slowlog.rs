//! SLOWLOG: the last commands that took long.

use super::{Call, Failure};
use crate::calls::Entry;

/// Entries that are returned if the number is not given, as in Redis.
const COUNT: usize = 10;

pub(crate) fn get(call: &mut Call<'_>) -> Result<(), Failure> {
    let count = match call.arguments.len() {
        2 => COUNT,
        3 => match call.integer(2)? {
            -1 => usize::MAX,
            count => usize::try_from(count).map_err(|_| Failure::fixed("ERR count should be greater than or equal to -1"))?,
        },
        _ => return Err(Failure::arity(call.spec.name)),
    };
    let entries = call.server.calls.slow.last(count);
    call.reply.array(entries.len());
    for Entry { number, at_s, took, arguments, address, name } in &entries {
        call.reply.array(6);
        call.reply.integer(*number as i64);
        call.reply.integer(*at_s as i64);
        call.reply.integer(took.as_micros() as i64);
        call.reply.array(arguments.len());
        arguments.iter().for_each(|argument| call.reply.bulk(argument));
        call.reply.bulk(address.as_bytes());
        call.reply.bulk(name);
    }
    Ok(())
}

pub(crate) fn len(call: &mut Call<'_>) -> Result<(), Failure> {
    call.reply.integer(call.server.calls.slow.len() as i64);
    Ok(())
}

pub(crate) fn reset(call: &mut Call<'_>) -> Result<(), Failure> {
    call.server.calls.slow.clear();
    call.reply.ok();
    Ok(())
}
