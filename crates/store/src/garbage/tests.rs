//! The list, compared with a model that does everything in the simplest way.

use super::*;
use crate::Options;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// What the list holds, in its order: link, timestamp, whether it is a version.
type Simple = Vec<(u64, u64, bool)>;

fn link_of(held: &Held) -> u64 {
    match &held.remains {
        Remains::Version(_, link) => *link,
        Remains::Blocks(_, blocks) => blocks[0].0,
        _ => unreachable!("nothing else is pushed here"),
    }
}

#[test]
fn the_list_holds_what_a_simple_one_does_and_looks_at_all_that_is_due_the_newest_first() {
    let store = Store::anonymous(Options::default()).unwrap();
    let space = store.namespace("space").unwrap().space.clone();
    let (mut removed, mut rounds) = (0, 0);
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut list, mut simple) = (List::default(), Simple::new());
        // Links that must still be looked at in this round, and links that have come since it began, which may be.
        let (mut due, mut new) = (Vec::new(), Vec::new());
        for link in 1..400 {
            match random.random_range(0..16) {
                0..6 => {
                    // A thread that drew an earlier timestamp may come later, and several may have the same one.
                    let until = (link / 2_u64).saturating_sub(random.random_range(0..4));
                    let is_version = random.random_ratio(3, 4);
                    let remains = if is_version { Remains::Version(space.clone(), link) } else { Remains::Blocks(Vec::new(), vec![(link, 64)]) };
                    list.push(Held { until, size: Size { bytes: link, keys: 0 }, remains });
                    simple.insert(simple.partition_point(|(_, other, _)| *other <= until), (link, until, is_version));
                    new.push(link);
                }
                6..9 => {
                    list.front();
                    let popped = list.pop_front();
                    assert_eq!(popped.as_ref().map(link_of), simple.first().map(|(link, ..)| *link), "seed {seed}");
                    match popped {
                        Some(held) if random.random_ratio(1, 4) => list.push_front(held),
                        Some(held) => {
                            simple.remove(0);
                            due.retain(|link| *link != link_of(&held));
                        }
                        None => {}
                    }
                }
                9 => {
                    let from = random.random_range(0..=link / 2);
                    list.set_due(from);
                    due = simple.iter().filter(|(_, until, is_version)| *is_version && *until >= from).map(|(link, ..)| *link).collect();
                    new.clear();
                    rounds += 1;
                }
                _ => {
                    let next = list.next_due();
                    let place = |link: &u64| simple.iter().position(|(other, ..)| other == link);
                    let at = next.as_ref().map_or(Some(0), |next| place(&next.link)).expect("what is looked at is held");
                    if let Some(next) = &next {
                        assert_eq!(next.until, simple[at].1);
                        let of = if due.contains(&next.link) { &mut due } else { &mut new };
                        let once = of.iter().position(|link| *link == next.link).expect("it is due, once, or has come since");
                        of.remove(once);
                    }
                    assert!(due.iter().all(|link| next.is_some() && place(link) < Some(at)), "seed {seed}: passed over");
                    if let Some(next) = next.filter(|_| random.random()) {
                        removed += 1;
                        assert_eq!(list.remove(&next).bytes, next.link);
                        simple.remove(at);
                    }
                }
            }
            assert_eq!(list.len(), simple.len() as u64, "seed {seed}");
            assert!(list.all.iter().filter(|held| !held.is_gone()).map(link_of).eq(simple.iter().map(|(link, ..)| *link)), "seed {seed}");
        }
    }
    assert!(removed > 1000 && rounds > 1000, "{removed} {rounds}");
}
