//! Every index of the registry keeps its budget of flushes and fences.

use everleaf_conformance::Class;
use everleaf_conformance::budget::{averages, budget};
use everleaf_index::registry;
use everleaf_pmem::Hardware;

fn each<K: Class + ?Sized>() {
    for entry in registry::<K, Hardware>() {
        budget(&entry, if cfg!(miri) { 200 } else { 3000 });
    }
}

#[test]
fn operations_on_integers_keep_their_budget() {
    each::<u64>();
}

#[test]
fn operations_on_byte_strings_keep_their_budget() {
    each::<[u8]>();
}

#[test]
#[cfg_attr(miri, ignore = "averages need many keys")]
fn ever_keeps_its_averages() {
    let entry = registry::<u64, Hardware>().into_iter().find(|entry| entry.name == "ever").expect("Ever");
    averages(&entry, 60_000);
}
