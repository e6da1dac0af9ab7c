//! MEMORY: the space that keys take, and how the pool gives it back.

use super::{Call, Failure};

/// SAMPLES, which limits how much of a large value Redis looks at, is accepted: here everything is looked at.
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

/// Redis returns what its allocator keeps, and replies when that is done. Here records and leaves are moved together first, which takes time: INFO reports the
/// end.
pub(crate) fn purge(call: &mut Call<'_>) -> Result<(), Failure> {
    match call.server.compactions.begin(&call.server.store, &call.server.stopping) {
        Ok(true) => call.reply.ok(),
        Ok(false) => return Err(Failure::fixed("ERR Compaction already in progress")),
        Err(error) => return Err(Failure::text(format_args!("ERR cannot start a thread for the compaction: {error}"))),
    }
    Ok(())
}
