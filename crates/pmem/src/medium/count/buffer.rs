//! A model of the buffer in which a persistent-memory module gathers lines before it writes to its medium.
//!
//! The medium is written in units of 256 bytes, four lines. An arriving line goes into a buffer of a fixed number of units. If its unit is there, it costs
//! nothing more. If not, the unit that was written to longest ago makes room; that is one write of the medium, whether one of its lines is new or four. So
//! write amplification is 256 bytes for each unit written, divided by 64 bytes for each line that arrived: 4 at worst, 1 where lines come unit by unit, less
//! where the same lines are flushed again and again. Reads of the medium are not modelled, and neither are units that a device writes before it must.

use super::UNIT;
use crate::LINE;
use std::collections::{BTreeMap, HashMap};

/// A write-combining buffer of whole units that evicts the unit written to longest ago.
#[derive(Clone, Debug)]
pub struct WriteBuffer {
    unit_count_max: usize,
    /// By unit: when it was last written to.
    units: HashMap<usize, u64>,
    /// The same the other way.
    ages: BTreeMap<u64, usize>,
    clock: u64,
    evicted: u64,
}

impl WriteBuffer {
    /// Units in the buffer of a module of the first generations: 16 KiB.
    pub const UNIT_COUNT: usize = 64;

    /// An empty buffer of this many units.
    ///
    /// # Panics
    /// If the number is 0.
    pub fn new(unit_count_max: usize) -> Self {
        assert!(unit_count_max > 0, "a buffer of no unit");
        Self { unit_count_max, units: HashMap::new(), ages: BTreeMap::new(), clock: 0, evicted: 0 }
    }

    /// A line arrives, given by its number.
    pub(super) fn write(&mut self, line: usize) {
        let unit = line * LINE / UNIT;
        self.clock += 1;
        if let Some(before) = self.units.insert(unit, self.clock) {
            self.ages.remove(&before);
        }
        self.ages.insert(self.clock, unit);
        if self.units.len() > self.unit_count_max
            && let Some((_, oldest)) = self.ages.pop_first()
        {
            self.units.remove(&oldest);
            self.evicted += 1;
        }
    }

    /// Units written to the medium, counting all that are still in the buffer.
    pub(super) fn units_written(&self) -> u64 {
        self.evicted + self.units.len() as u64
    }

    /// Empties it.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.unit_count_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(unit_count: usize, lines: &[usize]) -> u64 {
        let mut buffer = WriteBuffer::new(unit_count);
        lines.iter().for_each(|line| buffer.write(*line));
        buffer.units_written()
    }

    #[test]
    fn lines_of_a_unit_are_gathered() {
        assert_eq!(written(1, &[]), 0);
        assert_eq!(written(1, &[0, 1, 2, 3]), 1, "one unit");
        assert_eq!(written(1, &[0, 0, 0, 0, 0]), 1, "the same line");
        assert_eq!(written(1, &[3, 4]), 2, "neighbours in two units");
    }

    #[test]
    fn the_unit_written_to_longest_ago_makes_room() {
        // Units 0, 1, 0 in a buffer of one: each drives out the other.
        assert_eq!(written(1, &[0, 4, 1]), 3);
        assert_eq!(written(2, &[0, 4, 1]), 2);
        // Units 0, 1, 0, 2, 0 in one of two: 2 drives out 1, not 0, which was written to later.
        assert_eq!(written(2, &[0, 4, 1, 8, 2]), 3);
        // Units 0, 1, 2, 0: 2 drives out 0, which comes again.
        assert_eq!(written(2, &[0, 4, 8, 1]), 4);
        // A cycle of three units in a buffer of two: the one needed next is always missing.
        assert_eq!(written(2, &[0, 4, 8, 0, 4, 8, 0, 4, 8]), 9);
        assert_eq!(written(3, &[0, 4, 8, 0, 4, 8, 0, 4, 8]), 3);
    }

    #[test]
    fn a_reset_buffer_is_as_new() {
        let mut buffer = WriteBuffer::new(2);
        (0..100).for_each(|line| buffer.write(line * 4));
        assert_eq!(buffer.units_written(), 100);
        buffer.reset();
        assert_eq!(buffer.units_written(), 0);
        buffer.write(0);
        assert_eq!(buffer.units_written(), 1);
    }
}
