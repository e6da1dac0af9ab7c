//! Commands about the server as a whole.

use super::{Call, Failure};
use crate::client::Closing;
use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) fn time(call: &mut Call<'_>) -> Result<(), Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    call.reply.array(2);
    call.reply.bulk(now.as_secs().to_string().as_bytes());
    call.reply.bulk(now.subsec_micros().to_string().as_bytes());
    Ok(())
}

/// Stops the server. Everything is durable already, so SAVE and NOSAVE do the same; there is nothing for NOW to skip, FORCE to overrule or ABORT to cancel.
pub(crate) fn shutdown(call: &mut Call<'_>) -> Result<(), Failure> {
    let (mut save, mut nosave, mut abort) = (false, false, false);
    for index in 1..call.arguments.len() {
        let word = |expected| call.arguments.is(index, expected);
        match () {
            () if word("save") => save = true,
            () if word("nosave") => nosave = true,
            () if word("abort") => abort = true,
            () if word("now") || word("force") => {}
            () => return Err(Failure::SYNTAX),
        }
    }
    if (abort && call.arguments.len() > 2) || (save && nosave) {
        return Err(Failure::SYNTAX);
    }
    if abort {
        return Err(Failure::fixed("ERR No shutdown in progress."));
    }
    call.session.closing = Closing::AfterReplies;
    call.server.stop();
    Ok(())
}
