//! Commands about keys, not values.

use super::{Call, Failure};
use crate::database::Database;
use everleaf::{Cursor, Direction};
use std::ops::{Bound, ControlFlow};

pub(crate) fn kind(call: &mut Call<'_>) -> Result<(), Failure> {
    let present = call.database().value_size(call.argument(1))?.is_some();
    call.reply.simple(if present { "string" } else { "none" });
    Ok(())
}

/// Longest string that Redis stores together with its header.
const EMBEDDED_SIZE_MAX: usize = 44;

pub(crate) fn encoding(call: &mut Call<'_>) -> Result<(), Failure> {
    let (database, key) = (call.database(), call.argument(2));
    // A long value need not be read to know the answer.
    if database.value_size(key)?.is_some_and(|size| size > EMBEDDED_SIZE_MAX) {
        call.reply.bulk(b"raw");
        return Ok(());
    }
    match database.get(key)? {
        None => call.reply.null(),
        Some(value) if crate::resp::parse_integer(&value).is_some() => call.reply.bulk(b"int"),
        Some(value) if value.len() <= EMBEDDED_SIZE_MAX => call.reply.bulk(b"embstr"),
        // It has grown meanwhile.
        Some(_) => call.reply.bulk(b"raw"),
    }
    Ok(())
}

pub(crate) fn dbsize(call: &mut Call<'_>) -> Result<(), Failure> {
    let count = call.database().count()?;
    call.reply.integer(count as i64);
    Ok(())
}

pub(crate) fn flushdb(call: &mut Call<'_>) -> Result<(), Failure> {
    check_flush_mode(call)?;
    call.database().clear()?;
    call.reply.ok();
    Ok(())
}

pub(crate) fn flushall(call: &mut Call<'_>) -> Result<(), Failure> {
    check_flush_mode(call)?;
    call.databases.all().try_for_each(|database| database.clear())?;
    call.reply.ok();
    Ok(())
}

/// ASYNC and SYNC are the same here: the store unlinks the tree at once, and gives back its blocks in steps, later. Within a transaction every key is removed
/// on its own, so that the flush takes effect with the rest or not at all.
fn check_flush_mode(call: &Call<'_>) -> Result<(), Failure> {
    match call.arguments.len() {
        1 => Ok(()),
        2 if call.arguments.is(1, "async") || call.arguments.is(1, "sync") => Ok(()),
        _ => Err(Failure::SYNTAX),
    }
}

/// Largest number of choices on the way to a key; then the first of the remaining keys is taken.
const CHOICE_COUNT_MAX: usize = 64;

/// Descends from the common prefix of all keys, byte by byte: chooses a byte between the lowest and the highest that occur next, takes the next one that
/// occurs, and continues among the keys that begin so. It can find any key that takes at most [`CHOICE_COUNT_MAX`] choices, but not all with the same
/// probability: keys that share their beginning with few others, or that follow a gap, are more likely.
pub(crate) fn randomkey(call: &mut Call<'_>) -> Result<(), Failure> {
    let database = call.database();
    let mut prefix = Vec::new();
    let Some(mut first) = next_key(database, &mut Cursor::prefix(&prefix, Direction::Forward))? else {
        call.reply.null();
        return Ok(());
    };
    for _ in 0..CHOICE_COUNT_MAX {
        // A concurrent delete may leave no key with this prefix: then the answer is the key that was there before.
        let last = next_key(database, &mut Cursor::prefix(&prefix, Direction::Reverse))?.filter(|last| *last > first);
        let Some(last) = last else { break };
        let size = first.iter().zip(&last).take_while(|(left, right)| left == right).count();
        let highest = last[size];
        // The common prefix may be a key, too, which is then a choice beside the bytes of the other keys.
        let (lowest, is_key) = match first.get(size) {
            Some(byte) => (*byte, false),
            None => {
                let second = next_key(database, &mut Cursor::new(Bound::Excluded(&first), Direction::Forward))?;
                (second.and_then(|second| second.get(size).copied()).map_or(highest, |byte| byte.min(highest)), true)
            }
        };
        let choice = rand::random_range(i16::from(lowest) - i16::from(is_key)..=i16::from(highest));
        if choice < i16::from(lowest) {
            break;
        }
        prefix = [&first[..size], &[choice as u8]].concat();
        let next = next_key(database, &mut Cursor::new(Bound::Included(&prefix), Direction::Forward))?.filter(|next| *next <= last);
        let Some(next) = next.filter(|next| next.len() > size) else { break };
        prefix[size] = next[size];
        first = next;
    }
    call.reply.bulk(&first);
    Ok(())
}

fn next_key(database: Database<'_>, cursor: &mut Cursor) -> Result<Option<Vec<u8>>, Failure> {
    let mut found = None;
    database.walk_keys(cursor, |key| {
        found = Some(key.to_vec());
        ControlFlow::Break(())
    })?;
    Ok(found)
}
