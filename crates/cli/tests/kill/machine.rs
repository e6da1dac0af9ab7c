//! Power failures, as far as they can be simulated: the server dies, and each sector of its pool on the device is either as it was when the server began to
//! listen, or as it is now. The kernel writes pages at any time, so either is possible. The journal is complete on the device.

use rand::Rng;
use rand::rngs::StdRng;
use std::fs;
use std::path::{Path, PathBuf};

const SECTOR: usize = 512;
/// The device has the header's synchronised content in place.
const HEADER: usize = 4096;
/// Offset of the generation in the head of a journal file; it is 0 if the journal is empty.
const GENERATION: usize = 40;

/// A pool, as its file was.
pub(crate) struct Moment {
    pool: PathBuf,
    then: Vec<u8>,
}

impl Moment {
    pub(crate) fn of(pool: &Path) -> Self {
        Self { pool: pool.to_owned(), then: fs::read(pool).expect("the pool can be read") }
    }

    /// Simulates the failure, unless the device has received the whole pool meanwhile: only the server knows as of when.
    pub(crate) fn fail(self, random: &mut StdRng) -> bool {
        let generation = |extension| {
            let file = fs::read(self.pool.with_added_extension(extension)).expect("a server that was killed leaves its journal");
            u64::from_le_bytes(file[GENERATION..GENERATION + 8].try_into().expect("eight bytes"))
        };
        if [generation("journal0"), generation("journal1")] != [0, 1] {
            return false;
        }
        let mut now = fs::read(&self.pool).expect("the pool can be read");
        for (number, sector) in now.chunks_mut(SECTOR).enumerate().skip(HEADER / SECTOR) {
            if random.random() {
                match self.then.get(number * SECTOR..(number + 1) * SECTOR) {
                    Some(then) => sector.copy_from_slice(then),
                    None => sector.fill(0),
                }
            }
        }
        fs::write(&self.pool, now).expect("the pool can be written");
        true
    }
}
