//! Keys as such.

use super::{Call, Failure};
use crate::database::Database;
use everleaf::Direction;
use std::ops::{Bound, ControlFlow};

pub(crate) fn kind(call: &mut Call<'_>) -> Result<(), Failure> {
    let present = call.database().value_size(call.argument(1))?.is_some();
    call.reply.simple(if present { "string" } else { "none" });
    Ok(())
}

/// Longest string that Redis keeps beside its header.
const EMBEDDED_SIZE_MAX: usize = 44;

pub(crate) fn encoding(call: &mut Call<'_>) -> Result<(), Failure> {
    match call.database().get(call.argument(2))? {
        None => call.reply.null(),
        Some(value) if crate::resp::parse_integer(&value).is_some() => call.reply.bulk(b"int"),
        Some(value) if value.len() <= EMBEDDED_SIZE_MAX => call.reply.bulk(b"embstr"),
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

/// ASYNC and SYNC are the same here: the store unlinks the tree at once, and gives its blocks back in steps, later.
/// Within a transaction every key is removed on its own, so that it happens with the rest or not at all.
fn check_flush_mode(call: &Call<'_>) -> Result<(), Failure> {
    match call.arguments.len() {
        1 => Ok(()),
        2 if call.arguments.is(1, "async") || call.arguments.is(1, "sync") => Ok(()),
        _ => Err(Failure::SYNTAX),
    }
}

/// Jumps to a random place between the first and the last key and takes the next one. Not every key is equally likely: one behind a large gap is found more
/// often.
pub(crate) fn randomkey(call: &mut Call<'_>) -> Result<(), Failure> {
    let database = call.database();
    let Some(first) = next_key(database, Bound::Unbounded, Direction::Forward)? else {
        call.reply.null();
        return Ok(());
    };
    let last = next_key(database, Bound::Unbounded, Direction::Reverse)?.unwrap_or_else(|| first.clone());
    let found = next_key(database, Bound::Included(&random_between(&first, &last)), Direction::Forward)?;
    call.reply.bulk(&found.unwrap_or(first));
    Ok(())
}

fn next_key(database: Database<'_>, from: Bound<&[u8]>, direction: Direction) -> Result<Option<Vec<u8>>, Failure> {
    let mut found = None;
    database.scan_keys(from, direction, |key| {
        found = Some(key.to_vec());
        ControlFlow::Break(())
    })?;
    Ok(found)
}

/// A string of the common prefix of two keys and eight bytes between what follows it in them.
fn random_between(first: &[u8], last: &[u8]) -> Vec<u8> {
    let prefix_size = first.iter().zip(last).take_while(|(left, right)| left == right).count();
    let word = |key: &[u8]| {
        let mut word = [0; 8];
        let rest = &key[prefix_size..];
        let size = rest.len().min(8);
        word[..size].copy_from_slice(&rest[..size]);
        u64::from_be_bytes(word)
    };
    let (low, high) = (word(first), word(last).max(word(first)));
    let mut between = first[..prefix_size].to_vec();
    between.extend_from_slice(&rand::random_range(low..=high).to_be_bytes());
    between
}
