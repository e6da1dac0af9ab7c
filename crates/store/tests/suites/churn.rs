//! Space under churn: the space of overwritten values is reused.

use everleaf::{Options, Store};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

/// Overwrites all keys in each round, in another order and with values of other sizes up to `value_size`. Keys and values have `live_size` bytes, and the pool
/// may be `ratio` times as large.
fn churn(live_size: usize, value_size: usize, ratio: f64, rounds: usize, seed: u64) {
    println!("seed {seed:#x}");
    let mut random = StdRng::seed_from_u64(seed);
    let store = Store::anonymous(Options { size_max: (live_size as f64 * ratio) as usize, ..Options::default() }).unwrap();
    let space = store.namespace("space").unwrap();
    let mut keys: Vec<u64> = (0..live_size / (value_size / 2 + 8)).map(|key| key as u64).collect();
    let mut sizes = vec![0; keys.len()];
    let bytes = vec![0x5a; value_size];
    for round in 0..=rounds {
        keys.shuffle(&mut random);
        for (done, key) in keys.iter().enumerate() {
            let size = random.random_range(0..value_size);
            let outcome = space.put(&key.to_be_bytes(), &bytes[..size]);
            outcome.unwrap_or_else(|error| panic!("round {round}, {done} of {} keys: {error}", keys.len()));
            sizes[*key as usize] = size;
        }
        println!("round {round}: {} MiB live", (sizes.iter().sum::<usize>() + 8 * sizes.len()) >> 20);
    }
    assert!(keys.iter().all(|key| space.value_size(&key.to_be_bytes()).unwrap() == Some(sizes[*key as usize])));
    assert!(store.verify().unwrap().is_sound());
}

/// With so few keys the sizes vary more.
#[test]
fn a_store_that_is_overwritten_stays_as_large_as_it_is() {
    churn(64 << 20, 8 << 10, 1.35, 4, 0x5eed);
    churn(64 << 20, 100 << 10, 1.35, 4, 0x5eed);
}

#[test]
#[ignore = "1 GB, ten times"]
fn a_gigabyte_that_is_overwritten_ten_times_stays_a_gigabyte() {
    churn(1 << 30, 8 << 10, 1.25, 10, 0x5eed);
    churn(1 << 30, 100 << 10, 1.25, 10, 0x5eed);
}
