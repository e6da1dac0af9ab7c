//! Every peer against a map of the standard library: the same operations, the same answers.

use crate::peers;
use everleaf_lab::plan::KeyKind;
use everleaf_lab::{Handle, Instance, Setting, Shutdown, System};
use everleaf_pmem::Domain;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

/// Peers that do not report whether a removed key existed.
const BLIND: [&str; 5] = ["bf-tree", "fjall-durable", "fjall-nosync", "rocksdb-durable", "rocksdb-nosync"];
const KEYS: u64 = 300;
const OPERATIONS: u32 = 1500;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn setting(directory: &Path, key: KeyKind, value_bytes: u32) -> Setting {
    let directory = Some(directory.to_owned());
    Setting { keys_max: KEYS, key, value_bytes, threads: 2, domain: Domain::PageCache, directory, ..Setting::default() }
}

/// A key: 8 bytes, or a string of 20.
fn key(number: u64, kind: KeyKind) -> Vec<u8> {
    let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1;
    if kind == KeyKind::Integer { number.to_be_bytes().into() } else { format!("{number:020}").into_bytes() }
}

fn run(handle: &mut dyn Handle, model: &mut Model, random: &mut SmallRng, system: &dyn System, setting: &Setting) {
    let name = system.name();
    for _ in 0..OPERATIONS {
        let key = key(random.random_range(0..KEYS), setting.key);
        let mut value = vec![0; setting.value_bytes as usize];
        random.fill(value.as_mut_slice());
        match random.random_range(0..10) {
            0..4 => {
                if model.insert(key.clone(), value.clone()).is_none() { handle.insert(&key, &value) } else { handle.update(&key, &value) }.unwrap();
            }
            4..6 => {
                let was_there = handle.delete(&key).unwrap();
                assert!(model.remove(&key).is_some() == was_there || BLIND.contains(&name), "{name}");
            }
            6..9 => check_get(handle, model, &key, name),
            _ => check_scan(handle, model, &key, system),
        }
    }
}

fn check_get(handle: &mut dyn Handle, model: &Model, key: &[u8], name: &str) {
    // Previous content of the buffer is kept.
    let mut found = b"before".to_vec();
    let is_there = handle.get(key, &mut found).unwrap();
    assert_eq!(is_there.then(|| &found[6..]), model.get(key).map(Vec::as_slice), "{name}");
    assert!(found.starts_with(b"before") && (is_there || found.len() == 6), "{name}");
}

fn check_scan(handle: &mut dyn Handle, model: &Model, from: &[u8], system: &dyn System) {
    if !system.capabilities().scans {
        assert!(handle.scan(from, &mut |_, _| ControlFlow::Continue(())).is_err(), "{}", system.name());
        return;
    }
    for limit in [1, 20, usize::MAX] {
        let mut found = Vec::new();
        let visit = &mut |key: &[u8], value: &[u8]| {
            found.push((key.to_vec(), value.to_vec()));
            if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        handle.scan(from, visit).unwrap();
        let expected: Vec<_> = model.range(from.to_vec()..).take(limit).map(|(key, value)| (key.clone(), value.clone())).collect();
        assert!(found == expected, "{}: {} entries of {}", system.name(), found.len(), expected.len());
    }
}

fn check_all(instance: &dyn Instance, model: &Model, system: &dyn System, setting: &Setting) {
    let mut handle = instance.handle().unwrap();
    let keys: Vec<Vec<u8>> = (0..KEYS).map(|number| key(number, setting.key)).collect();
    for key in &keys {
        check_get(handle.as_mut(), model, key, system.name());
    }
    let (size, mut found) = (setting.value_bytes as usize, Vec::new());
    let count = handle.get_many(keys.concat().chunks_exact(keys[0].len()), size, &mut found).unwrap();
    let expected: Vec<u8> = keys.iter().flat_map(|key| model.get(key).cloned().unwrap_or_else(|| vec![0; size])).collect();
    assert!(count == model.len() as u64 && found == expected, "{}: {count} of {}", system.name(), model.len());
}

/// Calls `act` for all peers, each with a seed that is reported when it fails.
fn for_each_peer(kind: KeyKind, value_bytes: u32, act: impl Fn(&dyn System, &Setting, &mut SmallRng)) {
    for system in peers() {
        if kind != KeyKind::Integer && !system.capabilities().any_size {
            continue;
        }
        let seed = rand::random();
        println!("{}, seed {seed}", system.name());
        let directory = tempfile::tempdir().unwrap();
        act(system.as_ref(), &setting(directory.path(), kind, value_bytes), &mut SmallRng::seed_from_u64(seed));
    }
}

#[test]
fn peers_answer_as_a_map_does() {
    for (kind, value_bytes) in [(KeyKind::Integer, 8), (KeyKind::Bytes(20), 100)] {
        for_each_peer(kind, value_bytes, |system, setting, random| {
            let (instance, mut model) = (system.create(setting).unwrap(), Model::new());
            run(instance.handle().unwrap().as_mut(), &mut model, random, system, setting);
            let (keys, value): (Vec<_>, _) = ((0..50).map(|number| key(number, kind)).collect(), vec![7; value_bytes as usize]);
            let (all, values) = (keys.concat(), value.repeat(keys.len()));
            instance.handle().unwrap().insert_many(all.chunks_exact(keys[0].len()), values.chunks_exact(value.len())).unwrap();
            model.extend(keys.into_iter().map(|key| (key, value.clone())));
            check_all(instance.as_ref(), &model, system, setting);
        });
    }
}

#[test]
fn peers_take_several_threads() {
    for_each_peer(KeyKind::Integer, 8, |system, setting, _| {
        let instance = system.create(setting).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let instance = instance.as_ref();
                scope.spawn(move || {
                    let mut handle = instance.handle().unwrap();
                    for number in (thread..KEYS).step_by(2) {
                        handle.insert(&key(number, KeyKind::Integer), &number.to_be_bytes()).unwrap();
                    }
                });
            }
        });
        let model = (0..KEYS).map(|number| (key(number, KeyKind::Integer), number.to_be_bytes().to_vec())).collect();
        check_all(instance.as_ref(), &model, system, setting);
    });
}

#[test]
fn persistent_peers_come_back_with_what_they_promise() {
    for_each_peer(KeyKind::Bytes(20), 100, |system, setting, random| {
        let (instance, mut model) = (system.create(setting).unwrap(), Model::new());
        run(instance.handle().unwrap().as_mut(), &mut model, random, system, setting);
        if !system.capabilities().persistent {
            assert!(instance.reopen(Shutdown::Close, 1).is_err(), "{}", system.name());
            return;
        }
        let mut instance = instance.reopen(Shutdown::Close, 1).unwrap().instance;
        check_all(instance.as_ref(), &model, system, setting);
        run(instance.handle().unwrap().as_mut(), &mut model, random, system, setting);
        instance = instance.reopen(Shutdown::Crash, 1).unwrap().instance;
        // These lose what they have not written yet, as documented.
        if !["sled-nosync", "redb-nosync"].contains(&system.name()) {
            check_all(instance.as_ref(), &model, system, setting);
        }
        assert!(instance.space().unwrap().pool_bytes.is_some_and(|bytes| bytes > 0), "{}", system.name());
    });
}

#[test]
fn names_are_unique_and_are_not_those_of_everleaf() {
    let mut names: Vec<String> = peers().iter().chain(&everleaf_lab::systems()).map(|system| system.name().to_owned()).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert!(names.len() == count && names.iter().all(|name| !name.contains(' ')));
}
