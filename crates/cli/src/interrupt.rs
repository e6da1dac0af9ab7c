//! Signals that ask a command to end. The first one is obeyed where the pool can be closed: one that is not has to be recovered, and is refused if the machine
//! is started again before. The second ends the process at once, of which nothing that was acknowledged is lost.

use crate::failure::Failure;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The signals. `nohup` has the last one ignored, which then stays so.
pub(crate) fn signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    let mut signals = vec![SIGINT, SIGTERM];
    if ignored.unwrap_or(0) >> (SIGHUP - 1) & 1 == 0 {
        signals.push(SIGHUP);
    }
    signals
}

/// What the first signal sets from now on.
pub(crate) fn catch() -> Result<Arc<AtomicBool>, Failure> {
    let caught = Arc::new(AtomicBool::new(false));
    for signal in signals() {
        register_conditional_shutdown(signal, 128 + signal, caught.clone())
            .and_then(|_| register(signal, caught.clone()))
            .map_err(|source| Failure::Io { action: "catch signals".into(), source })?;
    }
    Ok(caught)
}

static HELD: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on a signal waits for the next [`check`].
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

/// [`check`], for what goes on or not.
pub(crate) fn go_on() -> ControlFlow<()> {
    if check().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}
