//! The store against a model: for any sequence of operations it must answer as maps do, also after it is reopened.

use everleaf::{Act, Batch, Change, Cursor, Direction, Error, Isolation, Merge, Namespace, Options, Snapshot, Store, Transaction};
use everleaf_pmem::{Hardware, Pool, PoolOptions};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::Arc;

const SPACES: [&str; 2] = ["first", "second"];
/// Keys that are prefixes of each other, share eight bytes and more, or contain zeroes and high bytes.
const KEYS: [&[u8]; 16] = [
    b"",
    b"\0",
    b"\0\0",
    b"a",
    b"a\0",
    b"aa",
    b"ab",
    b"b",
    b"bbbbbbbb",
    b"bbbbbbbb\0",
    b"bbbbbbbba",
    b"bbbbbbbbbbbbbbbbbb",
    b"c\xff",
    b"\xff",
    b"\xff\xff",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff",
];

type Model = [BTreeMap<Vec<u8>, Vec<u8>>; 2];

#[derive(Clone, Debug)]
enum Operation {
    Put(usize, usize, Vec<u8>),
    /// Operations on keys in one group; `None` is a lookup. Lookups from this number on are refused.
    Act(usize, Vec<(usize, Option<Option<Vec<u8>>>)>, usize),
    Insert(usize, usize, Vec<u8>),
    Delete(usize, usize),
    Swap(usize, usize, Option<Vec<u8>>, Option<Vec<u8>>),
    Append(usize, usize, Vec<u8>),
    Merge(usize, usize, Vec<u8>),
    DeleteRange(usize, Bound<usize>, Bound<usize>),
    /// Sorted, each key once.
    Load(usize, Vec<(usize, Vec<u8>)>),
    /// This many keys at a time.
    Walk(usize, Bound<usize>, Bound<usize>, bool, usize),
    Write(Vec<(usize, usize, Option<Vec<u8>>)>, Option<(usize, usize, Option<Vec<u8>>)>),
    Scan(usize, Bound<usize>, bool, usize),
    Prefix(usize, usize, bool),
    Transact(Vec<(usize, usize, Option<Vec<u8>>)>, usize, Isolation),
    /// Takes a snapshot, or drops the one with that number.
    Look(usize),
    Clear(usize),
    Reopen,
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let (space, key) = (0..SPACES.len(), 0..KEYS.len());
    // Few values, so that comparisons sometimes succeed; some are long.
    let value = prop_oneof![8 => prop::collection::vec(0u8..2, 0..3), 1 => prop::collection::vec(any::<u8>(), 0..300)];
    let change = (space.clone(), key.clone(), prop::option::of(value.clone()));
    let bound = prop_oneof![key.clone().prop_map(Bound::Included), key.clone().prop_map(Bound::Excluded), Just(Bound::Unbounded)];
    prop_oneof![
        6 => (space.clone(), key.clone(), value.clone()).prop_map(|(s, k, v)| Put(s, k, v)),
        3 => (space.clone(), prop::collection::vec((key.clone(), prop::option::of(prop::option::of(value.clone()))), 0..12), 0usize..24)
            .prop_map(|(s, acts, refused)| Act(s, acts, refused)),
        2 => (space.clone(), key.clone(), value.clone()).prop_map(|(s, k, v)| Insert(s, k, v)),
        3 => (space.clone(), key.clone()).prop_map(|(s, k)| Delete(s, k)),
        3 => (space.clone(), key.clone(), prop::option::of(value.clone()), prop::option::of(value.clone())).prop_map(|(s, k, old, new)| Swap(s, k, old, new)),
        2 => (space.clone(), key.clone(), value.clone()).prop_map(|(s, k, v)| Append(s, k, v)),
        2 => (space.clone(), key.clone(), value.clone()).prop_map(|(s, k, v)| Merge(s, k, v)),
        1 => (space.clone(), bound.clone(), bound.clone()).prop_map(|(s, low, high)| DeleteRange(s, low, high)),
        1 => (space.clone(), prop::collection::btree_map(key.clone(), value.clone(), 0..9)).prop_map(|(s, pairs)| Load(s, pairs.into_iter().collect())),
        2 => (space.clone(), bound.clone(), bound.clone(), any::<bool>(), 1usize..5).prop_map(|(s, from, to, reverse, n)| Walk(s, from, to, reverse, n)),
        4 => (prop::collection::vec(change.clone(), 0..6), prop::option::of(change.clone())).prop_map(|(changes, expected)| Write(changes, expected)),
        4 => (prop::collection::vec(change, 0..8), 0usize..8, prop_oneof![Just(Isolation::Snapshot), Just(Isolation::Serializable)])
            .prop_map(|(changes, kept, isolation)| Transact(changes, kept, isolation)),
        3 => (0usize..4).prop_map(Look),
        3 => (space.clone(), bound, any::<bool>(), 0usize..20).prop_map(|(s, from, reverse, count)| Scan(s, from, reverse, count)),
        2 => (space.clone(), key, any::<bool>()).prop_map(|(s, k, reverse)| Prefix(s, k, reverse)),
        1 => space.prop_map(Clear),
        1 => Just(Reopen),
    ]
}

/// Runs `operations` on a store and on the model, and compares what they answer.
fn run(index: &str, operations: &[Operation]) -> Result<(), Error> {
    let pool = Pool::anonymous(Hardware::page_cache(), PoolOptions { size_max: 8 << 20, ..PoolOptions::default() })?;
    let options = Options { index: index.into(), recovery_threads: 2, ..Options::default() };
    let mut store = Store::on(pool.clone(), &options)?;
    let mut spaces = open_spaces(&store)?;
    let mut model = Model::default();
    let mut looks: Vec<(Snapshot, Model)> = Vec::new();
    for operation in operations {
        match operation {
            Operation::Look(number) if *number < looks.len() => {
                let (snapshot, shown) = looks.swap_remove(*number);
                check_look(&snapshot, &spaces, &shown)?;
            }
            Operation::Look(_) => looks.push((store.snapshot()?, model.clone())),
            Operation::Reopen => {
                looks.clear();
                // The pool is not opened again, so no later check would show that the rest of a clear is free.
                store.collect(usize::MAX)?;
                drop(spaces);
                drop(store);
                store = Store::on(pool.clone(), &options)?;
                spaces = open_spaces(&store)?;
            }
            operation => step(&store, &spaces, &mut model, operation)?,
        }
        for (space, map) in spaces.iter().zip(&model) {
            assert_eq!(space.count(), map.len() as u64, "keys counted after {operation:?}");
        }
    }
    looks.iter().try_for_each(|(snapshot, shown)| check_look(snapshot, &spaces, shown))?;
    let report = store.verify()?;
    assert!(report.is_sound(), "{report:?}");
    drop(looks);
    while store.collect(3)? > 0 {}
    assert_eq!(store.held_back(), everleaf::HeldBack::default());
    let report = store.verify()?;
    assert!(report.is_sound(), "{report:?}");
    for (space, map) in spaces.iter().zip(&model) {
        assert_eq!(space.get_many(&KEYS)?, KEYS.map(|key| map.get(key).cloned()), "in {}", space.name());
        for key in KEYS {
            assert_eq!(space.get(key)?.as_ref(), map.get(key), "{key:?} in {}", space.name());
        }
    }
    Ok(())
}

fn open_spaces(store: &Store) -> Result<Vec<Namespace>, Error> {
    SPACES.iter().map(|name| store.namespace(name)).collect()
}

/// Acts run in order, up to a key whose lookup is refused.
fn act(space: &Namespace, model: &mut BTreeMap<Vec<u8>, Vec<u8>>, acts: &[(usize, Option<Option<Vec<u8>>>)], refused: usize) -> Result<(), Error> {
    let acts = acts.iter().map(|(k, to)| match to {
        None => (KEYS[*k], Act::Get),
        Some(None) => (KEYS[*k], Act::Delete),
        // Not during this test.
        Some(Some(value)) if value.len() % 2 == 1 => (KEYS[*k], Act::PutUntil(value, u64::MAX)),
        Some(Some(value)) => (KEYS[*k], Act::Put(value)),
    });
    let acts: Vec<_> = acts.collect();
    let (mut found, mut values) = (Vec::new(), BTreeMap::new());
    space.act_many(&acts, &mut found, |number, met| {
        if number >= refused {
            return Ok(ControlFlow::Break(()));
        }
        let mut value = Vec::new();
        let size = met.map(|met| met.copy_to(&mut value)).transpose()?;
        values.insert(number, size.map(|_| value));
        Ok(ControlFlow::Continue(()))
    })?;
    let is_refused = |(number, (_, act)): (usize, &(&[u8], Act<'_>))| number >= refused && *act == Act::Get;
    let until = acts.iter().enumerate().position(is_refused).unwrap_or(acts.len());
    let expected = acts[..until].iter().enumerate().map(|(number, (key, act))| match act {
        Act::Get => {
            assert_eq!(values[&number].as_ref(), model.get(*key), "act {number} of {acts:?}");
            model.contains_key(*key)
        }
        Act::Put(value) | Act::PutUntil(value, _) => {
            model.insert(key.to_vec(), value.to_vec());
            false
        }
        Act::Delete => model.remove(*key).is_some(),
    });
    assert_eq!(found.into_iter().map(Result::unwrap).collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{acts:?}");
    Ok(())
}

fn step(store: &Store, spaces: &[Namespace], model: &mut Model, operation: &Operation) -> Result<(), Error> {
    match operation {
        Operation::Put(s, k, value) => {
            spaces[*s].put(KEYS[*k], value)?;
            model[*s].insert(KEYS[*k].to_vec(), value.clone());
        }
        Operation::Act(s, acts, refused) => act(&spaces[*s], &mut model[*s], acts, *refused)?,
        Operation::Insert(s, k, value) => {
            let absent = !model[*s].contains_key(KEYS[*k]);
            assert_eq!(spaces[*s].insert(KEYS[*k], value)?, absent);
            model[*s].entry(KEYS[*k].to_vec()).or_insert_with(|| value.clone());
        }
        Operation::Delete(s, k) => assert_eq!(spaces[*s].delete(KEYS[*k])?, model[*s].remove(KEYS[*k]).is_some()),
        Operation::Swap(s, k, old, new) => {
            let swaps = model[*s].get(KEYS[*k]) == old.as_ref();
            assert_eq!(spaces[*s].compare_and_swap(KEYS[*k], old.as_deref(), new.as_deref())?, swaps);
            if swaps {
                set(model, *s, *k, new.as_deref());
            }
        }
        Operation::Append(s, k, tail) => {
            spaces[*s].modify(KEYS[*k], |old| match old {
                Some(old) if old.len() > 400 => Change::Delete,
                Some(_) if tail.is_empty() => Change::Keep,
                old => Change::Put([old.unwrap_or_default(), tail].concat()),
            })?;
            match model[*s].get(KEYS[*k]).cloned() {
                Some(old) if old.len() > 400 => set(model, *s, *k, None),
                Some(_) if tail.is_empty() => {}
                old => set(model, *s, *k, Some(&[&old.unwrap_or_default()[..], tail].concat())),
            }
        }
        Operation::Merge(s, k, tail) => {
            let (old, tail_too) = (model[*s].get(KEYS[*k]).cloned(), tail.clone());
            let repeat = move |old: Option<&[u8]>| Ok(old.filter(|old| old.len() < 200).map(|old| [old, &tail_too].concat()));
            let merge = if tail.len() % 2 == 0 { Merge::Append(tail.clone()) } else { Merge::With(Arc::new(repeat)) };
            let merged = match (&merge, old) {
                (Merge::With(_), old) => old.filter(|old| old.len() < 200).map(|old| [&old[..], tail].concat()),
                (_, old) => Some([&old.unwrap_or_default()[..], tail].concat()),
            };
            assert_eq!(spaces[*s].merge(KEYS[*k], &merge)?, merged);
            set(model, *s, *k, merged.as_deref());
        }
        Operation::DeleteRange(s, low, high) => {
            let (low, high) = (low.map(|k| KEYS[k]), high.map(|k| KEYS[k]));
            let gone: Vec<_> = model[*s].keys().filter(|key| (low, high).contains(key.as_slice())).cloned().collect();
            assert_eq!(spaces[*s].delete_range((low, high))?, gone.len() as u64);
            gone.iter().for_each(|key| drop(model[*s].remove(key)));
        }
        Operation::Load(s, pairs) => match spaces[*s].load(pairs.iter().map(|(k, value)| (KEYS[*k], value))) {
            Err(Error::Index(error)) => match error.cause() {
                everleaf_index::Cause::NotEmpty { keys } => assert!(*keys == model[*s].len() as u64 && *keys > 0),
                _ => return Err(error.into()),
            },
            loaded => {
                assert!(loaded? == pairs.len() as u64 && model[*s].is_empty());
                model[*s].extend(pairs.iter().map(|(k, value)| (KEYS[*k].to_vec(), value.clone())));
            }
        },
        Operation::Walk(s, from, to, reverse, chunk) => {
            let (from, to) = (from.map(|k| KEYS[k]), to.map(|k| KEYS[k]));
            let direction = if *reverse { Direction::Reverse } else { Direction::Forward };
            let (low, high) = if *reverse { (to, from) } else { (from, to) };
            let mut expected: Entries = model[*s].clone().into_iter().filter(|(key, _)| (low, high).contains(key.as_slice())).collect();
            if *reverse {
                expected.reverse();
            }
            let (snapshot, transaction) = (store.snapshot()?, store.begin(Isolation::Serializable)?);
            for source in 0..4 {
                let mut cursor = Cursor::new(from, direction).until(to);
                let mut found = Entries::new();
                while !cursor.is_over() {
                    // The walk may continue over another source that shows the same.
                    let source = if source == 3 { found.len() % 3 } else { source };
                    let part = collect(*chunk, |visit| match source {
                        0 => spaces[*s].walk(&mut cursor, visit),
                        1 => snapshot.walk(&spaces[*s], &mut cursor, visit),
                        _ => transaction.walk(&spaces[*s], &mut cursor, visit),
                    })?;
                    assert!(part.len() == *chunk || cursor.is_over(), "{operation:?}");
                    found.extend(part);
                }
                assert_eq!(found, expected, "{operation:?} {source}");
            }
        }
        Operation::Write(changes, expected) => {
            let mut batch = Batch::default();
            for (s, k, value) in changes {
                match value {
                    Some(value) => batch.put(&spaces[*s], KEYS[*k], value),
                    None => batch.delete(&spaces[*s], KEYS[*k]),
                }
            }
            let mut holds = true;
            if let Some((s, k, value)) = expected {
                batch.expect(&spaces[*s], KEYS[*k], value.as_deref());
                holds = model[*s].get(KEYS[*k]) == value.as_ref();
            }
            match store.write(batch) {
                Err(Error::Conflict { .. }) if !holds => {}
                outcome => {
                    outcome?;
                    assert!(holds, "the batch was applied although an expectation does not hold");
                    changes.iter().for_each(|(s, k, value)| set(model, *s, *k, value.as_deref()));
                }
            }
        }
        Operation::Transact(changes, kept, isolation) => transact(store, spaces, model, changes, *kept, *isolation)?,
        Operation::Scan(s, from, reverse, count) => {
            let from = from.map(|k| KEYS[k]);
            let direction = if *reverse { Direction::Reverse } else { Direction::Forward };
            let expected = entries(&model[*s], from, direction, *count);
            assert_eq!(collect(*count, |visit| spaces[*s].scan(from, direction, visit))?, expected, "{operation:?}");
            let mut keys = Vec::new();
            spaces[*s].scan_keys(from, direction, |key| {
                keys.push(key.to_vec());
                ControlFlow::Continue(())
            })?;
            assert!(keys.iter().take(*count).eq(expected.iter().map(|(key, _)| key)), "{operation:?}");
        }
        Operation::Prefix(s, k, reverse) => {
            let entries = model[*s].iter().filter(|(key, _)| key.starts_with(KEYS[*k])).map(|(key, value)| (key.clone(), value.clone()));
            let mut expected: Vec<_> = entries.collect();
            if *reverse {
                expected.reverse();
            }
            let direction = if *reverse { Direction::Reverse } else { Direction::Forward };
            assert_eq!(collect(usize::MAX, |visit| spaces[*s].prefix(KEYS[*k], direction, visit))?, expected, "{operation:?}");
        }
        Operation::Clear(s) => {
            spaces[*s].clear()?;
            model[*s].clear();
        }
        Operation::Reopen | Operation::Look(_) => {}
    }
    Ok(())
}

/// Makes `changes` in a transaction, checks at each step that it sees its own, rolls back all but the first `kept` of them, and commits.
fn transact(
    store: &Store,
    spaces: &[Namespace],
    model: &mut Model,
    changes: &[(usize, usize, Option<Vec<u8>>)],
    kept: usize,
    isolation: Isolation,
) -> Result<(), Error> {
    let mut transaction = store.begin(isolation)?;
    let mut own = model.clone();
    let mut kept_at = None;
    for (number, (s, k, value)) in changes.iter().enumerate() {
        if number == kept {
            kept_at = Some((transaction.savepoint(), own.clone()));
        }
        match value {
            Some(value) => transaction.put(&spaces[*s], KEYS[*k], value)?,
            None => assert_eq!(transaction.delete(&spaces[*s], KEYS[*k])?, own[*s].contains_key(KEYS[*k])),
        }
        set(&mut own, *s, *k, value.as_deref());
        check_transaction(&transaction, spaces, &own, KEYS[*k])?;
    }
    if let Some((savepoint, then)) = kept_at {
        transaction.rollback_to(&savepoint);
        own = then;
        check_transaction(&transaction, spaces, &own, KEYS[0])?;
    }
    transaction.commit()?;
    *model = own;
    Ok(())
}

fn check_transaction(transaction: &Transaction, spaces: &[Namespace], own: &Model, from: &[u8]) -> Result<(), Error> {
    for (space, map) in spaces.iter().zip(own) {
        for key in KEYS {
            assert_eq!(transaction.get(space, key)?.as_ref(), map.get(key));
        }
        assert_eq!(transaction.get_many(space, &KEYS)?, KEYS.map(|key| map.get(key).cloned()));
        for (bound, count) in [(Bound::Unbounded, usize::MAX), (Bound::Included(from), 3), (Bound::Excluded(from), usize::MAX)] {
            for direction in [Direction::Forward, Direction::Reverse] {
                let expected = entries(map, bound, direction, count);
                assert_eq!(collect(count, |visit| transaction.scan(space, bound, direction, visit))?, expected, "{bound:?} {direction:?} {count}");
            }
        }
    }
    Ok(())
}

fn check_look(snapshot: &Snapshot, spaces: &[Namespace], shown: &Model) -> Result<(), Error> {
    for (space, map) in spaces.iter().zip(shown) {
        assert_eq!(snapshot.get_many(space, &KEYS)?, KEYS.map(|key| map.get(key).cloned()));
        for key in KEYS {
            assert_eq!(snapshot.get(space, key)?.as_ref(), map.get(key), "{key:?} in {}", space.name());
            assert_eq!(snapshot.value_size(space, key)?, map.get(key).map(Vec::len));
        }
        for direction in [Direction::Forward, Direction::Reverse] {
            let expected = entries(map, Bound::Unbounded, direction, usize::MAX);
            assert_eq!(collect(usize::MAX, |visit| snapshot.scan(space, Bound::Unbounded, direction, visit))?, expected);
        }
    }
    Ok(())
}

/// The entries of a scan of the model.
fn entries(map: &BTreeMap<Vec<u8>, Vec<u8>>, from: Bound<&[u8]>, direction: Direction, count: usize) -> Entries {
    let entry = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone());
    match direction {
        Direction::Forward => map.range::<[u8], _>((from, Bound::Unbounded)).map(entry).take(count).collect(),
        Direction::Reverse => map.range::<[u8], _>((Bound::Unbounded, from)).rev().map(entry).take(count).collect(),
    }
}

fn set(model: &mut Model, space: usize, key: usize, value: Option<&[u8]>) {
    match value {
        Some(value) => drop(model[space].insert(KEYS[key].to_vec(), value.to_vec())),
        None => drop(model[space].remove(KEYS[key])),
    }
}

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// The first `count` entries that `scan` visits.
fn collect(count: usize, scan: impl FnOnce(&mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<(), Error>) -> Result<Entries, Error> {
    let mut entries = Entries::new();
    if count > 0 {
        scan(&mut |key, value| {
            entries.push((key.to_vec(), value.to_vec()));
            if entries.len() < count { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
    }
    Ok(entries)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_store_answers_as_maps_do(operations in prop::collection::vec(operation(), 1..80)) {
        run("ever", &operations).unwrap();
    }

    #[test]
    fn the_store_answers_as_maps_do_on_small_leaves(operations in prop::collection::vec(operation(), 1..80)) {
        run("ever-64", &operations).unwrap();
        run("isle-128", &operations).unwrap();
    }
}
