//! MEMORY: what keys take.

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
