//! Damaged pools of every index of the registry.

use crate::is_on_another_router;
use everleaf_conformance::Class;
use everleaf_conformance::corruption::corruption;
use everleaf_index::registry;

fn every<K: Class + ?Sized>() {
    for entry in registry::<K, _>().into_iter().filter(|entry| entry.persistent) {
        let name = entry.name;
        let outcomes = corruption(entry, 150, if is_on_another_router(name) { 150 } else { 1000 });
        println!("{name}, {} keys: {outcomes}", K::NAME);
        // Where a bitmap, a count, or a value of 0 says which entries exist, damage to it may hide some, and nothing else shows this. In wB+-Tree a slot array
        // shows it, but only while its bit says that it counts. In a list, the number of entries noted at the close shows it, unless that is damaged too.
        let unnoticed_max = match name.split('-').next() {
            Some("circ") => 2,
            Some("lb" | "lcb" | "fp" | "nv" | "wb" | "fast" | "skip") => 1,
            _ => 0,
        };
        assert!(K::WHOLE || outcomes.unnoticed <= unnoticed_max, "{name}: records are sealed and heads are checked against them: {outcomes}");
        assert!(outcomes.refused > 0 && outcomes.noticed > 0 && outcomes.harmless > 0, "{name}: the damage is not varied: {outcomes}");
    }
}

#[test]
fn damaged_pools_of_integers_get_an_answer() {
    every::<u64>();
}

#[test]
fn damaged_pools_of_byte_strings_get_an_answer() {
    every::<[u8]>();
}
