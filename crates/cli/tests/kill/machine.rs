//! Power failures, as far as they can be played: the server dies, and what the device has of its pool is, sector by sector, what the file was when the server
//! began to listen, or what it is now. The kernel writes pages when it likes, so it may have written either. Of the journal the device has all.

use rand::Rng;
use rand::rngs::StdRng;
use std::fs;
use std::path::{Path, PathBuf};

const SECTOR: usize = 512;
/// Of the header, the device has what is synchronised where it lies.
const HEADER: usize = 4096;
/// Where the head of a file of the journal has its generation, 0 if there is nothing in it.
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

    /// The machine fails, unless it has been given all of the pool meanwhile: only the server knows as of when.
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
