//! Every index of the registry does what `BTreeMap` does.

use everleaf_conformance::Class;
use everleaf_conformance::model::{Options, model};
use everleaf_index::registry;

fn every<K: Class + ?Sized>() {
    let (sequences, steps) = if cfg!(miri) { (2, 12) } else { (60, 100) };
    for entry in registry::<K, _>() {
        model(&entry, Options { sequences, steps, seed: 0x5eed });
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
