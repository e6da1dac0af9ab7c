//! Signals that ask a command to end. The first one takes effect where the pool can be closed: a pool left open must be recovered, and is refused if the
//! machine restarts before that. A second one ends the process at once, unless it is SIGTERM, which some senders send twice in a row, as `timeout` does to a
//! process and to its group. Nothing that was acknowledged is lost.

use crate::failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The signals. `nohup` makes the process ignore the last one, and this is respected.
pub(crate) fn signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    let mut signals = vec![SIGINT, SIGTERM];
    if ignored.unwrap_or(0) >> (SIGHUP - 1) & 1 == 0 {
        signals.push(SIGHUP);
    }
    signals
}

/// The flag that the first signal sets from now on.
pub(crate) fn catch() -> Result<Arc<AtomicBool>, Failure> {
    let caught = Arc::new(AtomicBool::new(false));
    for signal in signals() {
        let may_force = (signal != SIGTERM).then(|| register_conditional_shutdown(signal, 128 + signal, caught.clone())).transpose();
        may_force.and_then(|_| register(signal, caught.clone())).map_err(|source| Failure::Io { action: "catch signals".into(), source })?;
    }
    Ok(caught)
}

static HELD: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Makes a signal wait for the next [`check`] from now on.
pub(crate) fn hold() -> Result<(), Failure> {
    if HELD.get().is_none() {
        let _ = HELD.set(catch()?);
    }
    Ok(())
}

/// Whether a signal has come since [`hold`].
pub(crate) fn check() -> Result<(), Failure> {
    match HELD.get() {
        Some(caught) if caught.load(Ordering::Relaxed) => Err(Failure::Interrupted),
        _ => Ok(()),
    }
}

/// [`check`], as an answer to whether to go on.
pub(crate) fn go_on() -> ControlFlow<()> {
    if check().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

/// Standard input. Reading it fails after a signal since [`hold`], even while nothing comes.
pub(crate) struct StandardInput;

/// How often a wait for input looks for a signal.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

impl Read for StandardInput {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        // Past the buffer of the standard library, which might hold input while nothing more comes.
        let input = io::stdin();
        loop {
            check().map_err(|_| io::Error::other("a signal has ended it"))?;
            match poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&LOOK)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(rustix::io::read(&input, &mut *bytes)?),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
