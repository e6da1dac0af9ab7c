//! Backup, restore, export and import: the output is the content at one moment, and damage is reported.

use crate::fixture::{FAR_MS, content};
use everleaf::{Direction, Options, Origin, Part, Passed, Store, StreamError, StreamReader, check_stream, restore};
use everleaf_pmem::{Found, Pool};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering};

fn options() -> Options {
    Options { size_max: 256 << 20, recovery_threads: 1, ..Options::default() }
}

fn store(index: &str) -> Store {
    Store::anonymous(Options { index: index.into(), ..options() }).unwrap()
}

/// Keys and values of all sizes, in three namespaces and two indexes.
fn fill(store: &Store, count: usize, value_size_max: usize, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    for (name, index) in [("0", "isle"), ("names", "lb"), ("third", "isle")] {
        let namespace = store.namespace(name).unwrap();
        assert!(namespace.prefer_index(index).unwrap());
        namespace.put(b"a key that is longer than all the others", b"fixed").unwrap();
        for _ in 0..count {
            let key: Vec<u8> = (0..random.random_range(0..20)).map(|_| random.random()).collect();
            let value = vec![random.random(); random.random_range(0..=value_size_max)];
            match random.random_range(0..4) {
                0 => namespace.put_until(&key, &value, FAR_MS + random.random_range(0..1000)).unwrap(),
                1 => namespace.put_until(&key, &value, 1).unwrap(),
                _ => namespace.put(&key, &value).unwrap(),
            }
        }
    }
}

fn export(store: &Store) -> Vec<u8> {
    store.snapshot().unwrap().export(&[], Vec::new()).unwrap().finish().unwrap().0
}

#[test]
fn what_is_imported_is_what_was_exported() {
    let source = store("isle");
    fill(&source, 3000, 1000, 1);
    source.namespace("0").unwrap().put(b"large", &vec![7; 3 << 20]).unwrap();
    let stream = export(&source);
    let (expected, copy) = (content(&source), store("fp"));
    let passed = copy.import(stream.as_slice()).unwrap().finish().unwrap();
    assert!(content(&copy) == expected);
    assert_eq!((passed.namespaces, passed.entries, passed.stream_bytes), (3, expected.len() as u64, stream.len() as u64));
    let indexes: Vec<_> = copy.stats().namespaces.iter().map(|namespace| namespace.index).collect();
    assert_eq!(indexes, ["isle", "lb", "isle"]);
    assert!(copy.verify().unwrap().is_sound());
    // Where a key exists already, the stream's value wins; other keys stay.
    let names = copy.namespace("names").unwrap();
    names.put(b"a key that is longer than all the others", b"changed").unwrap();
    names.put(b"not in the stream, and longer than all", b"kept").unwrap();
    let mut import = copy.import(stream.as_slice()).unwrap();
    while import.advance().unwrap() {}
    assert_eq!(import.finish().unwrap(), passed, "it was at its end");
    assert_eq!(names.get(b"a key that is longer than all the others").unwrap().as_deref(), Some(&b"fixed"[..]));
    assert!(names.delete(b"not in the stream, and longer than all").unwrap());
    assert!(content(&copy) == expected);
    // Of one namespace alone.
    let part = source.snapshot().unwrap().export(&["names"], Vec::new()).unwrap().finish().unwrap();
    assert_eq!((part.1.namespaces, part.1.entries), (1, expected.keys().filter(|(name, _)| name == "names").count() as u64));
}

#[test]
fn an_empty_store_and_an_empty_namespace_have_streams() {
    let source = store("isle");
    assert_eq!(check_stream(export(&source).as_slice(), |_, _| ()).unwrap().entries, 0);
    source.namespace("a").unwrap().put(b"k", b"v").unwrap();
    source.namespace("a").unwrap().delete(b"k").unwrap();
    let stream = export(&source);
    let mut reader = StreamReader::begin(stream.as_slice()).unwrap();
    assert_eq!(reader.next_part().unwrap(), Part::Namespace { name: "a", index: "isle" });
    assert_eq!(reader.next_part().unwrap(), Part::End);
}

/// Regression: a namespace without visible keys was lost, together with its choice of index.
#[test]
fn an_empty_namespace_stays_whatever_copies_it() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let source = Store::open(at("pool"), options()).unwrap();
    for name in ["empty", "expired", "full"] {
        let namespace = source.namespace(name).unwrap();
        assert!(namespace.prefer_index("ever-64").unwrap());
        namespace.put_until(b"k", b"v", if name == "full" { FAR_MS } else { 1 }).unwrap();
    }
    source.namespace("empty").unwrap().delete(b"k").unwrap();
    let indexes = |store: &Store| store.stats().namespaces.into_iter().map(|namespace| (namespace.name, namespace.index)).collect::<Vec<_>>();
    let expected = indexes(&source);
    let stream = export(&source);
    source.close().unwrap();
    let copy = store("ever");
    copy.import(stream.as_slice()).unwrap().finish().unwrap();
    assert_eq!(indexes(&copy), expected);
    restore(&at("restored"), options(), stream.as_slice(), |_, _| ControlFlow::Continue(())).unwrap();
    everleaf::repair(&at("pool"), &at("repaired"), options(), |_| ControlFlow::Continue(())).unwrap();
    everleaf::compact(&at("pool"), options(), |_, _| ControlFlow::Continue(())).unwrap();
    for name in ["restored", "repaired", "pool"] {
        assert_eq!(indexes(&Store::open(at(name), options()).unwrap()), expected, "{name}");
    }
}

/// Two keys are always changed together, others come and go, and a namespace is cleared in between.
#[test]
fn an_export_shows_one_moment_whatever_is_written_meanwhile() {
    let source = store("isle");
    fill(&source, 2000, 200, 2);
    let (one, other) = (source.namespace("0").unwrap(), source.namespace("third").unwrap());
    let is_over = AtomicBool::new(false);
    let set_both = |number: u64| {
        let mut batch = everleaf::Batch::default();
        batch.put(&one, b"both", &number.to_le_bytes());
        batch.put(&other, b"both", &number.to_le_bytes());
        source.write(batch).unwrap();
    };
    set_both(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 1;
            while !is_over.load(Ordering::Relaxed) {
                set_both(number);
                one.put(&number.to_le_bytes(), &[1; 500]).unwrap();
                one.delete(&(number / 2).to_le_bytes()).unwrap();
                number += 1;
            }
        });
        for round in 0..10 {
            let snapshot = source.snapshot().unwrap();
            let expected: Vec<_> = ["0", "names", "third"]
                .iter()
                .flat_map(|name| {
                    let mut entries = Vec::new();
                    let push = |key: &[u8], value: &[u8]| {
                        entries.push((name.to_string(), key.to_vec(), value.to_vec()));
                        ControlFlow::Continue(())
                    };
                    snapshot.scan(&source.namespace(name).unwrap(), Bound::Unbounded, Direction::Forward, push).unwrap();
                    entries
                })
                .collect();
            let mut export = snapshot.export(&[], Vec::new()).unwrap();
            export.advance().unwrap();
            if round == 5 {
                source.namespace("names").unwrap().clear().unwrap();
            }
            let (stream, _) = export.finish().unwrap();
            assert!(entries(&stream) == expected, "round {round}");
            let both: Vec<_> = expected.iter().filter(|(_, key, _)| key == b"both").map(|(_, _, value)| value).collect();
            assert_eq!(both[0], both[1]);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

fn entries(stream: &[u8]) -> Vec<(String, Vec<u8>, Vec<u8>)> {
    let mut reader = StreamReader::begin(stream).unwrap();
    let (mut entries, mut namespace) = (Vec::new(), String::new());
    loop {
        match reader.next_part().unwrap() {
            Part::Namespace { name, .. } => namespace = name.into(),
            Part::Entries(found) => entries.extend(found.iter().map(|entry| (namespace.clone(), entry.key.to_vec(), entry.value.to_vec()))),
            Part::End => return entries,
        }
    }
}

/// Whatever byte is changed or missing: the import fails at an offset not after the change, and until then it yields only what was written.
#[test]
fn every_damage_of_a_stream_is_told() {
    let source = store("isle");
    fill(&source, 20, 30, 3);
    let (stream, all) = (export(&source), content(&source));
    let check = |damaged: &[u8], at: usize, how: &str| {
        let copy = store("isle");
        let failure = match copy.import(damaged) {
            Ok(import) => import.finish().expect_err(how),
            Err(failure) => failure,
        };
        match failure {
            StreamError::Damaged { offset, .. } | StreamError::CutOff { offset } => assert!(offset <= at as u64, "{how} at {at}: {failure}"),
            StreamError::NotAStream | StreamError::UnknownVersion { .. } => assert!(at < 16, "{how} at {at}: {failure}"),
            other => panic!("{how} at {at}: {other}"),
        }
        assert!(content(&copy).iter().all(|(place, entry)| all.get(place) == Some(entry)), "{how} at {at}");
    };
    let mut random = StdRng::seed_from_u64(4);
    for at in 0..stream.len() {
        let mut damaged = stream.clone();
        damaged[at] ^= 1 << random.random_range(0..8);
        check(&damaged, at, "a flipped bit");
        damaged[at] = !stream[at];
        check(&damaged, at, "a flipped byte");
        check(&stream[..at], at, "a stream that is cut off");
    }
    check(&[&stream[..], b"\0"].concat(), stream.len(), "a byte more");
}

/// A forger's checksums are valid.
#[test]
fn a_forged_stream_is_told_and_takes_no_more_memory_than_it_brings() {
    fn block(kind: u32, number: u32, claimed: Option<u32>, content: &[u8]) -> Vec<u8> {
        let size = claimed.unwrap_or(content.len() as u32);
        let mut block: Vec<u8> = [kind, size, number, crc32c::crc32c(content)].iter().flat_map(|word| word.to_le_bytes()).collect();
        let crc = crc32c::crc32c(&block);
        block.extend_from_slice(&crc.to_le_bytes());
        block.extend_from_slice(content);
        block
    }
    fn entry(key: &[u8], value: &[u8]) -> Vec<u8> {
        [&(key.len() as u32).to_le_bytes()[..], &(value.len() as u32).to_le_bytes(), &[0; 8], key, value].concat()
    }
    let header = export(&store("isle"))[..16].to_vec();
    let of_version = |version: u32| {
        let start = [&header[..8], &version.to_le_bytes()].concat();
        check_stream(&[&start[..], &crc32c::crc32c(&start).to_le_bytes()].concat()[..], |_, _| ()).unwrap_err().to_string()
    };
    assert!(of_version(0).contains("version 0 of the format, which there is not"), "{}", of_version(0));
    assert!(of_version(9).contains("read it with a later one"), "{}", of_version(9));
    let origin = block(1, 0, None, &[0; 16]);
    let namespace = |name: &[u8], number| block(2, number, None, &[&[name.len() as u8], name, b"isle"].concat());
    let end = |namespaces: u64, entries: u64, bytes: u64, number| block(4, number, None, &[namespaces, entries, bytes].map(u64::to_le_bytes).concat());
    let cases: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("where it comes from", vec![namespace(b"a", 0)]),
        ("too short", vec![block(1, 0, None, &[0; 15])]),
        ("before any namespace", vec![origin.clone(), block(3, 1, None, &entry(b"k", b"v"))]),
        ("larger than any", vec![origin.clone(), block(3, 1, Some(u32::MAX), b"")]),
        ("in the middle", vec![origin.clone(), block(3, 1, Some(512 << 20), b"")]),
        ("belongs elsewhere", vec![origin.clone(), namespace(b"a", 2)]),
        ("no known kind", vec![origin.clone(), block(9, 1, None, b"")]),
        ("a second time", vec![origin.clone(), namespace(b"a", 1), namespace(b"a", 2)]),
        ("no namespace can have", vec![origin.clone(), namespace(b"", 1)]),
        ("no namespace can have", vec![origin.clone(), namespace(&[b'n'; 41], 1)]),
        ("not UTF-8", vec![origin.clone(), namespace(b"\xff", 1)]),
        ("no namespace can have", vec![origin.clone(), namespace(b"everleaf", 1)]),
        ("not in order", vec![origin.clone(), namespace(b"a", 1), block(3, 2, None, &[entry(b"b", b""), entry(b"a", b"")].concat())]),
        ("not in order", vec![origin.clone(), namespace(b"a", 1), block(3, 2, None, &entry(b"b", b"")), block(3, 3, None, &entry(b"b", b""))]),
        ("is cut off", vec![origin.clone(), namespace(b"a", 1), block(3, 2, None, &entry(b"b", b"value")[..18])]),
        ("larger than any", vec![origin.clone(), namespace(b"a", 1), block(3, 2, None, &entry(&[0; 70_000], b""))]),
        ("larger than any", vec![origin.clone(), namespace(b"a", 1), block(3, 2, None, &[entry(b"a", &[0; 300_000]), entry(b"b", b"")].concat())]),
        ("counts what was not there", vec![origin.clone(), namespace(b"a", 1), block(3, 2, None, &entry(b"b", b"v")), end(1, 2, 2, 3)]),
        ("behind its end", vec![origin.clone(), end(0, 0, 0, 1), namespace(b"a", 2)]),
        ("in the middle", vec![origin.clone(), namespace(b"a", 1)]),
    ];
    for (expected, blocks) in cases {
        let stream = [header.clone(), blocks.concat()].concat();
        let store = store("isle");
        let said = match store.import(stream.as_slice()) {
            Ok(import) => import.finish().expect_err(expected).to_string(),
            Err(failure) => failure.to_string(),
        };
        assert!(said.contains(expected), "{said:?} instead of {expected:?}");
    }
    let sound = [header, origin, namespace(b"a", 1), block(3, 2, None, &entry(b"b", b"v")), end(1, 1, 2, 3)].concat();
    let store = store("isle");
    store.import(sound.as_slice()).unwrap().finish().unwrap();
    assert_eq!(store.namespace("a").unwrap().get(b"b").unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn a_backup_is_whole_or_what_was_there_before() {
    let directory = tempfile::tempdir().unwrap();
    let (file, pool) = (directory.path().join("backup"), directory.path().join("restored.pool"));
    let source = store("isle");
    fill(&source, 2000, 2000, 5);
    let passed = source.snapshot().unwrap().backup(&file).unwrap().finish().unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().len(), passed.stream_bytes);
    let before = std::fs::read(&file).unwrap();
    let mut unfinished = source.snapshot().unwrap().backup(&file).unwrap();
    while unfinished.advance().unwrap() {}
    drop(unfinished);
    assert!(std::fs::read(&file).unwrap() == before);
    let absent = directory.path().join("absent").join("backup");
    assert!(matches!(source.snapshot().unwrap().backup(&absent).map(drop), Err(StreamError::Io { .. })));
    // A file must not replace a pipe: the pipe's reader would receive nothing.
    let pipe = directory.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let refusal = source.snapshot().unwrap().backup(&pipe).map(drop).expect_err("it is a pipe").to_string();
    assert!(refusal.contains("a pipe or a device"), "{refusal}");
    assert!(!std::fs::metadata(&pipe).unwrap().is_file());
    std::fs::remove_file(&pipe).unwrap();
    // A damaged stream leaves no pool.
    let mut damaged = before.clone();
    *damaged.last_mut().unwrap() ^= 1;
    restore(&pool, options(), damaged.as_slice(), |_, _| ControlFlow::Continue(())).expect_err("a damaged stream");
    let names = || std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>();
    assert_eq!(names(), ["backup"]);
    // Nor does an interrupted restore leave anything: the next one starts anew.
    let unfinished = directory.path().join("restored.pool.unfinished");
    std::fs::write(&unfinished, [0; 4096]).unwrap();
    restore(&pool, options(), before.as_slice(), |_, _| ControlFlow::Continue(())).unwrap();
    restore(&pool, options(), before.as_slice(), |_, _| ControlFlow::Continue(())).expect_err("a pool that is there");
    let restored = Store::open(&pool, options()).unwrap();
    assert!(content(&restored) == content(&source));
    assert_eq!(names().len(), 2);
    // A file of that name that is no unfinished restore belongs to somebody else.
    std::fs::remove_file(&pool).unwrap();
    std::fs::write(&unfinished, "a letter").unwrap();
    let refusal = restore(&pool, options(), before.as_slice(), |_, _| ControlFlow::Continue(())).expect_err("a letter").to_string();
    assert!(refusal.contains("is in the way"), "{refusal}");
    assert_eq!(std::fs::read(&unfinished).unwrap(), b"a letter");
}

/// Regression: the pool's own backup took its name, and later writes were lost at the end of the process.
#[test]
fn a_backup_does_not_take_the_place_of_its_pool() {
    let directory = tempfile::tempdir().unwrap();
    let (path, link) = (directory.path().join("pool"), directory.path().join("link"));
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let source = Store::open(&path, options()).unwrap();
    fill(&source, 100, 100, 5);
    for target in [&path, &link] {
        let refusal = source.snapshot().unwrap().backup(target).map(drop).expect_err("it is the pool").to_string();
        assert!(refusal.contains("the pool itself"), "{refusal}");
    }
    let expected = content(&source);
    source.close().unwrap();
    assert!(content(&Store::open(&path, options()).unwrap()) == expected);
}

/// Regression: the pool lost its name, and its server acknowledged writes that were lost at the end of the process.
#[test]
fn a_backup_does_not_take_the_place_of_any_pool() {
    let directory = tempfile::tempdir().unwrap();
    let (served, link) = (directory.path().join("served"), directory.path().join("link"));
    std::os::unix::fs::symlink(&served, &link).unwrap();
    let (source, other) = (store("isle"), Store::open(&served, options()).unwrap());
    fill(&source, 100, 100, 5);
    fill(&other, 100, 100, 6);
    let expected = content(&other);
    let refuse = || {
        for target in [&served, &link] {
            let refusal = source.snapshot().unwrap().backup(target).map(drop).expect_err("it is a pool").to_string();
            assert!(refusal.contains("is a pool"), "{refusal}");
        }
    };
    refuse();
    other.close().unwrap();
    refuse();
    assert!(content(&Store::open(&served, options()).unwrap()) == expected);
    // A file that has appeared there meanwhile.
    let late = directory.path().join("late");
    let backup = source.snapshot().unwrap().backup(&late).unwrap();
    Store::open(&late, options()).unwrap().close().unwrap();
    assert!(backup.finish().map(drop).expect_err("it is a pool").to_string().contains("is a pool"));
    Store::open(&late, options()).unwrap();
}

/// Regression: after a crash that left a new pool with both its names, it could never be compacted.
#[test]
fn a_pool_that_has_kept_its_other_name_is_compacted() {
    let directory = tempfile::tempdir().unwrap();
    let (path, other) = (directory.path().join("pool"), directory.path().join("pool.unfinished"));
    let store = Store::open(&path, options()).unwrap();
    fill(&store, 100, 100, 5);
    let expected = content(&store);
    store.close().unwrap();
    std::fs::hard_link(&path, &other).unwrap();
    everleaf::compact(&path, options(), |_, _| ControlFlow::Continue(())).unwrap();
    assert!(!other.exists() && content(&Store::open(&path, options()).unwrap()) == expected);
}

/// Regression: a misspelt name produced a stream without the namespace, and no error.
#[test]
fn what_is_to_be_exported_is_there_or_that_is_an_error() {
    let source = store("isle");
    source.namespace("one").unwrap().put(b"k", b"v").unwrap();
    source.namespace("asked for").unwrap();
    drop(source.snapshot().unwrap().export(&["one"], Vec::new()).unwrap());
    for name in ["asked for", "none"] {
        let refusal = source.snapshot().unwrap().export(&["one", name], Vec::new()).map(drop).expect_err("it is not there").to_string();
        assert!(refusal.contains(name), "{refusal}");
    }
}

/// Regression: the second of two backups to one file removed what the first had written so far; the end of the first then gave the name to the second's file.
#[test]
fn who_comes_second_to_a_file_that_is_being_written_is_refused() {
    const REFUSAL: &str = "somebody else is writing";
    let directory = tempfile::tempdir().unwrap();
    let (file, pool) = (directory.path().join("backup"), directory.path().join("restored.pool"));
    let unfinished = directory.path().join("backup.unfinished");
    let source = store("isle");
    fill(&source, 2000, 2000, 5);
    let backup = || source.snapshot().unwrap().backup(&file);
    let first = backup().unwrap();
    let refusal = backup().map(drop).expect_err("the first is not done").to_string();
    assert!(refusal.contains(REFUSAL), "{refusal}");
    let passed = first.finish().unwrap();
    assert_eq!(check_stream(std::fs::File::open(&file).unwrap(), |_, _| ()).unwrap().entries, passed.entries);
    // A backup whose file is gone leaves another's file alone, and the previous file of that name.
    let (before, robbed) = (std::fs::read(&file).unwrap(), backup().unwrap());
    std::fs::remove_file(&unfinished).unwrap();
    std::fs::write(&unfinished, [0; 9]).unwrap();
    let refusal = robbed.finish().map(drop).expect_err("its file is gone").to_string();
    assert!(refusal.contains(REFUSAL), "{refusal}");
    assert_eq!(std::fs::read(&unfinished).unwrap(), [0; 9]);
    assert!(std::fs::read(&file).unwrap() == before);
    backup().unwrap().finish().unwrap();
    // A pool under construction.
    let mut refusals = Vec::new();
    let second = |_: Passed, _: &Origin| {
        refusals.push(restore(&pool, options(), before.as_slice(), |_, _| ControlFlow::Continue(())).map(drop).expect_err("the first is not done").to_string());
        ControlFlow::Continue(())
    };
    restore(&pool, options(), before.as_slice(), second).unwrap();
    assert!(!refusals.is_empty() && refusals.iter().all(|refusal| refusal.contains(REFUSAL)), "{refusals:?}");
    assert!(content(&Store::open(&pool, options()).unwrap()) == content(&source));
}

/// Regression: the pool was left as after a crash, and so refused after a restart of the machine, although nothing had happened to it.
#[test]
fn a_pool_whose_compaction_fails_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let store = Store::open(&path, options()).unwrap();
    fill(&store, 2000, 2000, 6);
    let expected = content(&store);
    store.close().unwrap();
    // The place of the new pool holds something that cannot be removed.
    std::fs::create_dir(directory.path().join("pool.unfinished")).unwrap();
    assert!(everleaf::compact(&path, options(), |_, _| ControlFlow::Continue(())).is_err());
    assert_eq!(Pool::inspect(&path).unwrap().info().found, Found::Clean);
    std::fs::remove_dir(directory.path().join("pool.unfinished")).unwrap();
    // There is no room for the new pool.
    assert!(everleaf::compact(&path, Options { size_max: 1 << 20, ..options() }, |_, _| ControlFlow::Continue(())).is_err());
    assert_eq!(Pool::inspect(&path).unwrap().info().found, Found::Clean);
    everleaf::compact(&path, options(), |_, _| ControlFlow::Continue(())).unwrap();
    assert!(content(&Store::open(&path, options()).unwrap()) == expected);
}

/// Regression: keys that a damaged leaf no longer led to were left out, and the pool in which they could be found was gone.
#[test]
fn a_compaction_of_a_damaged_pool_fails_or_loses_nothing() {
    const LINE: usize = 64;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let store = Store::open(&path, options()).unwrap();
    let space = store.namespace("space").unwrap();
    (0..3_000_u32).for_each(|n| space.put(&n.to_be_bytes(), &[7; 20]).unwrap());
    let expected = content(&store);
    drop(space);
    store.close().unwrap();
    let sound = std::fs::read(&path).unwrap();
    let (mut refused, mut done) = (0, 0);
    for at in (4096..sound.len()).step_by(LINE * 41).filter(|at| sound[*at..*at + LINE].iter().any(|byte| *byte != 0)) {
        let mut damaged = sound.clone();
        damaged[at..at + LINE].fill(0);
        std::fs::write(&path, &damaged).unwrap();
        match everleaf::compact(&path, options(), |_, _| ControlFlow::Continue(())) {
            Ok(_) => {
                done += 1;
                assert!(content(&Store::open(&path, options()).unwrap()) == expected, "{at:#x}");
            }
            Err(_) => refused += 1,
        }
    }
    println!("{refused} refused, {done} done");
    assert!(refused > 20);
}

/// Regression: a compacted pool that only its group could read became readable for everybody, as did its backups. If a link led to the pool, the pool stayed
/// uncompacted, and the link was lost.
#[test]
fn what_takes_the_place_of_a_file_takes_its_permissions_and_its_place() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let mode = |name: &str| std::fs::symlink_metadata(at(name)).unwrap().permissions().mode() & 0o7777;
    let set_mode = |name: &str, mode| std::fs::set_permissions(at(name), PermissionsExt::from_mode(mode)).unwrap();
    std::fs::create_dir(at("elsewhere")).unwrap();
    let source = Store::open(at("elsewhere/pool"), options()).unwrap();
    fill(&source, 2000, 2000, 5);
    set_mode("elsewhere/pool", 0o640);
    source.snapshot().unwrap().backup(&at("backup")).unwrap().finish().unwrap();
    assert_eq!(mode("backup") & !0o640, 0, "no more than the pool's");
    set_mode("backup", 0o606);
    std::os::unix::fs::symlink("backup", at("backup link")).unwrap();
    let empty = source.namespace("empty").unwrap();
    empty.put(b"k", b"v").unwrap();
    assert!(empty.delete(b"k").unwrap());
    drop(empty);
    source.snapshot().unwrap().backup_of(&["empty"], &at("backup link")).unwrap().finish().unwrap();
    assert_eq!(mode("backup"), 0o606);
    assert!(std::fs::symlink_metadata(at("backup link")).unwrap().is_symlink());
    assert_eq!(check_stream(std::fs::File::open(at("backup")).unwrap(), |_, _| ()).unwrap().entries, 0);
    let expected = content(&source);
    source.close().unwrap();
    std::os::unix::fs::symlink("elsewhere/pool", at("link")).unwrap();
    let done = everleaf::compact(&at("link"), options(), |_, _| ControlFlow::Continue(())).unwrap();
    assert!(std::fs::symlink_metadata(at("link")).unwrap().is_symlink());
    assert_eq!((mode("elsewhere/pool"), std::fs::metadata(at("elsewhere/pool")).unwrap().len()), (0o640, done.size as u64));
    assert!(content(&Store::open(at("link"), options()).unwrap()) == expected);
    set_mode("elsewhere/pool", 0o600);
    everleaf::repair(&at("elsewhere/pool"), &at("repaired"), options(), |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(mode("repaired"), 0o600);
    std::os::unix::fs::symlink("nowhere", at("dangling")).unwrap();
    let refused = restore(&at("dangling"), options(), std::io::empty(), |_, _| ControlFlow::Continue(())).expect_err("a link of that name");
    assert!(matches!(refused, StreamError::Exists { .. }), "{refused}");
    let mut names: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["backup", "backup link", "dangling", "elsewhere", "link", "repaired"]);
    assert_eq!(std::fs::read_dir(at("elsewhere")).unwrap().count(), 1);
}
