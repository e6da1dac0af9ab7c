//! Commands that write several keys at once, some on a condition. Outside a transaction, MSET and MSETNX are one batch of the store, for MSETNX with the
//! expectation that each key is absent; RENAME, RENAMENX and COPY, which write what they have read, are a transaction of their own.

use super::connection::database_number;
use super::transaction::insist;
use super::{Call, Failure};

/// Keys and values in turn, as the arguments of MSET.
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
    rename_entry(call, false)?;
    call.reply.ok();
    Ok(())
}

pub(crate) fn renamenx(call: &mut Call<'_>) -> Result<(), Failure> {
    let renamed = rename_entry(call, true)?;
    call.reply.flag(renamed);
    Ok(())
}

/// Renames; returns whether it was done.
fn rename_entry(call: &mut Call<'_>, to_be_absent: bool) -> Result<bool, Failure> {
    insist(call, |call| Ok(call.database().rename(call.argument(1), call.argument(2), to_be_absent).into()))??.ok_or(Failure::NO_SUCH_KEY)
}

pub(crate) fn copy(call: &mut Call<'_>) -> Result<(), Failure> {
    let (mut number, mut to_be_absent) = (call.session.database, true);
    let mut index = 3;
    while index < call.arguments.len() {
        if call.arguments.is(index, "replace") {
            to_be_absent = false;
        } else if call.arguments.is(index, "db") && index + 1 < call.arguments.len() {
            index += 1;
            number = database_number(call, index)?;
        } else {
            return Err(Failure::SYNTAX);
        }
        index += 1;
    }
    let (from, to) = (call.argument(1), call.argument(2));
    if from == to && number == call.session.database {
        return Err(Failure::fixed("ERR source and destination objects are the same"));
    }
    let copied = insist(call, |call| Ok(call.database().copy(from, call.databases.at(number), to, to_be_absent).into()))??;
    call.reply.flag(copied);
    Ok(())
}
