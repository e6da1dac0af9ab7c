//! Values as strings of bytes: GET, SET and commands that read or change a part.

use super::{Call, Failure, expiry, many};
use crate::command::Arguments;
use everleaf::Change;

pub(crate) fn get(call: &mut Call<'_>) -> Result<(), Failure> {
    let (database, key) = (call.database(), call.argument(1));
    let found = call.reply.bulk_with(|out| database.get_into(key, out))?;
    call.counters.lookup(found);
    Ok(())
}

pub(crate) fn strlen(call: &mut Call<'_>) -> Result<(), Failure> {
    let size = call.database().value_size(call.argument(1))?;
    call.counters.lookup(size.is_some());
    call.reply.integer(size.unwrap_or(0) as i64);
    Ok(())
}

/// A condition on the value of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition<'a> {
    Always,
    IfAbsent,
    IfPresent,
    /// It is present with this value.
    IfEqual(&'a [u8]),
    /// It is absent, or has another value.
    UnlessEqual(&'a [u8]),
}

impl<'a> Condition<'a> {
    /// The condition that the argument `index` begins, and the number of arguments that it takes.
    fn read(arguments: Arguments<'a>, index: usize) -> Option<(Self, usize)> {
        let value = (index + 1 < arguments.len()).then(|| arguments.at(index + 1));
        let with_value = |condition: fn(&'a [u8]) -> Self| Some((condition(value?), 2));
        match () {
            () if arguments.is(index, "nx") => Some((Self::IfAbsent, 1)),
            () if arguments.is(index, "xx") => Some((Self::IfPresent, 1)),
            () if arguments.is(index, "ifeq") => with_value(Self::IfEqual),
            () if arguments.is(index, "ifne") => with_value(Self::UnlessEqual),
            () => None,
        }
    }

    fn holds(self, current: Option<&[u8]>) -> bool {
        match self {
            Self::Always => true,
            Self::IfAbsent => current.is_none(),
            Self::IfPresent => current.is_some(),
            Self::IfEqual(value) => current == Some(value),
            Self::UnlessEqual(value) => current != Some(value),
        }
    }
}

pub(crate) fn set(call: &mut Call<'_>) -> Result<(), Failure> {
    let (key, value) = (call.argument(1), call.argument(2));
    if call.arguments.len() == 3 {
        call.database().put(key, value)?;
        call.reply.ok();
        return Ok(());
    }
    let options = set_options(call)?;
    if options.condition == Condition::IfAbsent && !options.get && call.database().value_size(key)?.is_some() {
        // The value need not be read, however large it is.
        call.reply.null();
        return Ok(());
    }
    let mut old = None;
    let mut written = false;
    call.database().modify(key, |current| {
        written = options.condition.holds(current);
        if options.get {
            old = current.map(<[u8]>::to_vec);
        }
        match options.lifetime {
            _ if !written => Change::Keep,
            Lifetime::Kept => Change::Put(value.to_vec()),
            Lifetime::Until(expiry_ms) => Change::PutUntil(value.to_vec(), expiry_ms),
        }
    })?;
    match old {
        Some(old) => call.reply.bulk(&old),
        None if options.get || !written => call.reply.null(),
        None => call.reply.ok(),
    }
    Ok(())
}

struct SetOptions<'a> {
    condition: Condition<'a>,
    get: bool,
    lifetime: Lifetime,
}

/// The expiry time of the new value.
#[derive(Clone, Copy)]
enum Lifetime {
    /// That of the previous value.
    Kept,
    /// In milliseconds since 1970, or [`OVER`](crate::database::OVER); `None`: never.
    Until(Option<u64>),
}

/// The options after SET's value.
fn set_options<'a>(call: &Call<'a>) -> Result<SetOptions<'a>, Failure> {
    let mut options = SetOptions { condition: Condition::Always, get: false, lifetime: Lifetime::Until(None) };
    let mut keep = false;
    let mut expiry = None;
    let mut index = 3;
    while index < call.arguments.len() {
        let word = |expected| call.arguments.is(index, expected);
        let condition = Condition::read(call.arguments, index);
        // As in Redis, NX and XX may be repeated.
        if let Some((condition, taken)) = condition.filter(|(new, taken)| options.condition == Condition::Always || (options.condition == *new && *taken == 1))
        {
            options.condition = condition;
            index += taken - 1;
        } else if word("get") {
            options.get = true;
        } else if word("keepttl") && expiry.is_none() {
            keep = true;
        } else if let Some(notation) =
            expiry::notation(call.arguments, index).filter(|&notation| !keep && expiry::may_follow(expiry, notation) && index + 1 < call.arguments.len())
        {
            index += 1;
            expiry = Some((index, notation));
        } else {
            return Err(Failure::SYNTAX);
        }
        index += 1;
    }
    options.lifetime = match expiry {
        Some((index, notation)) => Lifetime::Until(Some(expiry::expiry_ms(call, index, notation)?)),
        None if keep => Lifetime::Kept,
        None => Lifetime::Until(None),
    };
    Ok(options)
}

pub(crate) fn setnx(call: &mut Call<'_>) -> Result<(), Failure> {
    let inserted = call.database().insert(call.argument(1), call.argument(2))?;
    call.reply.flag(inserted);
    Ok(())
}

pub(crate) fn getset(call: &mut Call<'_>) -> Result<(), Failure> {
    let value = call.argument(2);
    replace(call, || Change::PutUntil(value.to_vec(), None))
}

pub(crate) fn getdel(call: &mut Call<'_>) -> Result<(), Failure> {
    replace(call, || Change::Delete)
}

/// DELEX: removes a key on a condition.
pub(crate) fn delex(call: &mut Call<'_>) -> Result<(), Failure> {
    let condition = match call.arguments.len() {
        2 => return many::del(call),
        4 => Condition::read(call.arguments, 2).filter(|(_, taken)| *taken == 2).ok_or(Failure::SYNTAX)?.0,
        _ => return Err(Failure::arity(call.spec.name)),
    };
    delete_if(call, condition)
}

pub(crate) fn delifeq(call: &mut Call<'_>) -> Result<(), Failure> {
    let value = call.argument(2);
    delete_if(call, Condition::IfEqual(value))
}

fn delete_if(call: &mut Call<'_>, condition: Condition<'_>) -> Result<(), Failure> {
    let mut done = false;
    call.database().modify(call.argument(1), |current| {
        done = current.is_some() && condition.holds(current);
        if done { Change::Delete } else { Change::Keep }
    })?;
    call.reply.flag(done);
    Ok(())
}

/// Changes a key and returns what it held.
fn replace(call: &mut Call<'_>, change: impl Fn() -> Change) -> Result<(), Failure> {
    let mut old = None;
    call.database().modify(call.argument(1), |current| {
        old = current.map(<[u8]>::to_vec);
        change()
    })?;
    call.counters.lookup(old.is_some());
    match old {
        Some(old) => call.reply.bulk(&old),
        None => call.reply.null(),
    }
    Ok(())
}

pub(crate) fn append(call: &mut Call<'_>) -> Result<(), Failure> {
    let suffix = call.argument(2);
    let size = splice(call, |value| Some((value.map_or(0, <[u8]>::len), suffix)))?;
    call.reply.integer(size as i64);
    Ok(())
}

pub(crate) fn setrange(call: &mut Call<'_>) -> Result<(), Failure> {
    let offset = usize::try_from(call.integer(2)?).map_err(|_| Failure::fixed("ERR offset is out of range"))?;
    let part = call.argument(3);
    if !part.is_empty() {
        call.check_value_size(offset.saturating_add(part.len()))?;
    }
    let size = splice(call, |_| (!part.is_empty()).then_some((offset, part)))?;
    call.reply.integer(size as i64);
    Ok(())
}

/// Writes a part at an offset of a value, both chosen by `choose` from the current value (`None`: write nothing); returns the value's size afterwards.
fn splice<'a>(call: &Call<'_>, choose: impl Fn(Option<&[u8]>) -> Option<(usize, &'a [u8])>) -> Result<usize, Failure> {
    let mut outcome = Ok(0);
    call.database().modify(call.argument(1), |current| {
        let old = current.unwrap_or_default();
        outcome = Ok(old.len());
        let Some((offset, part)) = choose(current) else { return Change::Keep };
        let size = old.len().max(offset + part.len());
        outcome = call.check_value_size(size).map(|()| size);
        if outcome.is_err() {
            return Change::Keep;
        }
        let mut value = Vec::with_capacity(size);
        value.extend_from_slice(old);
        value.resize(size, 0);
        value[offset..offset + part.len()].copy_from_slice(part);
        Change::Put(value)
    })?;
    outcome
}

pub(crate) fn getrange(call: &mut Call<'_>) -> Result<(), Failure> {
    let (start, end) = (call.integer(2)?, call.integer(3)?);
    let value = call.database().get(call.argument(1))?;
    call.counters.lookup(value.is_some());
    let value = value.unwrap_or_default();
    let size = value.len() as i64;
    let from_front = |position: i64| if position < 0 { position.saturating_add(size).max(0) } else { position };
    let (first, last) = (from_front(start), from_front(end).min(size - 1));
    // Two positions before the beginning are no range, although both would be moved to the first byte.
    let empty = first > last || (start < 0 && end < 0 && start > end);
    call.reply.bulk(if empty { &[] } else { &value[first as usize..=last as usize] });
    Ok(())
}
