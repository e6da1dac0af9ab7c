//! Keys that expire: EXPIRE and its family, GETEX, SETEX.
//!
//! The time is the store's. Setting the expiry time of a key writes its value again, with the new time, in one step of the store.

use super::{Call, Failure};
use crate::command::Arguments;
use crate::database::OVER;
use crate::resp::parse_integer;
use everleaf::Change;

/// How a time is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Notation {
    /// Milliseconds in a unit.
    unit_ms: i64,
    /// Whether it counts from now.
    is_relative: bool,
}

/// Seconds from now.
pub(crate) const EX: Notation = Notation { unit_ms: 1000, is_relative: true };
/// Milliseconds from now.
pub(crate) const PX: Notation = Notation { unit_ms: 1, is_relative: true };
/// Seconds since 1970.
pub(crate) const EXAT: Notation = Notation { unit_ms: 1000, is_relative: false };
/// Milliseconds since 1970.
pub(crate) const PXAT: Notation = Notation { unit_ms: 1, is_relative: false };

/// The error for a time out of range.
fn invalid(call: &Call<'_>) -> Failure {
    Failure::text(format_args!("ERR invalid expire time in '{}' command", call.spec.name))
}

/// The time at which a key is to expire.
struct Until {
    /// Milliseconds since 1970; may be negative.
    wanted: i64,
    /// The expiry time for the store: milliseconds since 1970, or [`OVER`].
    expiry_ms: u64,
}

impl Until {
    /// The meaning of `time` at `now_ms`, unless it is out of range.
    fn of(time: i64, notation: Notation, now_ms: u64) -> Option<Self> {
        let now_ms = now_ms as i64;
        let wanted = time.checked_mul(notation.unit_ms)?.checked_add(if notation.is_relative { now_ms } else { 0 })?;
        Some(Self { wanted, expiry_ms: if wanted > now_ms { wanted as u64 } else { OVER } })
    }
}

fn until(call: &Call<'_>, index: usize, notation: Notation) -> Result<Until, Failure> {
    // The time is read once: a key that is to live for a millisecond from now is not over, however late it is written.
    Until::of(call.integer(index)?, notation, call.server.store.time_ms()).ok_or_else(|| invalid(call))
}

/// The expiry time that `time` means, in milliseconds since 1970, if it is still to come.
pub(crate) fn time_to_come(time: &[u8], notation: Notation, now_ms: u64) -> Option<u64> {
    let time = parse_integer(time).filter(|&time| time > 0)?;
    Some(Until::of(time, notation, now_ms)?.expiry_ms).filter(|&expiry_ms| expiry_ms != OVER)
}

/// The expiry time that a positive argument means: in milliseconds since 1970, or [`OVER`].
pub(crate) fn expiry_ms(call: &Call<'_>, index: usize, notation: Notation) -> Result<u64, Failure> {
    if call.integer(index)? <= 0 {
        return Err(invalid(call));
    }
    Ok(until(call, index, notation)?.expiry_ms)
}

/// The notation that a word among the options of SET and GETEX announces, if it is one.
pub(crate) fn notation(arguments: Arguments<'_>, index: usize) -> Option<Notation> {
    [("ex", EX), ("px", PX), ("exat", EXAT), ("pxat", PXAT)].into_iter().find(|(word, _)| arguments.is(index, word)).map(|(_, notation)| notation)
}

/// Whether a time in `notation` may follow the one before (its index and notation). As in Redis, times in one notation may be repeated, and only the last one
/// is looked at; several notations are an error.
pub(crate) fn may_follow(before: Option<(usize, Notation)>, notation: Notation) -> bool {
    before.is_none_or(|(_, before)| before == notation)
}

pub(crate) fn expire(call: &mut Call<'_>) -> Result<(), Failure> {
    set_expiry(call, EX)
}

pub(crate) fn pexpire(call: &mut Call<'_>) -> Result<(), Failure> {
    set_expiry(call, PX)
}

pub(crate) fn expireat(call: &mut Call<'_>) -> Result<(), Failure> {
    set_expiry(call, EXAT)
}

pub(crate) fn pexpireat(call: &mut Call<'_>) -> Result<(), Failure> {
    set_expiry(call, PXAT)
}

/// The conditions of EXPIRE.
#[derive(Default)]
struct Conditions {
    /// The key does not expire.
    nx: bool,
    /// It does.
    xx: bool,
    /// It expires earlier.
    gt: bool,
    /// It expires later, or never.
    lt: bool,
}

impl Conditions {
    fn read(call: &Call<'_>) -> Result<Self, Failure> {
        let mut conditions = Self::default();
        for index in 3..call.arguments.len() {
            let is = |word| call.arguments.is(index, word);
            match () {
                () if is("nx") => conditions.nx = true,
                () if is("xx") => conditions.xx = true,
                () if is("gt") => conditions.gt = true,
                () if is("lt") => conditions.lt = true,
                () => return Err(Failure::bytes([b"ERR Unsupported option ", call.argument(index)].concat())),
            }
        }
        if conditions.nx && (conditions.xx || conditions.gt || conditions.lt) {
            return Err(Failure::fixed("ERR NX and XX, GT or LT options at the same time are not compatible"));
        }
        if conditions.gt && conditions.lt {
            return Err(Failure::fixed("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(conditions)
    }

    /// Whether they hold for a key with expiry time `current` that is to expire at `wanted`.
    fn hold(&self, current: Option<u64>, wanted: i64) -> bool {
        let current = current.map(|current| i64::try_from(current).unwrap_or(i64::MAX));
        match current {
            None => !self.xx && !self.gt,
            Some(current) => !self.nx && (!self.gt || wanted > current) && (!self.lt || wanted < current),
        }
    }
}

fn set_expiry(call: &mut Call<'_>, notation: Notation) -> Result<(), Failure> {
    let conditions = Conditions::read(call)?;
    let Until { wanted, expiry_ms } = until(call, 2, notation)?;
    let mut done = false;
    call.database().modify_entry(call.argument(1), |entry| {
        done = entry.is_some_and(|entry| conditions.hold(entry.expiry_ms, wanted));
        if done { Change::Expire(Some(expiry_ms)) } else { Change::Keep }
    })?;
    call.reply.flag(done);
    Ok(())
}

pub(crate) fn persist(call: &mut Call<'_>) -> Result<(), Failure> {
    let mut done = false;
    call.database().modify_entry(call.argument(1), |entry| {
        done = entry.is_some_and(|entry| entry.expiry_ms.is_some());
        if done { Change::Expire(None) } else { Change::Keep }
    })?;
    call.reply.flag(done);
    Ok(())
}

pub(crate) fn ttl(call: &mut Call<'_>) -> Result<(), Failure> {
    let now_ms = call.server.store.time_ms();
    tell_expiry(call, |expiry_ms| to_seconds(expiry_ms.saturating_sub(now_ms)))
}

pub(crate) fn pttl(call: &mut Call<'_>) -> Result<(), Failure> {
    let now_ms = call.server.store.time_ms();
    tell_expiry(call, |expiry_ms| expiry_ms.saturating_sub(now_ms) as i64)
}

pub(crate) fn expiretime(call: &mut Call<'_>) -> Result<(), Failure> {
    tell_expiry(call, to_seconds)
}

pub(crate) fn pexpiretime(call: &mut Call<'_>) -> Result<(), Failure> {
    tell_expiry(call, |expiry_ms| expiry_ms as i64)
}

/// Rounded, as in Redis.
fn to_seconds(ms: u64) -> i64 {
    (ms.saturating_add(500) / 1000) as i64
}

fn tell_expiry(call: &mut Call<'_>, tell: impl FnOnce(u64) -> i64) -> Result<(), Failure> {
    const ABSENT: i64 = -2;
    const LASTING: i64 = -1;
    let expiry = call.database().expiry_ms(call.argument(1))?;
    call.counters.lookup(expiry.is_some());
    call.reply.integer(match expiry {
        None => ABSENT,
        Some(None) => LASTING,
        Some(Some(expiry_ms)) => tell(expiry_ms),
    });
    Ok(())
}

pub(crate) fn setex(call: &mut Call<'_>) -> Result<(), Failure> {
    set_until(call, EX)
}

pub(crate) fn psetex(call: &mut Call<'_>) -> Result<(), Failure> {
    set_until(call, PX)
}

fn set_until(call: &mut Call<'_>, notation: Notation) -> Result<(), Failure> {
    let expiry_ms = expiry_ms(call, 2, notation)?;
    call.database().put_until(call.argument(1), call.argument(3), Some(expiry_ms))?;
    call.reply.ok();
    Ok(())
}

/// What GETEX does besides returning the value.
enum Also {
    Nothing,
    Persist,
    Expire(u64),
}

/// The options after GETEX's key: the index and the notation of the time, and whether the key is to lose its expiry time.
fn getex_options(call: &Call<'_>) -> Result<(Option<(usize, Notation)>, bool), Failure> {
    let (mut expiry, mut persist) = (None, false);
    let mut index = 2;
    while index < call.arguments.len() {
        if call.arguments.is(index, "persist") && expiry.is_none() {
            persist = true;
        } else {
            let notation = notation(call.arguments, index).filter(|&notation| !persist && may_follow(expiry, notation) && index + 1 < call.arguments.len());
            index += 1;
            expiry = Some((index, notation.ok_or(Failure::SYNTAX)?));
        }
        index += 1;
    }
    Ok((expiry, persist))
}

pub(crate) fn getex(call: &mut Call<'_>) -> Result<(), Failure> {
    let also = match getex_options(call)? {
        (None, false) => Also::Nothing,
        (None, true) => Also::Persist,
        (Some((index, notation)), _) => match expiry_ms(call, index, notation) {
            Ok(expiry_ms) => Also::Expire(expiry_ms),
            // Redis looks for the key first.
            Err(_) if call.database().value_size(call.argument(1))?.is_none() => Also::Nothing,
            Err(error) => return Err(error),
        },
    };
    let mut value = None;
    call.database().modify_entry(call.argument(1), |entry| {
        value = entry.map(|entry| entry.value.clone());
        match also {
            Also::Expire(expiry_ms) => Change::Expire(Some(expiry_ms)),
            Also::Persist if entry.is_some_and(|entry| entry.expiry_ms.is_some()) => Change::Expire(None),
            Also::Persist | Also::Nothing => Change::Keep,
        }
    })?;
    call.counters.lookup(value.is_some());
    match value {
        Some(value) => call.reply.bulk(&value),
        None => call.reply.null(),
    }
    Ok(())
}
