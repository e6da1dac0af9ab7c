//! The story of a violation: what each life did until it crashed, what the crash kept, what recovery did, which rule broke.

use super::report::Violation;
use super::source::Source;
use everleaf_pmem::{Balance, Deed, Fate, Image, Moment, Store};
use std::fmt;
use std::panic::Location;

/// A crash, and what came before it.
#[derive(Clone, Debug)]
pub struct Crashed {
    /// What the life that crashed here did: from the first operation on, or, for a recovery, all of it. Empty if no story was asked for.
    pub did: Vec<Deed>,
    /// When it crashed.
    pub moment: Moment,
    /// What the crash kept and lost.
    pub balance: Vec<Balance>,
}

impl Crashed {
    pub(super) fn of(image: &Image<'_>) -> Self {
        Self { did: Vec::new(), moment: image.moment(), balance: image.balance() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = &mut Source::of_this_build();
        writeln!(f, "broken rule: {}", self.broken)?;
        writeln!(f, "of: {}, from start {:?}", self.subject, self.start)?;
        if !self.setup.is_empty() {
            writeln!(f, "made durable first: {}", self.setup.join(", "))?;
        }
        writeln!(f, "then: {}", if self.steps.is_empty() { "the pool is opened".to_owned() } else { self.steps.join(", ") })?;
        for (number, crashed) in self.crashes.iter().enumerate() {
            deeds(f, source, number, &crashed.did)?;
            crash(f, source, number, crashed)?;
        }
        deeds(f, source, self.crashes.len(), &self.end)?;
        writeln!(f, "and there the rule is broken: {}", self.broken.rule)?;
        write!(f, "again: {}", self.replay)
    }
}

/// What a life did after this number of crashes.
fn deeds(f: &mut fmt::Formatter<'_>, source: &mut Source, crashes: usize, deeds: &[Deed]) -> fmt::Result {
    if deeds.is_empty() {
        return Ok(());
    }
    match crashes {
        0 => writeln!(f, "what was done:")?,
        1 => writeln!(f, "what was done after the crash:")?,
        crashes => writeln!(f, "what was done after crash {crashes}:")?,
    }
    for deed in deeds {
        let Some(site) = deed.site() else {
            writeln!(f, "  {deed}")?;
            continue;
        };
        at(f, source, &format!("    {deed}"), site.place)?;
        if let Some(mistake) = deed.mistake() {
            writeln!(f, "      the planted mistake is here: {} {mistake}", site.verb)?;
        }
    }
    Ok(())
}

fn crash(f: &mut fmt::Formatter<'_>, source: &mut Source, number: usize, crashed: &Crashed) -> fmt::Result {
    let name = match number {
        0 => "the crash".to_owned(),
        number => format!("crash {}, in the life after crash {number}", number + 1),
    };
    let text = format!("{name}: {}", crashed.moment);
    match crashed.moment.place {
        Some(place) => at(f, source, &text, place)?,
        None => writeln!(f, "{text}")?,
    }
    for Balance { line, stores } in &crashed.balance {
        writeln!(f, "  line {line:#x} keeps {} of {} stores:", stores.iter().filter(|store| store.fate == Fate::Kept).count(), stores.len())?;
        for Store { at: word, old, new, place, fate } in stores {
            at(f, source, &format!("    {fate} +{}: {old:#x} -> {new:#x}", word - line), place)?;
        }
    }
    Ok(())
}

/// A line of the story with its place, and the source text there.
fn at(f: &mut fmt::Formatter<'_>, source: &mut Source, text: &str, place: &'static Location<'static>) -> fmt::Result {
    write!(f, "{text:<48} {place}")?;
    match source.statement(place) {
        Some(statement) => writeln!(f, "  {statement}"),
        None => writeln!(f),
    }
}
