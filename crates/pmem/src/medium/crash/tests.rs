//! What the crash medium shows, against what the model allows.

use super::*;
use crate::{Off, Pm, Word};
use std::collections::BTreeSet;

const SIZE: usize = 4096;

/// A life and words to write in it: word i of line l is `word(pm, l, i)`.
fn pm(memory: &Memory, crash: Crash) -> Pm<Crash> {
    // SAFETY: each test keeps its memory until the end.
    unsafe { Pm::new(crash, memory.base(), memory.size()) }
}

fn word(pm: &Pm<Crash>, line: u64, word: u64) -> &Word {
    pm.get(Off::new(line * 64 + word * 8)).unwrap()
}

fn store(pm: &Pm<Crash>, line: u64, index: u64, value: u64) {
    pm.store(word(pm, line, index), value, Ordering::Release);
}

/// The images shown: for each, the non-zero words of lines 1 to 3, with the event and the point.
type Shown = Arc<Mutex<Vec<(u64, Event, Vec<(usize, u64)>)>>>;

fn watch(memory: &Arc<Memory>, life: &Life) -> Shown {
    let shown = Shown::default();
    let (sink, memory) = (Arc::clone(&shown), Arc::clone(memory));
    life.observe(move |image| {
        sink.lock().push((image.point, image.event, content(&memory)));
        Seen::default()
    });
    shown
}

fn content(memory: &Memory) -> Vec<(usize, u64)> {
    let words = memory.words().iter().enumerate().map(|(at, word)| (at, word.load(Ordering::Relaxed)));
    words.filter(|(_, value)| *value != 0).collect()
}

fn images(shown: &Shown, point: u64) -> BTreeSet<Vec<(usize, u64)>> {
    shown.lock().iter().filter(|(at, ..)| *at == point).map(|(.., content)| content.clone()).collect()
}

/// Enumerates a product of prefixes by hand.
fn products(lines: &[&[(usize, u64)]]) -> BTreeSet<Vec<(usize, u64)>> {
    let mut all = BTreeSet::from([Vec::new()]);
    for line in lines {
        let with = |base: &Vec<(usize, u64)>| (0..=line.len()).map(|kept| apply(base, &line[..kept])).collect::<Vec<_>>();
        all = all.iter().flat_map(with).collect();
    }
    all
}

fn apply(base: &[(usize, u64)], stores: &[(usize, u64)]) -> Vec<(usize, u64)> {
    let mut map: std::collections::BTreeMap<_, _> = base.iter().copied().collect();
    map.extend(stores.iter().copied());
    map.into_iter().collect()
}

#[test]
fn a_crash_keeps_any_prefix_of_each_line() {
    let memory = Memory::new(SIZE).unwrap();
    let life = Crash::new(&memory).live(CrashOptions::default());
    let shown = watch(&memory, &life);
    let pm = pm(&memory, life.medium());
    for (line, index, value) in [(1, 0, 1), (2, 0, 2), (1, 1, 3), (1, 0, 4), (3, 7, 5)] {
        store(&pm, line, index, value);
    }
    pm.flush(word(&pm, 2, 0));
    pm.fence();
    let expected = products(&[&[(8, 1), (9, 3), (8, 4)], &[(16, 2)], &[(31, 5)]]);
    assert_eq!(expected.len(), 4 * 2 * 2);
    assert_eq!(images(&shown, 1), expected);
    assert_eq!(shown.lock().len(), 16, "no image twice");
    assert_eq!(content(&memory), [(8, 4), (9, 3), (16, 2), (31, 5)], "and back");
    life.end();
    assert!(images(&shown, 2).iter().all(|image| image.contains(&(16, 2))), "line 2 is durable");
    assert_eq!(images(&shown, 2).len(), 8);
}

#[test]
fn a_flush_covers_what_was_stored_before_it() {
    let memory = Memory::new(SIZE).unwrap();
    let life = Crash::new(&memory).live(CrashOptions::default());
    let pm = pm(&memory, life.medium());
    store(&pm, 1, 0, 1);
    pm.flush(word(&pm, 1, 0));
    store(&pm, 1, 1, 2);
    pm.fence();
    let shown = watch(&memory, &life);
    life.end();
    assert_eq!(images(&shown, 1), BTreeSet::from([vec![(8, 1)], vec![(8, 1), (9, 2)]]));
    pm.fence();
    life.end();
    assert_eq!(images(&shown, 2).len(), 2, "a fence without a flush orders nothing, and is no crash point");
}

#[test]
fn a_fence_of_another_thread_makes_nothing_durable() {
    let memory = Memory::new(SIZE).unwrap();
    let life = Crash::new(&memory).live(CrashOptions::default());
    let pm = pm(&memory, life.medium());
    store(&pm, 1, 0, 1);
    store(&pm, 2, 0, 2);
    pm.flush(word(&pm, 1, 0));
    std::thread::scope(|scope| {
        scope.spawn(|| pm.persist(word(&pm, 2, 0)));
    });
    let shown = watch(&memory, &life);
    life.end();
    assert_eq!(images(&shown, 1), BTreeSet::from([vec![(16, 2)], vec![(8, 1), (16, 2)]]), "but its flush of another's store does");
}

#[test]
fn an_exchange_completes_earlier_flushes_and_not_its_own_store() {
    for expected in [0, 7] {
        let memory = Memory::new(SIZE).unwrap();
        let life = Crash::new(&memory).live(CrashOptions::default());
        let pm = pm(&memory, life.medium());
        store(&pm, 1, 0, 1);
        pm.flush(word(&pm, 1, 0));
        let shown = watch(&memory, &life);
        assert_eq!(pm.compare_exchange(word(&pm, 2, 0), expected, 9).is_ok(), expected == 0);
        assert_eq!(images(&shown, 1), BTreeSet::from([vec![], vec![(8, 1)]]));
        assert_eq!(shown.lock()[0].1, Event::Exchange);
        life.end();
        let own = if expected == 0 { BTreeSet::from([vec![(8, 1)], vec![(8, 1), (16, 9)]]) } else { BTreeSet::from([vec![(8, 1)]]) };
        assert_eq!(images(&shown, 2), own);
    }
}

#[test]
fn a_durable_cache_leaves_one_image_per_store() {
    let memory = Memory::new(SIZE).unwrap();
    let life = Crash::new(&memory).live(CrashOptions { stores_are_durable: true, ..CrashOptions::default() });
    let shown = watch(&memory, &life);
    let pm = pm(&memory, life.medium());
    store(&pm, 1, 0, 1);
    store(&pm, 2, 0, 2);
    pm.compare_exchange(word(&pm, 1, 0), 1, 3).unwrap();
    life.end();
    let seen: Vec<_> = shown.lock().iter().map(|(.., content)| content.clone()).collect();
    assert_eq!(seen, [vec![], vec![(8, 1)], vec![(8, 1), (16, 2)], vec![(8, 3), (16, 2)]]);
}

/// Every subset of `stores`.
fn subsets(stores: &[(usize, u64)]) -> BTreeSet<Vec<(usize, u64)>> {
    products(&stores.iter().map(std::slice::from_ref).collect::<Vec<_>>())
}

#[test]
fn of_a_copy_that_a_crash_cuts_into_any_words_are_there() {
    let memory = Memory::new(SIZE).unwrap();
    let life = Crash::new(&memory).live(CrashOptions::default());
    let shown = watch(&memory, &life);
    let pm = pm(&memory, life.medium());
    // Words 3 to 7 of line 1, and two of line 2.
    pm.fill(pm.words(Off::<u64>::new(64 + 24), 7).unwrap(), &[1; 50]);
    life.end();
    let words = |from: usize| {
        let last = if from == 17 { 0x0101 } else { 0x0101_0101_0101_0101 };
        (from, last)
    };
    let set: Vec<_> = (11..18).map(words).collect();
    assert_eq!(shown.lock().len(), 128, "no image twice");
    assert_eq!(images(&shown, 1), subsets(&set));
    // An ordered store comes after all of it in its line; what follows it is a set of its own, which may be there without it.
    store(&pm, 1, 0, 9);
    pm.store(word(&pm, 1, 1), 8, Ordering::Relaxed);
    life.end();
    let mut first = subsets(&[set[..5].to_vec(), vec![(9, 8)]].concat());
    let whole = apply(&set[..5], &[(8, 9)]);
    first.extend([apply(&whole, &[(9, 8)]), whole]);
    let wanted: BTreeSet<_> = first.iter().flat_map(|first| subsets(&set[5..]).into_iter().map(|second| apply(first, &second))).collect();
    assert_eq!(images(&shown, 2), wanted);
    assert_eq!(content(&memory).len(), 9, "and back");
}

#[test]
fn relaxed_stores_stay_between_the_flushes_of_their_thread_and_behind_those_of_others() {
    let memory = Memory::new(SIZE).unwrap();
    let life = Crash::new(&memory).live(CrashOptions::default());
    let shown = watch(&memory, &life);
    let pm = pm(&memory, life.medium());
    let relaxed = |index, value| pm.store(word(&pm, 1, index), value, Ordering::Relaxed);
    relaxed(0, 1);
    pm.flush(word(&pm, 2, 0));
    relaxed(1, 2);
    relaxed(0, 3);
    std::thread::scope(|scope| _ = scope.spawn(|| relaxed(2, 4)));
    life.end();
    let wanted = [vec![], vec![(8, 1)], vec![(8, 3)], vec![(8, 1), (9, 2)], vec![(8, 3), (9, 2)], vec![(8, 3), (9, 2), (10, 4)]];
    assert_eq!(images(&shown, 1), BTreeSet::from(wanted));
}

#[test]
fn what_is_streamed_is_there_or_not_until_a_fence_whatever_is_flushed() {
    for stores_are_durable in [false, true] {
        let memory = Memory::new(SIZE).unwrap();
        let life = Crash::new(&memory).live(CrashOptions { stores_are_durable, ..CrashOptions::default() });
        let pm = pm(&memory, life.medium());
        store(&pm, 1, 0, 1);
        pm.persist(word(&pm, 1, 0));
        // Words 1 and 2 of line 1, the latter with a tail; ordered stores after it in the line, one of them to a word that was streamed.
        let words = pm.words(Off::<u64>::new(64), 8).unwrap();
        pm.stream(&words[1..3], &[1; 11]);
        store(&pm, 1, 3, 3);
        store(&pm, 1, 2, 4);
        pm.flush(words);
        std::thread::scope(|scope| _ = scope.spawn(|| pm.fence()));
        let shown = watch(&memory, &life);
        let (ones, tail) = ((9, 0x0101_0101_0101_0101), (10, 0x01_0101));
        let base = [(8, 1)];
        let with = |images: BTreeSet<Vec<_>>| images.iter().map(|image| apply(&base, image)).collect::<BTreeSet<_>>();
        life.end();
        let others = if stores_are_durable { vec![vec![(11, 3), (10, 4)]] } else { vec![vec![], vec![(11, 3)], vec![(11, 3), (10, 4)]] };
        let mut wanted: BTreeSet<_> = others.iter().flat_map(|more| subsets(&[ones]).into_iter().map(|image| apply(&image, more))).collect();
        if !stores_are_durable {
            wanted.extend([vec![tail], vec![ones, tail], vec![tail, (11, 3)], vec![ones, tail, (11, 3)]]);
        }
        assert_eq!(images(&shown, life.points()), with(wanted));
        pm.fence();
        assert_eq!(shown.lock().last().unwrap().1, Event::Fence, "which makes it durable");
        life.end();
        assert_eq!(images(&shown, life.points()), BTreeSet::from([apply(&base, &[ones, (10, 4), (11, 3)])]), "the flush was this thread's, too");
    }
}

#[test]
fn what_is_streamed_into_the_caches_needs_a_flush() {
    let memory = Memory::new(SIZE).unwrap();
    let life = Crash::new(&memory).live(CrashOptions { awaits_device: true, ..CrashOptions::default() });
    let pm = pm(&memory, life.medium());
    let words = pm.words(Off::<u64>::new(64), 16).unwrap();
    pm.stream(&words[7..9], &[1; 16]);
    pm.flush(&words[8..]);
    pm.fence();
    let shown = watch(&memory, &life);
    life.end();
    let (unflushed, flushed) = ((15, 0x0101_0101_0101_0101), (16, 0x0101_0101_0101_0101));
    assert_eq!(images(&shown, life.points()), BTreeSet::from([vec![flushed], vec![unflushed, flushed]]));
}

#[test]
fn an_exchange_completes_what_was_streamed() {
    let memory = Memory::new(SIZE).unwrap();
    let life = Crash::new(&memory).live(CrashOptions::default());
    let pm = pm(&memory, life.medium());
    pm.stream(pm.words(Off::<u64>::new(64), 1).unwrap(), &[1]);
    assert!(pm.compare_exchange(word(&pm, 3, 0), 1, 2).is_err());
    let shown = watch(&memory, &life);
    life.end();
    assert_eq!(images(&shown, life.points()), BTreeSet::from([vec![(8, 1)]]));
}

#[test]
fn where_the_cache_is_durable_a_set_is_in_the_balance_until_what_is_ordered_behind_it() {
    for what in 0..3 {
        let memory = Memory::new(SIZE).unwrap();
        let life = Crash::new(&memory).live(CrashOptions { stores_are_durable: true, ..CrashOptions::default() });
        let shown = watch(&memory, &life);
        let pm = pm(&memory, life.medium());
        pm.fill(pm.words(Off::<u64>::new(120), 2).unwrap(), &[1; 16]);
        pm.flush(word(&pm, 1, 7));
        pm.store(word(&pm, 1, 7), 5, Ordering::Relaxed);
        match what {
            0 => store(&pm, 3, 0, 2),
            1 => assert!(pm.compare_exchange(word(&pm, 3, 0), 1, 2).is_err()),
            _ => pm.fence(),
        }
        let ones = 0x0101_0101_0101_0101;
        let wanted = products(&[&[(15, ones), (15, 5)], &[(16, ones)]]);
        assert_eq!((images(&shown, 1), shown.lock().len()), (wanted, 6), "across lines, too; a flush means nothing");
        life.end();
        assert_eq!(images(&shown, 2).len(), 1);
    }
}

#[test]
fn a_life_is_undone_and_the_suspended_operation_goes_on() {
    let memory = Memory::new(SIZE).unwrap();
    let ground = Crash::new(&memory);
    store(&pm(&memory, ground.clone()), 4, 0, 44);
    let before = ground.hash();
    let life = ground.live(CrashOptions::default());
    let outer = pm(&memory, life.medium());
    store(&outer, 1, 0, 1);
    store(&outer, 2, 0, 2);
    let (inner_memory, nested) = (Arc::clone(&memory), Arc::new(Mutex::new(Vec::new())));
    let sink = Arc::clone(&nested);
    life.observe(move |image| {
        let image_content = content(&inner_memory);
        let second = image.live(CrashOptions::default());
        assert_eq!(second.hash(), image.hash());
        let (sink, deep_memory) = (Arc::clone(&sink), Arc::clone(&inner_memory));
        second.observe(move |image| {
            let third = image.live(CrashOptions::default());
            let deep = content(&deep_memory);
            let pm = pm(&deep_memory, third.medium());
            store(&pm, 6, 0, 66);
            pm.persist(word(&pm, 6, 0));
            drop(third);
            assert_eq!(content(&deep_memory), deep);
            sink.lock().push(deep);
            Seen::default()
        });
        let pm = pm(&inner_memory, second.medium());
        store(&pm, 1, 0, 11);
        store(&pm, 3, 0, 33);
        pm.persist(word(&pm, 1, 0));
        drop(second);
        assert_eq!(content(&inner_memory), image_content);
        Seen::default()
    });
    outer.persist(word(&outer, 1, 0));
    // Four images, and in each the recovery was crashed in four states.
    let nested: BTreeSet<_> = nested.lock().iter().cloned().collect();
    let nested_wanted: BTreeSet<_> = products(&[&[(8, 1)], &[(16, 2)]])
        .iter()
        .flat_map(|image| products(&[&[(8, 11)], &[(24, 33)]]).into_iter().map(move |more| apply(&apply(image, &more), &[(32, 44)])))
        .collect();
    assert_eq!(nested, nested_wanted);
    assert_eq!(content(&memory), [(8, 1), (16, 2), (32, 44)]);
    assert_ne!(life.hash(), before);
    assert_eq!(life.changes(), [64, 128]);
    drop(outer);
    drop(life);
    assert_eq!((content(&memory), ground.hash()), (vec![(32, 44)], before));
    assert_eq!(Crash::new(&memory).hash(), before, "the hash kept up");
}

#[test]
fn hidden_blocks_are_shown_in_full_only_when_reached() {
    for (reached, in_full, wanted) in [(false, false, 3 * 3), (true, false, 27), (false, true, 27)] {
        let memory = Memory::new(SIZE).unwrap();
        let life = Crash::new(&memory).live(CrashOptions { hidden_in_full: in_full, ..CrashOptions::default() });
        let pm = pm(&memory, life.medium());
        life.medium().allocated(128, 128);
        for (line, index, value) in [(1, 0, 1), (1, 1, 2), (2, 0, 3), (2, 1, 4), (3, 0, 5), (3, 1, 6)] {
            store(&pm, line, index, value);
        }
        let count = Arc::new(Mutex::new((0, BTreeSet::new())));
        let sink = Arc::clone(&count);
        life.observe(move |image| {
            assert!(image.is_hidden(130) && !image.is_hidden(64) && image.hides());
            let mut sink = sink.lock();
            sink.0 += 1;
            sink.1.insert(image.hash());
            Seen { reached_hidden: reached, ..Seen::default() }
        });
        life.end();
        let shown = std::mem::take(&mut *count.lock());
        if in_full || !reached {
            assert_eq!(shown.0, wanted);
        } else {
            assert_eq!(shown.1.len(), wanted, "every state of the three lines");
        }
        life.medium().released(128, 128);
        let shown = watch(&memory, &life);
        life.end();
        assert_eq!(shown.lock().len(), 27, "linked: ordinary memory");
    }
}

#[test]
fn large_products_are_sampled() {
    let memory = Memory::new(SIZE).unwrap();
    let options = CrashOptions { images_max: 100, sample_count: 5, ..CrashOptions::default() };
    let run = |seed| {
        let life = Crash::new(&memory).live(CrashOptions { seed, ..options.clone() });
        let pm = pm(&memory, life.medium());
        for at in 0..24 {
            store(&pm, 1 + at / 8, at % 8, at + 1);
        }
        let shown = watch(&memory, &life);
        life.end();
        let shown = shown.lock().iter().map(|(.., content)| content.clone()).collect::<Vec<_>>();
        assert_eq!(content(&memory).len(), 24);
        shown
    };
    let shown = run(1);
    assert_eq!(shown.len(), 1 + 3 + 1 + 3 + 5);
    assert!(shown.contains(&vec![]) && shown.iter().any(|image| image.len() == 24));
    for line in 1..=3 {
        assert!(shown.iter().any(|image| image.len() == 8 && image[0].0 == line * 8), "line {line} alone");
        assert!(shown.iter().any(|image| image.len() == 16 && image.iter().all(|(at, _)| at / 8 != line)), "all but line {line}");
    }
    assert_eq!(shown, run(1), "a seed replays");
    assert_ne!(shown, run(2));
}

/// Runs `stores`, which rely on some order within lines, and returns the source lines of the pairs found; `breaks` says which images break a rule.
fn dependences(stores: impl Fn(&Pm<Crash>), breaks: impl Fn(&Memory) -> bool + Send + Copy + 'static) -> Vec<(u32, u32, bool)> {
    let memory = Memory::new(SIZE).unwrap();
    let found = Arc::new(Dependences::default());
    let life = Crash::new(&memory).live(CrashOptions { dependences: Some(Arc::clone(&found)), ..CrashOptions::default() });
    let pm = pm(&memory, life.medium());
    stores(&pm);
    let watched = Arc::clone(&memory);
    let broken = Arc::new(Mutex::new(0));
    for round in 0..2 {
        let (watched, broken) = (Arc::clone(&watched), Arc::clone(&broken));
        let before = *broken.lock();
        let sink = Arc::clone(&broken);
        life.observe(move |_| {
            let is_broken = breaks(&watched);
            *sink.lock() += u64::from(is_broken);
            Seen { is_broken, ..Seen::default() }
        });
        life.end();
        assert!(round == 0 || *broken.lock() == before || found.all().is_empty(), "what is known is not shown again");
    }
    found.all().into_iter().map(|pair| (pair.later.line(), pair.earlier.line(), pair.is_ordered)).collect()
}

#[test]
fn words_of_a_line_are_independent_but_for_the_dependences_that_show() {
    let memory = Memory::new(SIZE).unwrap();
    let life = Crash::new(&memory).live(CrashOptions { dependences: Some(Arc::default()), ..CrashOptions::default() });
    let shown = watch(&memory, &life);
    let pm = pm(&memory, life.medium());
    for (index, value) in [(0, 1), (1, 2), (0, 3), (2, 4)] {
        store(&pm, 1, index, value);
    }
    life.end();
    assert_eq!(images(&shown, 1), products(&[&[(8, 1), (8, 3)], &[(9, 2)], &[(10, 4)]]));
    assert_eq!(shown.lock().len(), 12, "no image twice");

    let first = line!() + 2;
    let stores = |pm: &Pm<Crash>| {
        pm.store(word(pm, 1, 0), 1, Ordering::Release);
        pm.store(word(pm, 1, 1), 2, Ordering::Release);
        pm.store(word(pm, 1, 2), 3, Ordering::Release);
        pm.store(word(pm, 1, 3), 4, Ordering::Release);
        pm.store(word(pm, 2, 0), 5, Ordering::Release);
        pm.store(word(pm, 2, 1), 6, Ordering::Release);
    };
    let has = |memory: &Memory, at: usize| memory.words()[at].load(Ordering::Relaxed) != 0;
    let pair = |later, earlier| (first + later, first + earlier, true);
    assert_eq!(dependences(stores, |_| false), []);
    assert_eq!(dependences(stores, move |memory| has(memory, 11) && !has(memory, 8)), [pair(3, 0)], "not neighbours");
    assert_eq!(dependences(stores, move |memory| has(memory, 10) && !(has(memory, 8) && has(memory, 9))), [pair(2, 0), pair(2, 1)]);
    let both = move |memory: &Memory| has(memory, 11) && !has(memory, 10) || has(memory, 17) && !has(memory, 16);
    assert_eq!(dependences(stores, both), [pair(3, 2), pair(5, 4)]);
    let two_lines = move |memory: &Memory| has(memory, 11) && !has(memory, 10) && has(memory, 17) && !has(memory, 16);
    assert_eq!(dependences(stores, two_lines), [pair(3, 2)], "without the one the other is none");
    // As with two entries that two headers count.
    let counted = move |memory: &Memory| (has(memory, 10) || has(memory, 11)) && !(has(memory, 8) && has(memory, 9));
    assert_eq!(dependences(stores, counted), [pair(2, 0), pair(2, 1), pair(3, 0), pair(3, 1)], "not of one entry on the other");
}

#[test]
fn an_image_in_order_that_breaks_a_rule_is_no_dependence() {
    let stores = |pm: &Pm<Crash>| [0, 1, 2].into_iter().for_each(|index| store(pm, 1, index, 1));
    assert_eq!(dependences(stores, |memory| memory.words()[10].load(Ordering::Relaxed) == 0 && memory.words()[8].load(Ordering::Relaxed) == 0), []);
}

/// Stores to lines 1 and 2, two words each, each step at a location of its own.
fn two_steps(pm: &Pm<Crash>) {
    store(pm, 1, 0, 1);
    pm.store(word(pm, 1, 1), 2, Ordering::Release);
    pm.flush(pm.words(Off::<u64>::new(64), 16).unwrap());
    pm.fence();
    pm.store(word(pm, 2, 0), 3, Ordering::Release);
    pm.flush(word(pm, 2, 0));
    pm.fence();
}

/// Runs the two steps and shows the images of the first crash point, and of a crash at the end.
fn first_and_last_images(fault: Option<Fault>, profile: Option<Arc<Profile>>) -> [BTreeSet<Vec<(usize, u64)>>; 2] {
    let memory = Memory::new(SIZE).unwrap();
    let life = Crash::new(&memory).live(CrashOptions { fault, profile, ..CrashOptions::default() });
    let shown = watch(&memory, &life);
    two_steps(&pm(&memory, life.medium()));
    assert_eq!(content(&memory), [(8, 1), (9, 2), (16, 3)], "the program sees no mistake");
    life.end();
    let last = shown.lock().last().unwrap().0;
    [images(&shown, 1), images(&shown, last)]
}

#[test]
fn a_profile_finds_every_site_and_what_can_be_wrong_there() {
    let profile = Arc::new(Profile::default());
    assert_eq!(first_and_last_images(None, Some(Arc::clone(&profile)))[1], BTreeSet::from([vec![(8, 1), (9, 2), (16, 3)]]));
    let sites = profile.sites();
    let acts: Vec<_> = sites.iter().map(|(site, tally)| (site.verb, tally.hits, tally.acts().collect::<Vec<_>>())).collect();
    let wanted = [
        // In `store`, and the one at its own location that could come first.
        (Verb::Store, 1, vec![Act::Late]),
        (Verb::Store, 1, vec![Act::Early, Act::Late]),
        (Verb::Flush, 1, vec![Act::Drop, Act::Neighbour, Act::Short]),
        (Verb::Fence, 1, vec![Act::Drop]),
        (Verb::Store, 1, vec![Act::Late]),
        (Verb::Flush, 1, vec![Act::Drop, Act::Neighbour]),
        (Verb::Fence, 1, vec![Act::Drop]),
    ];
    assert_eq!(acts, wanted);
    assert!(sites.iter().all(|(site, _)| site.place.file() == file!()));
}

#[test]
fn a_fault_changes_what_a_crash_leaves_and_nothing_else() {
    let profile = Arc::new(Profile::default());
    first_and_last_images(None, Some(Arc::clone(&profile)));
    let sites: Vec<_> = profile.sites().into_iter().map(|(site, _)| site).collect();
    let with_fault = |site: usize, act| first_and_last_images(Some(Fault { site: sites[site], act }), None);
    let with = |site, act| with_fault(site, act)[1].clone();
    let all = BTreeSet::from([vec![(8, 1), (9, 2), (16, 3)]]);
    let third = |images: &[&[(usize, u64)]]| images.iter().map(|image| apply(image, &[(16, 3)])).collect::<BTreeSet<_>>();
    let first_line_open = third(&[&[], &[(8, 1)], &[(8, 1), (9, 2)]]);
    assert_eq!(with(2, Act::Drop), first_line_open);
    assert_eq!(with(2, Act::Neighbour), first_line_open, "lines 2 and 3 instead of 1 and 2");
    assert_eq!(with(2, Act::Short), all, "line 2 was clean");
    assert_eq!(with(3, Act::Drop), all, "the second fence does its work");
    assert_eq!(with(0, Act::Late), BTreeSet::from([vec![(9, 2), (16, 3)], vec![(8, 1), (9, 2), (16, 3)]]), "flushed by nobody any more");
    assert_eq!(with_fault(0, Act::Late)[0], BTreeSet::from([vec![], vec![(9, 2)]]), "and not there yet when the first fence comes");
    assert_eq!(with_fault(1, Act::Early), [BTreeSet::from([vec![], vec![(9, 2)], vec![(8, 1), (9, 2)]]), all]);
    assert_eq!(first_and_last_images(None, None)[0], BTreeSet::from([vec![], vec![(8, 1)], vec![(8, 1), (9, 2)]]));
}

#[test]
#[should_panic(expected = "whose life is over")]
fn a_store_after_the_end_of_a_life_is_a_bug() {
    let memory = Memory::new(SIZE).unwrap();
    let life = Crash::new(&memory).live(CrashOptions::default());
    let pm = pm(&memory, life.medium());
    drop(life);
    store(&pm, 1, 0, 1);
}

#[test]
#[should_panic(expected = "this does not end")]
fn a_life_without_end_is_ended() {
    let memory = Memory::new(SIZE).unwrap();
    let life = Crash::new(&memory).live(CrashOptions { stores_max: 1000, ..CrashOptions::default() });
    let pm = pm(&memory, life.medium());
    for value in 1.. {
        store(&pm, 1, 0, value);
    }
}

/// Follows links, repairs a line where the counter says so, and makes that durable: lines 1 (counter, link), 2 to 4 (contents), 5 (log).
fn follow(pm: &Pm<Crash>) -> Vec<u64> {
    let count = word(pm, 1, 0).get();
    let mut read = vec![count];
    if count > 0 {
        let line = 2 + count % 3;
        read.extend((0..count.min(3)).map(|index| word(pm, line, index).get()));
    }
    if read.contains(&0) {
        // One undecided line and one that is decided are stored to.
        store(pm, 1, 2, 77);
        store(pm, 5, 0, read.len() as u64);
        pm.flush(word(pm, 5, 0));
        pm.persist(word(pm, 1, 0));
    }
    read.push(word(pm, 1, 1).get());
    read
}

/// What was read of images, each with what was read of the images of a crash in that, and after it; and how often.
fn read_of_images(lazy_runs_max: u64) -> (BTreeSet<Vec<Vec<u64>>>, u64, [u64; 3]) {
    let memory = Memory::new(SIZE).unwrap();
    let points = Arc::new(Points::default());
    let images_max = if lazy_runs_max > 0 { 1 } else { 1 << 20 };
    let life = Crash::new(&memory).live(CrashOptions { images_max, lazy_runs_max, points: Some(Arc::clone(&points)), ..CrashOptions::default() });
    let outer = pm(&memory, life.medium());
    for line in 2..=4 {
        (0..3).for_each(|index| store(&outer, line, index, 100 * line + index));
        store(&outer, line, 0, 500 + line);
    }
    (1..=4).for_each(|count| store(&outer, 1, 0, count));
    store(&outer, 1, 1, 9);
    store(&outer, 6, 0, 6);
    let read = Arc::new(Mutex::new((BTreeSet::new(), 0)));
    let (sink, inner_memory) = (Arc::clone(&read), Arc::clone(&memory));
    life.observe(move |image| {
        let (before, hash) = (content(&inner_memory), image.hash());
        let story = Arc::new(Mutex::new(Vec::new()));
        {
            let second = image.live(CrashOptions { images_max: 1 << 20, ..CrashOptions::default() });
            let (nested_memory, nested_story) = (Arc::clone(&inner_memory), Arc::clone(&story));
            second.observe(move |image| {
                let third = image.live(CrashOptions::default());
                third.unwatch();
                nested_story.lock().push(follow(&pm(&nested_memory, third.medium())));
                Seen::default()
            });
            let found = follow(&pm(&inner_memory, second.medium()));
            second.end();
            story.lock().push(found);
        }
        // Only what was decided has changed.
        assert!(image.hash() != hash || content(&inner_memory) == before);
        let mut sink = sink.lock();
        sink.0.insert(std::mem::take(&mut *story.lock()));
        sink.1 += 1;
        Seen::default()
    });
    let before = content(&memory);
    life.end();
    assert_eq!(content(&memory), before, "and back");
    life.look_away();
    assert_eq!(Crash::new(&memory).hash(), life.hash());
    let (read, runs) = std::mem::take(&mut *read.lock());
    (read, runs, [&points.eager, &points.lazy, &points.sampled].map(|counter| counter.load(Ordering::Relaxed)))
}

#[test]
fn undecided_images_are_read_in_every_way_that_decided_ones_are() {
    let (eager, images, points) = read_of_images(0);
    assert_eq!((images, points), (5 * 5 * 5 * 6 * 2, [1, 0, 0]));
    if !crate::schedule::IS_BUILT_IN {
        return;
    }
    let (lazy, runs, points) = read_of_images(1 << 20);
    assert_eq!(points, [0, 1, 0]);
    assert_eq!(lazy, eager);
    assert!(runs >= lazy.len() as u64 && runs * 10 < images, "{runs} runs instead of {images} images");
    let (some, _, points) = read_of_images(3);
    assert_eq!(points, [0, 0, 1], "too many runs: a sample");
    assert!(some.len() < eager.len() && some.is_subset(&eager));
}
