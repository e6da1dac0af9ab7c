//! Every index of the registry is intact after its file is reopened.

use everleaf_conformance::Class;
use everleaf_conformance::reopen::reopen;
use everleaf_index::registry;

fn every<K: Class + ?Sized>() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    for entry in registry::<K, _>().iter().filter(|entry| entry.persistent) {
        let path = folder.path().join(format!("{}.pool", entry.name));
        reopen(entry, &path, if entry.name == "isle" { 50_000 } else { 5_000 });
        std::fs::remove_file(path).expect("the pool just made");
    }
}

#[test]
#[cfg_attr(miri, ignore = "miri maps no files")]
fn pools_of_integers_are_found_again() {
    every::<u64>();
}

#[test]
#[cfg_attr(miri, ignore = "miri maps no files")]
fn pools_of_byte_strings_are_found_again() {
    every::<[u8]>();
}
