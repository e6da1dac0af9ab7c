//! MEMORY: what keys take, and how the pool gives back what they took.

use super::{Call, Failure};

/// SAMPLES, which says how much of a large value Redis looks at, is accepted: everything is looked at here.
pub(crate) fn usage(call: &mut Call<'_>) -> Result<(), Failure> {
    match call.arguments.len() {
        3 => {}
        5 if call.arguments.is(3, "samples") && call.integer(4)? >= 0 => {}
        _ => return Err(Failure::SYNTAX),
    }
    match call.database().footprint(call.argument(2))? {
        Some(size) => call.reply.integer(size as i64),
        None => call.reply.null(),
    }
    Ok(())
}

/// Redis hands back what its allocator keeps, and says when that is done. Here records and leaves are moved together first, which takes its time: INFO tells of
/// the end.
pub(crate) fn purge(call: &mut Call<'_>) -> Result<(), Failure> {
    match call.server.compactions.begin(&call.server.store, &call.server.stopping) {
        Ok(true) => call.reply.ok(),
        Ok(false) => return Err(Failure::fixed("ERR Compaction already in progress")),
        Err(error) => return Err(Failure::text(format_args!("ERR cannot start a thread for the compaction: {error}"))),
    }
    Ok(())
}
