//! Commands that write several keys at once, some on a condition: one batch of the store each, unless they are part of a transaction.
//!
//! A condition on what the keys hold goes into the batch as an expectation. If another client changes one of them between the look and the batch, the batch is
//! refused as a whole and the command begins anew; each such turn means that another write went through, so that somebody always gets on.

use super::{Call, Failure};

/// Keys and values in turn, as MSET takes them.
fn pairs<'a>(call: &Call<'a>) -> Result<impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone + use<'a>, Failure> {
    if call.arguments.len().is_multiple_of(2) {
        return Err(Failure::arity(call.spec.name));
    }
    let arguments = call.arguments;
    Ok((1..arguments.len()).step_by(2).map(move |index| (arguments.at(index), arguments.at(index + 1))))
}

pub(crate) fn mset(call: &mut Call<'_>) -> Result<(), Failure> {
    call.database().put_all(pairs(call)?)?;
    call.reply.ok();
    Ok(())
}

pub(crate) fn msetnx(call: &mut Call<'_>) -> Result<(), Failure> {
    let written = call.database().insert_all(pairs(call)?)?;
    call.reply.flag(written);
    Ok(())
}

pub(crate) fn rename(call: &mut Call<'_>) -> Result<(), Failure> {
    move_value(call, Target::Any)?;
    call.reply.ok();
    Ok(())
}

pub(crate) fn renamenx(call: &mut Call<'_>) -> Result<(), Failure> {
    let moved = move_value(call, Target::Absent)?;
    call.reply.flag(moved);
    Ok(())
}

/// What the new name may hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Any,
    Absent,
}

/// Gives the value of one key to another; whether it was done.
fn move_value(call: &Call<'_>, target: Target) -> Result<bool, Failure> {
    let (database, from, to) = (call.database(), call.argument(1), call.argument(2));
    loop {
        let entry = database.entry(from)?.ok_or(Failure::NO_SUCH_KEY)?;
        if from == to {
            return Ok(target == Target::Any);
        }
        if target == Target::Absent && database.value_size(to)?.is_some() {
            return Ok(false);
        }
        if database.rename(from, &entry, to, target == Target::Absent)? {
            return Ok(true);
        }
    }
}
