//! SAVE, BGSAVE, LASTSAVE: a backup of everything, for `everleaf restore`.

use super::{Call, Failure, Slice, Unfinished};
use crate::backups::{Ground, Saving};
use crate::database::Databases;
use crate::reply::Reply;
use crate::shared::{Counters, Shared};
use everleaf::StreamError;
use std::sync::atomic::Ordering;

impl From<StreamError> for Failure {
    fn from(error: StreamError) -> Self {
        Self::text(format_args!("ERR {error}"))
    }
}

const IN_PROGRESS: Failure = Failure::fixed("ERR Background save already in progress");

fn begin(server: &Shared, ground: Ground) -> Option<Result<Saving, StreamError>> {
    server.backups.begin(&server.store, ground, server.change_count())
}

/// `None` if another backup is being written.
fn begin_in_background(server: &Shared) -> Option<Result<(), StreamError>> {
    let stopping = server.stopping.clone();
    let begun = begin(server, Ground::Back)?;
    Some(begun.and_then(|saving| server.backups.continue_in_background(saving, move || stopping.load(Ordering::Acquire))))
}

/// Begins the scheduled backup, if there is one and none is being written. INFO reports why one could not be begun.
pub(crate) fn begin_scheduled(server: &Shared) {
    if server.backups.take_scheduled() && begin_in_background(server).is_none() {
        server.backups.schedule();
    }
}

/// SAVE. Other connections have their turns between its blocks; at the end, the wait for the device holds up its thread.
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
    call.session.unfinished = Some(Box::new(Save(Some(begin(call.server, Ground::Fore).ok_or(IN_PROGRESS)??))));
    Ok(())
}

pub(crate) fn bgsave(call: &mut Call<'_>) -> Result<(), Failure> {
    // In Redis, SCHEDULE waits for tasks that can be in the way there.
    if call.arguments.len() > 2 || (call.arguments.len() == 2 && !call.arguments.is(1, "schedule")) {
        return Err(Failure::SYNTAX);
    }
    if call.databases.transaction.is_some() {
        // The backup is to contain the whole transaction.
        if call.server.backups.state().running_since.is_some() {
            return Err(IN_PROGRESS);
        }
        call.session.wants_backup = true;
        call.reply.simple("Background saving scheduled");
        return Ok(());
    }
    begin_in_background(call.server).ok_or(IN_PROGRESS)??;
    call.reply.simple("Background saving started");
    Ok(())
}

pub(crate) fn lastsave(call: &mut Call<'_>) -> Result<(), Failure> {
    call.reply.integer(call.server.backups.state().last_s as i64);
    Ok(())
}
