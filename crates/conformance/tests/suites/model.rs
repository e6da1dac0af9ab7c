//! Every index of the registry does what `BTreeMap` does.

use everleaf_conformance::Class;
use everleaf_conformance::model::{Options, model};
use everleaf_index::registry;

fn every<K: Class + ?Sized>() {
    let (sequences, steps) = if cfg!(miri) { (2, 12) } else { (60, 100) };
    let mut is_other_size = false;
    for entry in registry::<K, _>() {
        // The ones after the one in DRAM are other sizes of the same code.
        let sequences = if is_other_size { sequences / 3 } else { sequences };
        model(&entry, Options { sequences, steps, seed: 0x5eed });
        is_other_size |= entry.name == "volatile";
    }
}

#[test]
fn indexes_of_integers_are_maps() {
    every::<u64>();
}

#[test]
fn indexes_of_byte_strings_are_maps() {
    every::<[u8]>();
}
