//! Many threads on every index of the registry.

use everleaf_conformance::Class;
use everleaf_conformance::race::{Options, race};
use everleaf_index::registry;

fn every<K: Class + ?Sized>() {
    for entry in registry::<K, _>() {
        // With few keys threads meet; with many the tree gets deep.
        for (own_keys, shared_keys) in [(6, 2), (600, 50)] {
            let options = match cfg!(miri) {
                true => Options { threads: 2, operations: 60, own_keys: own_keys.min(20), shared_keys: 2, seed: 0x5eed },
                false => Options { threads: 4, operations: if K::WHOLE { 8000 } else { 4000 }, own_keys, shared_keys, seed: 0x5eed },
            };
            race(&entry, options);
        }
    }
}

#[test]
fn threads_share_an_index_of_integers() {
    every::<u64>();
}

#[test]
fn threads_share_an_index_of_byte_strings() {
    every::<[u8]>();
}
