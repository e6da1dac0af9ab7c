//! Seeded mistakes: those that others have made and published, where they can be reproduced here.
//!
//! A wrong flush, fence or order of stores is made in our own code, at a place found by its source text. For a mistake in an algorithm, this module keeps a
//! structure that has it: a list ([`super::list`]), or Isle-Tree with the order of stores in its paper. A mistake that cannot be made here has a reason.

use super::flagged;
use super::mutate::profile;
use super::printed;
use super::published::Published;
use super::source::Source;
use super::{Index, Options, Report, Suite, every_crash, list, more_suites, suites};
use crate::threads;
use everleaf_index::registry;
use everleaf_pmem::{Act, Crash, CrashOptions, Fault, Site, Verb, schedule};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A published mistake.
pub struct Seed {
    /// Its name: m1 to m36 are the classes of mistakes that a checker must find, p1 ... mistakes in the papers themselves, e1 ... what Ever must not do, s1 ...
    /// what the store must not do, t1 ... what batches of trees must not do, B... published bugs without a class.
    pub name: &'static str,
    /// The mistake.
    pub what: &'static str,
    /// The published bugs ([`super::field_bugs`]) that it represents, or the paper that made it.
    pub source: &'static str,
    how: How,
    /// Whether the mistake shows without a crash. If not, a violation without a crash is a different finding.
    shows_in_memory: bool,
}

/// How a mistake is made here.
enum How {
    /// In the code of a world: the end of the file's path; the source text, with `|` before the call; what the call does; what is wrong.
    At(&'static str, &'static str, &'static str, Verb, Act),
    /// The same, with everything that two operations from the start of this name leave, and second lives of that. Long runs reach it too seldom.
    From(&'static str, &'static str, &'static str, &'static str, Verb, Act),
    /// This world makes no flush at all.
    NoFlushes(&'static str),
    /// By a structure that has the mistake.
    Wrong(fn(&Options) -> Report),
    /// Readers of this index do not check for concurrent writers: in this file and function, the code of this text is left out. Two threads under the scheduler
    /// find it.
    Careless(&'static str, &'static str, &'static str, &'static str),
    /// The fence at this text, in the code of this index, comes after the latch has been released. Two threads under the scheduler find it.
    Unlocked(&'static str, &'static str, &'static str),
    /// It cannot be made, for this reason.
    Cannot(&'static str),
}

/// What became of a seeded mistake.
pub struct Sown {
    /// The mistake.
    pub seed: Seed,
    /// Whether it was found; `None` where it cannot be made here.
    pub found: Option<bool>,
    /// Images examined until then.
    pub images: u64,
    /// How long that took.
    pub took: Duration,
    /// The rule that broke, or the reason why the mistake was not found or made.
    pub why: String,
}

impl Sown {
    /// "found", "MISSED" or "cannot be made".
    pub fn outcome(&self) -> &'static str {
        match self.found {
            Some(true) => "found",
            Some(false) => "MISSED",
            None => "cannot be made",
        }
    }
}

impl fmt::Display for Sown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Seed { name, what, source, .. } = &self.seed;
        let found = self.outcome();
        write!(f, "| {name} | {what} | {source} | {found} | {} | {:.2} | {} |", self.images, self.took.as_secs_f64(), self.why)
    }
}

fn wrong<const MISTAKE: u8>(options: &Options) -> Report {
    every_crash(&Arc::new(Index::new(list::entry::<u64, Crash, MISTAKE>())), options)
}

/// Isle-Tree as published: equal neighbouring values mark an interrupted shift, whatever the values are.
fn published(options: &Options) -> Report {
    let entry = registry::<Published, Crash>().into_iter().find(|entry| entry.name == "isle-128").expect("the small index");
    // In other starts no two values are equal, and a finding would be a different one.
    every_crash(&Arc::new(Index::new(entry)), &Options { start: Some("equal values".to_owned()), ..options.clone() })
}

/// LB+-Tree with Algorithm 3 as published: it inserts according to a header that is not stored yet.
fn printed<const MISTAKE: usize>(options: &Options) -> Report {
    every_crash(&Arc::new(Index::new(printed::algorithm_3::<_, MISTAKE>())), options)
}

/// FPTree with its log as published, of which only one word is cleared.
fn stale_log<const MISTAKE: usize>(options: &Options) -> Report {
    // Each word copied without a fence doubles the images; a sample is enough.
    let life = CrashOptions { images_max: 64, ..options.life.clone() };
    every_crash(&Arc::new(Index::new(printed::stale_log::<_, MISTAKE>())), &Options { life, ..options.clone() })
}

/// NV-Tree as published, or as others have interpreted it.
fn flagged<const MISTAKE: usize>(options: &Options) -> Report {
    // A key goes from one value to another and back; the empty leaf is enough for that.
    every_crash(&Arc::new(Index::new(flagged::entry::<_, MISTAKE>())), &Options { operations: 3, start: Some("empty".to_owned()), ..options.clone() })
}

const TREE: &str = "isle-128/u64";
const EVER: &str = "ever-64/u64";
const ISLE: &str = "leaf/isle.rs";
const FAIR: &str = "fast-fair-s-256/u64";
const FAIR_128: &str = "fast-fair-128/u64";
const NODE: &str = "fair/fast.rs";
const STRUCTURE: &str = "fair/structure.rs";
const CIRCULAR: &str = "fair/circular.rs";
const REPLACED: &str = "structure/replaced.rs";
/// Where readers validate what they have read.
const READER: &str = "crates/index/src/selective.rs";
const NO_SCHEDULER: &str = "this build has no scheduling points";

/// Every seeded mistake.
#[rustfmt::skip]
pub fn seeds() -> Vec<Seed> {
    use Act::*;
    use How::*;
    use Verb::*;
    let seed = |name, what, source, how| Seed { name, what, source, how, shows_in_memory: ["m17", "m30", "p9", "e6", "t2"].contains(&name) };
    vec![
        seed("m1", "no flush of the payload", "B1, B8, B9, B30", At("skip-2/u64", "src/skip.rs", "self.pool.|seal(node)", Flush, Drop)),
        seed("m2", "no fence between payload and link", "B24", At(TREE, REPLACED, "self.pool.|fence_all((flush(left)", Fence, Drop)),
        seed("m3", "linked before the payload is durable", "B10, B34", Wrong(wrong::<{ list::LINK_BEFORE_SEAL }>)),
        seed("m4", "no flush of the link", "B19, B23", At(TREE, REPLACED, "tree.pool.|link(slot, joined)", Flush, Drop)),
        seed("m5", "acknowledged before the fence", "B30", At(TREE, ISLE, "pm.|fence();", Fence, Drop)),
        seed("m6", "flushed before it is stored", "B9", At(TREE, ISLE, "|super::set_value(pm, self.value(slot), value);", Store, Late)),
        seed("m7", "another line is flushed than was stored to", "B21, B25, B36, B37",
            At(TREE, ISLE, "|super::set_value(pm, self.value(slot), value);", Flush, Neighbour)),
        seed("m8", "the flush of a range leaves out its last line", "B38", At(TREE, REPLACED, "(|flush(left),", Flush, Short)),
        seed("m9", "the flush of a shift is that of the other direction", "B1", At(TREE, ISLE, "pm.|flush(line);", Flush, Neighbour)),
        seed("m10", "the counter of an entry comes after the fence", "", At(TREE, ISLE, "self.|set_counter(pm, number, count + 1)", Store, Late)),
        seed("m11", "an update removes, then inserts", "B12", Wrong(wrong::<{ list::UPDATE_IN_TWO_STEPS }>)),
        seed("m12", "an update inserts, then removes; nobody removes duplicates", "B2, B11", Wrong(wrong::<{ list::UPDATE_LEAVES_TWO }>)),
        seed("m13", "two words are taken to be stored at once", "B13, B28", At(TREE, ISLE, "|write(pm, &line[slot], key.head(skip)", Store, Early)),
        seed("m14", "a split links before the contents are durable", "B14, B27", At(TREE, REPLACED, "|flush(right), fence", Flush, Drop)),
        seed("m15", "a split shrinks the old leaf before the new one is linked", "B5", At(FAIR_128, STRUCTURE, "pool.|link(node.next(), upper)", Store, Late)),
        seed("m16", "a merge flushes, does not fence, and links", "B24", At(TREE, REPLACED, "self.pool.|fence_all(flush(joined))", Fence, Drop)),
        seed("m17", "a new node does not link the next", "", Wrong(wrong::<{ list::NEXT_NOT_COPIED }>)),
        seed("m18", "one line of a new leaf is not flushed", "B21", At(TREE, REPLACED, "|flush(right), fence", Flush, Short)),
        seed("m19", "a sibling is linked, durably, and a root above both is not", "B3, B27, B44",
            At(FAIR_128, STRUCTURE, "pool.|link(&self.root().top, top)", Flush, Drop)),
        seed("m20", "a superblock is switched to before it is durable", "B13",
            At("pool", "pool.rs", "|commit_to_device(&self.pm, &self.backing, &closed)", Fence, Drop)),
        seed("m21", "a block is used again before it is unlinked", "", Wrong(wrong::<{ list::RETIRED_WHILE_LINKED }>)),
        seed("m22", "what recovery does about an interrupted shift is lost behind a shutdown", "B2",
            At(TREE, ISLE, "|shift_left::<K, M>(pm, line, right - 1, count)", Store, Late)),
        seed("m23", "recovery does not make its repair durable", "B42", Wrong(wrong::<{ list::REPAIR_NOT_DURABLE }>)),
        seed("m24", "recovery goes through a bad state", "B41, B42", Wrong(wrong::<{ list::RECOVERY_THROUGH_A_BAD_STATE }>)),
        seed("m25", "a word that says who is at work stays so for ever", "B15, B16",
            At("bztree-4/u64", "bz/mwcas.rs", "pool.|flush(word);", Flush, Drop)),
        seed("m26", "the clean flag is cleared late", "B33", At("pool", "pool.rs", "|commit_to_device(pm, backing, &opened)", Store, Late)),
        seed("m27", "recovery misses a block that is in use", "B20, B31, B45", Wrong(wrong::<{ list::NODE_NOT_MARKED }>)),
        seed("m28", "the header of a slab is not flushed", "B37", At("pool", "alloc.rs", "self.|write_header(slab, Header::Blocks", Flush, Drop)),
        seed("m29", "a root is linked before it is durable", "B8, B35", At(TREE, "open.rs", "leaf.flush(), root.|flush()", Flush, Drop)),
        seed("m30", "unlocked before the flush", "B7, B18, B26, B29, B30",
            Careless("isle-128", READER, "fn read<", "latch.validate")),
        seed("m31", "a reader clears the mark of what is not durable", "B26", Cannot("there are no such marks")),
        seed("m32", "the fence is another thread's", "",
            Cannot("`Flushed` cannot be sent to another thread; a test of the medium shows that such a fence does nothing")),
        seed("m33", "another root is visible before it is durable", "B22",
            Unlocked("fast-fair-128", STRUCTURE, "pool.|link(&self.root().top, top)")),
        seed("m34", "the tail of a copy is not flushed", "B39", At("isle-128/bytes", "pm.rs", "self.|store(&words[chunks.len()]", Store, Late)),
        seed("m35", "a commit word is torn in two", "B46", Cannot("words are atomic: neither the compiler nor the processor tears them")),
        seed("m36", "no flushes, where caches are not durable", "", NoFlushes(TREE)),
        seed("p1", "Isle-Tree: equal values of two entries look like a shift", "Wang and Chattopadhyay", Wrong(published)),
        seed("p2", "Isle-Tree: the counter is durable and its line is not", "B17, Wang and Chattopadhyay", At(TREE, ISLE, "pm.|flush(line);", Flush, Drop)),
        seed("p3", "Isle-Tree: key before value in a shift to the right", "Wang and Chattopadhyay", At(TREE, ISLE, "|write(pm, &line[from + 1]", Store, Early)),
        seed("p4", "LB+-Tree: Algorithm 3 inserts by a header that is not there yet", "Liu, Chen and Wang", Wrong(printed::<{ printed::PRINTED }>)),
        seed("p5", "LB+-Tree: unlocked in the store that changes the header, before it is durable", "Liu, Chen and Wang, released code",
            Unlocked("lb-128", "leaf/lb.rs", "pm.|persist(&block[near]);")),
        seed("p6", "FPTree: the log still names the new leaf of the split before", "Oukid et al.", Wrong(stale_log::<{ printed::PRINTED }>)),
        seed("p7", "wB+-Tree: the slot array is not invalid, durably, while it changes", "Chen and Jin, without their first flush",
            At("wb-128/u64", "leaf/wb.rs", "self.|invalidate(pm);", Flush, Drop)),
        seed("p8", "NV-Tree: an update counts its two elements one by one", "Yang et al.", Wrong(flagged::<{ flagged::COUNTED_ONE_BY_ONE }>)),
        seed("p9", "NV-Tree: a negative takes back its key and value, wherever they stand", "Yang et al.", Wrong(flagged::<{ flagged::MATCHED_BY_VALUE }>)),
        seed("p10", "LB+-Tree: a waypoint names a leaf that was freed and used again, and recovery believes it", "Liu, Chen and Wang",
            Wrong(wrong::<{ list::WAYPOINT_DANGLES }>)),
        seed("p11", "LB+-Tree: a line of the new leaf is not durable when the header links it", "Liu, Chen and Wang",
            At("lb-128/u64", "leaf/lb.rs", "pool.fence_all(right.|flush()", Flush, Short)),
        seed("p12", "NV-Tree: an element is counted whose line is not durable", "Yang et al.", At("nv-192/u64", "leaf/nv.rs", "pm.|flush(line);", Flush, Drop)),
        seed("p13", "FAST-FAIR: a deletion does not make a line durable before it goes on in the next", "B1, Hwang et al., released code",
            At(FAIR, NODE, "pm.|persist(self.line(left));", Flush, Drop)),
        seed("p14", "FAST-FAIR: an insertion flushes a line, and goes on in the one below without a fence", "Hwang et al., with clwb",
            At(FAIR, NODE, "pm.|persist(self.line(to));", Fence, Drop)),
        seed("p15", "FAST-FAIR: where the entries end is not durable when the last slot before it counts", "Hwang et al.",
            At(FAIR, NODE, "pm.|persist(self.line(end));", Flush, Drop)),
        seed("p16", "Circ-Tree: an entry leaves its line before it is durable in the next", "its design",
            At("circ-s-256/u64", CIRCULAR, "pm.|persist(self.line(to));", Fence, Drop)),
        seed("p17", "Circ-Tree: what has moved from a node is there when its record is used again", "its design",
            At("circ-192/bytes", "fair/node.rs", "pm.|flush(&self.lines()[line])", Flush, Drop)),
        seed("p18", "PFtree: a record counts whose key goes on in a line that is not durable", "Zhang et al.",
            At("pf-4/bytes", "pf/block.rs", "pm.|fence();", Fence, Drop)),
        seed("e1", "Ever: a new key beside an old value", "its design", At(EVER, "src/ever.rs", "leaf.|write(&self.pool, slot, Slot {", Store, Early)),
        seed("e2", "Ever: a leaf lives before its range begins", "its design",
            At(EVER, "ever/structure.rs", "entry.|commit(&self.pool, word, 1);", Store, Early)),
        seed("e3", "Ever: slots that have moved are used again before the new leaf lives", "its design",
            At(EVER, "ever/structure.rs", "entry.|commit(&self.pool, word, 1);", Fence, Drop)),
        seed("e4", "Ever: a leaf is used again with lines of its former life", "its design",
            At(EVER, "ever/structure.rs", "self.pool.|flush(line);", Flush, Drop)),
        seed("e5", "Ever: what a merge that a crash cut short has left is not cleared before the leaf reaches down", "its design",
            From("one above merge", EVER, "ever/behind.rs", "|super::structure::scrub(pm, leaf", Store, Late)),
        seed("e6", "Ever: a batch does not look again at the node above the leaf", "its design",
            Careless("ever-64", "crates/index/src/ever/batch.rs", "fn stage<", "way.validate")),
        seed("e7", "Ever: a leaf reaches down before it has the higher generation", "its design",
            At(EVER, "ever/structure.rs", "right.|reach_down(&self.pool, left", Store, Early)),
        seed("e8", "Ever: a leaf that was merged does not die", "its design", At(EVER, "ever/structure.rs", "left.|kill(&self.pool);", Flush, Drop)),
        seed("e9", "Ever: a leaf that was outdone when the crash came does not die", "its design",
            From("two mergers", EVER, "ever/open.rs", "directory.entry(pool, *leaf).|kill(pool);", Flush, Drop)),
        seed("e10", "Ever: what has moved from a leaf is there when its record is used again", "its design",
            From("at split", "ever-64/bytes", "ever/structure.rs", "|scrub(&self.pool, leaf, moved)", Store, Late)),
        seed("t1", "a batch of a tree publishes what is not durable yet, or acknowledges what it has published", "its design",
            At("wb-128/u64", "selective/batch.rs", "self.pool.|fence();", Fence, Drop)),
        seed("t2", "a batch of a tree does not look again at the node above the leaf", "its design",
            Careless("isle-128", "crates/index/src/selective/batch.rs", "let (leaf, latch)", "way.validate")),
        seed("s1", "the store: a batch commits before its entries are durable", "its design",
            At("store-ever-64", "store/src/batch.rs", "self.pool.|publish(|| slot.commit", Fence, Drop)),
        seed("s2", "the store: entries of a batch are seen before its slot names them", "its design",
            At("store-ever-64", "store/src/block.rs", "pm.|flush(&self.log);", Flush, Drop)),
        seed("s3", "the store: entries of a batch are not written back", "its design", At("store-ever-64", "ever/batch.rs", "self.pool.|flush(", Flush, Drop)),
        seed("B4", "a merge takes a node out of the list before what was in it is durable elsewhere", "FAST&FAIR",
            At(FAIR_128, NODE, "pm.|persist(&self.lines[count.min(", Flush, Drop)),
        seed("B6", "a split that was cut short is not completed: the log that tells of it is not durable", "FAST&FAIR",
            At("fp-192/u64", "leaf/fp.rs", "log.|record(pool", Flush, Drop)),
        seed("B32", "a batch whose commit is not durable", "libpmemobj, libart", At("store", "store/src/block.rs", "pm.|flush(&self.commit);", Flush, Drop)),
        seed("B33", "a log that is not durable when its slot names it", "PMDK examples", At("store", "batch.rs", "log.|flush()", Flush, Drop)),
        seed("B40", "log and slot in any order", "NOVA", At("store", "batch.rs", "self.pool.|publish(|| slot.begin", Fence, Drop)),
        seed("B43", "a header that knows of a growth which the file lacks", "redb",
            Cannot("worlds lie in memory, which does not grow: a test of the pool sees that a file has grown, durably, before anything is stored there")),
        seed("B47", "a hole in what was recovered", "RocksDB", Cannot("nothing is buffered: every write is durable when it returns, which rule 2 checks")),
    ]
}

/// Makes every mistake whose name `chosen` accepts, and tells `progress` the result.
pub fn sow(options: &Options, chosen: &dyn Fn(&str) -> bool, progress: &mut dyn FnMut(Sown)) {
    // Only the rule of a violation is reported.
    let options = &Options { shrinks: false, ..options.clone() };
    let suites: Vec<_> = suites().into_iter().chain(more_suites()).collect();
    let find = |world: &str| &**suites.iter().find(|suite| suite.name() == world).expect("worlds of seeds are in the registry");
    let mut profiles = HashMap::new();
    let mut source = Source::of_this_build();
    for seed in seeds().into_iter().filter(|seed| chosen(seed.name)) {
        let begun = Instant::now();
        // One operation reaches most places; two take minutes in a store. The first does not merge a leaf of integers that nothing has read.
        let mut sites = |world: &str, verb, file: &str, text: &str| {
            let mut of = |operations| {
                let profile = profiles.entry((world.to_owned(), operations)).or_insert_with(|| {
                    // These reach the same places from one start as from all, which takes minutes; so do crashes of a store's recoveries.
                    let start = [("store", "filled", 0), ("bztree", "at split", 1)].into_iter().find(|(slow, ..)| world.starts_with(slow));
                    let quick = |(_, start, depth): (_, &str, u32)| Options { start: Some(start.to_owned()), depth, lives: 0, ..options.clone() };
                    profile(find(world), &start.map_or(options.clone(), quick), operations)
                });
                profile.sites().into_iter().map(|(site, _)| site).filter(|site| site.verb == verb && source.stands_at(site, file, text)).collect::<Vec<_>>()
            };
            (1..=3).map(&mut of).find(|sites| !sites.is_empty()).unwrap_or_default()
        };
        let (found, images, why) = match &seed.how {
            How::Cannot(why) => (None, 0, (*why).to_owned()),
            How::Wrong(run) => judge(&seed, &[run(&deep(options))]),
            How::NoFlushes(world) => {
                let life = CrashOptions { drops_flushes: true, ..CrashOptions::default() };
                judge(&seed, &[find(world).every(&Options { operations: 2, life, ..options.clone() })])
            }
            How::Careless(index, file, function, code) => match source.line_of(file, function, code) {
                Some(line) if schedule::IS_BUILT_IN => careless(&seed, index, file, line),
                Some(_) => (None, 0, NO_SCHEDULER.to_owned()),
                None => (Some(false), 0, format!("no {code:?} after {function:?} in {file}")),
            },
            How::At(world, file, text, verb, act) | How::From(_, world, file, text, verb, act) => {
                let run = |site: Site| {
                    let life = CrashOptions { fault: Some(Fault { site, act: *act }), ..options.life.clone() };
                    let start = if let How::From(start, ..) = seed.how { Some(start.to_owned()) } else { None };
                    attack(find(world), &Options { life, start, ..options.clone() })
                };
                let reports = sites(world, *verb, file, text).into_iter().map(run).collect::<Vec<_>>();
                match reports.is_empty() {
                    true => (Some(false), 0, format!("no {verb} at {text:?} in {file}")),
                    false => judge(&seed, &reports),
                }
            }
            How::Unlocked(index, file, text) => match sites(&format!("{index}/u64"), Verb::Fence, file, text)[..] {
                [site] if schedule::IS_BUILT_IN => unlocked_early(&seed, index, site),
                [_] => (None, 0, NO_SCHEDULER.to_owned()),
                _ => (Some(false), 0, format!("not one fence at {text:?} in {file}")),
            },
        };
        progress(Sown { seed, found, images, took: begun.elapsed(), why });
    }
}

/// The options for a structure with a deliberate mistake.
fn deep(options: &Options) -> Options {
    Options { operations: 2, depth: 2, ..options.clone() }
}

/// Corrected versions of the deliberately wrong trees, run the same way: so a finding in a wrong tree is due to its mistake.
pub fn controls(options: &Options) -> [(&'static str, Report); 3] {
    let options = deep(options);
    [("p4", printed::<{ printed::RIGHT }>(&options)), ("p6", stale_log::<{ printed::RIGHT }>(&options)), ("p8, p9", flagged::<{ flagged::RIGHT }>(&options))]
}

/// Runs threads that leave out the code of this line.
fn careless(seed: &Seed, index: &str, file: &str, line: u32) -> (Option<bool>, u64, String) {
    let omission = threads::Omission { slip: schedule::Slip::Validate, file: file.to_owned(), line };
    by_threads(seed, index, threads::Options { omission: Some(omission), ..threads::Options::default() })
}

/// Runs threads whose writers reach this fence after they have released their latches.
fn unlocked_early(seed: &Seed, index: &str, site: Site) -> (Option<bool>, u64, String) {
    by_threads(seed, index, threads::Options { late_fence: Some(site), ..threads::Options::default() })
}

fn by_threads(seed: &Seed, index: &str, options: threads::Options) -> (Option<bool>, u64, String) {
    let options = threads::Options { schedules: 20_000, seed: 0x5eed, crash_every: 1, shrinks: false, ..options };
    let report = threads::run(threads::Index::<u64>::named(index), options, |_| {});
    let found = report.violation.map(|violation| (violation.broken.rule, violation.image.is_some()));
    (Some(seed.is_shown_by(found)), report.counts.checked, found.map_or("", |(rule, _)| rule).to_owned())
}

/// Runs stage by stage, until something breaks.
fn attack(suite: &dyn Suite, options: &Options) -> Report {
    until_found(super::mutate::stages(options).into_iter().map(|(random, stage)| super::mutate::run(suite, random, &stage)))
}

/// The first report with a violation, plus the images of those before it.
fn until_found(reports: impl Iterator<Item = Report>) -> Report {
    let mut images = 0;
    for mut report in reports {
        report.checked += images;
        if report.violation.is_some() {
            return report;
        }
        images = report.checked;
    }
    Report { checked: images, ..Report::default() }
}

impl Seed {
    /// Whether the finding (the broken rule, and whether a crash broke it) is the mistake.
    fn is_shown_by(&self, found: Option<(&str, bool)>) -> bool {
        found.is_some_and(|(_, by_crash)| by_crash || self.shows_in_memory)
    }
}

/// Whether all runs found what they should find.
fn judge(seed: &Seed, reports: &[Report]) -> (Option<bool>, u64, String) {
    let images = reports.iter().map(|report| report.checked).sum();
    let found = |report: &Report| report.violation.as_ref().map(|violation| (violation.broken.rule, !violation.crashes.is_empty()));
    let all = reports.iter().all(|report| seed.is_shown_by(found(report)));
    (Some(all), images, reports.iter().find_map(found).map_or(String::new(), |(rule, _)| rule.to_owned()))
}
