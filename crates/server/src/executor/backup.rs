//! SAVE, BGSAVE, LASTSAVE: a backup of everything, for `everleaf restore`.

use super::{Call, Failure, Slice, Unfinished};
use crate::backups::{Ground, Saving};
use crate::database::Databases;
use crate::reply::Reply;
use crate::shared::Counters;
use everleaf::StreamError;

impl From<StreamError> for Failure {
    fn from(error: StreamError) -> Self {
        Self::text(format_args!("ERR {error}"))
    }
}

fn begin(call: &Call<'_>, ground: Ground) -> Result<Saving, Failure> {
    let server = call.server;
    let begun = server.backups.begin(&server.store, ground, server.change_count()).ok_or(Failure::fixed("ERR Background save already in progress"))?;
    Ok(begun?)
}

/// SAVE. Others have their turns between its blocks; the end, when the device is waited for, holds up its thread.
struct Save(Option<Saving>);

impl Unfinished for Save {
    fn advance(&mut self, _databases: Databases<'_>, _counters: &Counters) -> Result<Slice, Failure> {
        if let Some(saving) = &mut self.0
            && saving.advance()?
        {
            return Ok(Slice::More);
        }
        self.0.take().map_or(Ok(()), Saving::finish)?;
        Ok(Slice::Last)
    }

    fn finish(&self, reply: &mut Reply) {
        reply.ok();
    }

    fn size(&self) -> usize {
        0
    }

    fn is_awaited_by_others(&self) -> bool {
        true
    }
}

pub(crate) fn save(call: &mut Call<'_>) -> Result<(), Failure> {
    call.session.unfinished = Some(Box::new(Save(Some(begin(call, Ground::Fore)?))));
    Ok(())
}

pub(crate) fn bgsave(call: &mut Call<'_>) -> Result<(), Failure> {
    // SCHEDULE waits in Redis for what could be in the way there.
    if call.arguments.len() > 2 || (call.arguments.len() == 2 && !call.arguments.is(1, "schedule")) {
        return Err(Failure::SYNTAX);
    }
    let stopping = call.server.stopping.clone();
    call.server.backups.continue_in_background(begin(call, Ground::Back)?, move || stopping.load(std::sync::atomic::Ordering::Acquire))?;
    call.reply.simple("Background saving started");
    Ok(())
}

pub(crate) fn lastsave(call: &mut Call<'_>) -> Result<(), Failure> {
    call.reply.integer(call.server.backups.state().last_s as i64);
    Ok(())
}
