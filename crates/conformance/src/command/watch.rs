//! Shows the progress of a run: a bar on a terminal, otherwise an occasional line.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Steps of a bar.
const STEPS: u64 = 1000;

/// Runs `act` and shows its progress on standard error. `progress`, given the start time, returns the share that is done, and the number of `what`.
pub(super) fn watched<T>(name: &str, what: &str, progress: impl Fn(Instant) -> (f64, u64) + Send, act: impl FnOnce() -> T) -> T {
    let (ended, end) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let begun = Instant::now();
            let bar = std::io::stderr().is_terminal().then(|| bar(name, STEPS));
            let pause = if bar.is_some() { Duration::from_millis(200) } else { Duration::from_secs(30) };
            // The sender is dropped when the run is over.
            while end.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout) {
                let (share, count) = progress(begun);
                let said = said(begun.elapsed(), share, count, what);
                match &bar {
                    Some(bar) => {
                        bar.set_position((share * STEPS as f64) as u64);
                        bar.set_message(said);
                    }
                    None => eprintln!("{name}: {:.0} %, {said}", share * 100.0),
                }
            }
            if let Some(bar) = bar {
                bar.finish_and_clear();
            }
        });
        let result = act();
        drop(ended);
        result
    })
}

/// A bar with this number of steps.
pub(super) fn bar(name: &str, steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:<18} {bar:30} {percent:>3} % {msg}").expect("a template of known parts");
    ProgressBar::new(steps).with_style(style).with_prefix(name.to_owned())
}

/// The progress text when `share` of the work and `count` of `what` are done.
pub(super) fn said(took: Duration, share: f64, count: u64, what: &str) -> String {
    let left = if share > 0.0 { took.mul_f64((1.0 - share) / share).as_secs() } else { 0 };
    let (minutes, seconds) = (left / 60, left % 60);
    format!("{count} {what}, {} a minute, {minutes}:{seconds:02} left", rate(count, took))
}

/// The rate per minute of this count in this time.
pub(super) fn rate(count: u64, took: Duration) -> u64 {
    (count as f64 / took.as_secs_f64().max(1e-3) * 60.0) as u64
}
