//! Values as numbers: INCR and its family.

use super::decimal;
use super::{Call, Failure};
use crate::resp::parse_integer;
use everleaf::Change;

pub(crate) fn incr(call: &mut Call<'_>) -> Result<(), Failure> {
    add(call, 1)
}

pub(crate) fn decr(call: &mut Call<'_>) -> Result<(), Failure> {
    add(call, -1)
}

pub(crate) fn incrby(call: &mut Call<'_>) -> Result<(), Failure> {
    let increment = call.integer(2)?;
    add(call, increment)
}

pub(crate) fn decrby(call: &mut Call<'_>) -> Result<(), Failure> {
    let decrement = call.integer(2)?.checked_neg().ok_or(Failure::fixed("ERR decrement would overflow"))?;
    add(call, decrement)
}

/// Bytes of the longest integer.
const INTEGER_SIZE_MAX: usize = "-9223372036854775808".len();

fn add(call: &mut Call<'_>, increment: i64) -> Result<(), Failure> {
    // Such a value is no integer, and need not be read.
    if call.database().value_size(call.argument(1))?.is_some_and(|size| size > INTEGER_SIZE_MAX) {
        return Err(Failure::NOT_AN_INTEGER);
    }
    let sum = change(call, |current| {
        let old = current.map_or(Some(0), parse_integer).ok_or(Failure::NOT_AN_INTEGER)?;
        let sum = old.checked_add(increment).ok_or(Failure::fixed("ERR increment or decrement would overflow"))?;
        Ok((sum, itoa::Buffer::new().format(sum).as_bytes().to_vec()))
    })?;
    call.reply.integer(sum);
    Ok(())
}

pub(crate) fn incrbyfloat(call: &mut Call<'_>) -> Result<(), Failure> {
    let increment = call.argument(2);
    // The value is judged before the increment.
    let sum = change(call, |current| {
        let old = current.map_or(Some(decimal::Number::ZERO), decimal::Number::parse).ok_or(Failure::NOT_A_FLOAT)?;
        let increment = decimal::Number::parse(increment).ok_or(Failure::NOT_A_FLOAT)?;
        let sum = old.add(increment).ok_or(Failure::fixed("ERR increment would produce NaN or Infinity"))?;
        let text = sum.to_string().into_bytes();
        Ok((text.clone(), text))
    })?;
    call.reply.bulk(&sum);
    Ok(())
}

/// Replaces the value of the key by the one that `next` returns; returns the result that `next` returns with it.
fn change<T>(call: &Call<'_>, next: impl Fn(Option<&[u8]>) -> Result<(T, Vec<u8>), Failure>) -> Result<T, Failure> {
    // Overwritten by the last result of `next`; `modify` fails or calls it.
    let mut outcome = Err(Failure::NO_SUCH_KEY);
    call.database().modify(call.argument(1), |current| {
        let (result, change) = match next(current) {
            Ok((result, value)) => (Ok(result), Change::Put(value)),
            Err(failure) => (Err(failure), Change::Keep),
        };
        outcome = result;
        change
    })?;
    outcome
}
