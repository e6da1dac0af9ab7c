//! Workloads by name.
//!
//! | family | workloads |
//! |---|---|
//! | micro | load, insert, search, miss, update, delete, scan, dense, micro (insert, search, scan, update, delete in turn), basic (three of them) |
//! | YCSB | ycsb-a to ycsb-f |
//! | NV-Store's study | status-update, session-store |
//! | db_bench | fillseq, fillrandom, readrandom, readseq, overwrite |
//!
//! Any other mix is made of the options of the command.
//!
//! What is YCSB's: mixes, the exponent 0.99 of Zipf's law, spread over all keys, the latest keys of ycsb-d, scans of one to a hundred entries, `YCSB_RECORDS`.
//! What is not: Zipf's law over the keys that there are, where YCSB's is over 10^10 places, hashed and taken modulo the number of keys, so that its most
//! frequent ones come less often; as many operations as keys, values that are set as a whole, keys that are loaded in one thread. What is db_bench's: order and
//! choice of keys, sizes (`DB_BENCH_RECORDS`). What is not: keys of 16 digits, of which the first are zeroes, where those here differ in their first eight
//! bytes; fillrandom inserts each key once, where LevelDB's draws them, and overwrites some; values that cannot be halved by a compressor are not asked for, as
//! nothing here compresses.

use crate::Error;
use crate::plan::{Access, Distribution, KeyKind, Lengths, Load, Mix, Order, Phase, Workload};

/// The exponent of YCSB.
pub(crate) const YCSB: f64 = 0.99;

/// Size of keys and values.
pub type Records = (KeyKind, u32);
/// Those of the papers.
pub const INTEGERS: Records = (KeyKind::Integer, 8);
/// YCSB's: `user` and a number, ten fields of 100 bytes.
pub(crate) const YCSB_RECORDS: Records = (KeyKind::Bytes(23), 1000);
/// db_bench's.
pub(crate) const DB_BENCH_RECORDS: Records = (KeyKind::Bytes(16), 100);

/// The records that a workload is known by, for systems that take byte strings.
pub fn records(name: &str) -> Records {
    match name {
        "fillseq" | "fillrandom" | "readrandom" | "readseq" | "overwrite" => DB_BENCH_RECORDS,
        _ if name.starts_with("ycsb-") => YCSB_RECORDS,
        _ => INTEGERS,
    }
}

/// Every workload: its name, and one line for people.
pub const WORKLOADS: [(&str, &str); 27] = [
    ("micro", "insert random keys, search all of them, scan, update and delete all of them"),
    ("basic", "insert random keys, then search and delete all of them"),
    ("load", "fill an empty instance with random keys"),
    ("insert", "insert as many random keys as there are already"),
    ("dense", "insert ascending keys above all that are there"),
    ("search", "look up each key once, in random order"),
    ("search-dependent", "the same, but each lookup has to wait for the one before"),
    ("search-batch", "the same, in batches of 16"),
    ("miss", "look up keys that are not there"),
    ("update", "update each key once, in random order"),
    ("delete", "delete each key, in random order"),
    ("scan", "scans from random keys on"),
    ("zipfian", "search with Zipf's law"),
    ("latest", "search, mostly for the keys inserted last"),
    ("ycsb-a", "half search, half update, Zipf's law"),
    ("ycsb-b", "95 % search, 5 % update, Zipf's law"),
    ("ycsb-c", "search, Zipf's law"),
    ("ycsb-d", "95 % search, mostly for the latest keys, 5 % insert"),
    ("ycsb-e", "95 % scan of 1 to 100 entries, 5 % insert, Zipf's law"),
    ("ycsb-f", "half search, half search and update of the same key, Zipf's law"),
    ("status-update", "95 % search, mostly for the latest keys, 5 % insert: NV-Store's StatusUpdate"),
    ("session-store", "half search, half update, Zipf's law: NV-Store's SessionStore"),
    ("fillseq", "db_bench: insert ascending keys into an empty instance"),
    ("fillrandom", "db_bench: insert random keys into an empty instance"),
    ("readrandom", "db_bench: look up random keys, some of them again"),
    ("readseq", "db_bench: visit all entries in order"),
    ("overwrite", "db_bench: update random keys, some of them again"),
];

/// The workload of that name.
///
/// # Errors
/// [`Error::Usage`], which tells the names that there are.
pub fn find(name: &str) -> Result<Workload, Error> {
    let random = Some(Load { order: Order::Random, fill: None });
    let one = |load, phase| Ok(Workload { name: name.into(), load, phases: vec![phase] });
    let zipf = |mix| one(random, Phase { distribution: Distribution::Zipfian(YCSB), ..phase("run", mix) });
    match name {
        "micro" => {
            let delete = phase("delete", DELETE);
            let phases = vec![phase("insert", INSERT), phase("search", SEARCH), phase("scan", SCAN), phase("update", UPDATE), delete];
            Ok(Workload { name: name.into(), load: None, phases })
        }
        "basic" => {
            let phases = vec![phase("insert", INSERT), phase("search", SEARCH), phase("delete", DELETE)];
            Ok(Workload { name: name.into(), load: None, phases })
        }
        "load" | "fillrandom" => one(None, phase("insert", INSERT)),
        "fillseq" => one(None, Phase { order: Order::Dense, ..phase("insert", INSERT) }),
        "insert" => one(random, phase("insert", INSERT)),
        "dense" => one(random, Phase { order: Order::Dense, ..phase("insert", INSERT) }),
        "search" => one(random, phase("search", SEARCH)),
        "search-dependent" => one(random, Phase { access: Access::Dependent, ..phase("search", SEARCH) }),
        "search-batch" => one(random, Phase { access: Access::Batch(16), ..phase("search", SEARCH) }),
        "readrandom" => one(random, Phase { distribution: Distribution::Random, ..phase("search", SEARCH) }),
        "readseq" => one(random, Phase { distribution: Distribution::Sequential, ..phase("scan", SCAN) }),
        "miss" => one(random, phase("miss", Mix { miss: 1.0, ..NONE })),
        "update" => one(random, phase("update", UPDATE)),
        "overwrite" => one(random, Phase { distribution: Distribution::Random, ..phase("update", UPDATE) }),
        "delete" => one(random, phase("delete", DELETE)),
        "scan" => one(random, phase("scan", SCAN)),
        "zipfian" => one(random, Phase { distribution: Distribution::Zipfian(YCSB), ..phase("search", SEARCH) }),
        "latest" => one(random, Phase { distribution: Distribution::Latest(YCSB), ..phase("search", SEARCH) }),
        "ycsb-a" | "session-store" => zipf(Mix { search: 0.5, update: 0.5, ..NONE }),
        "ycsb-b" => zipf(Mix { search: 0.95, update: 0.05, ..NONE }),
        "ycsb-c" => zipf(SEARCH),
        "ycsb-d" | "status-update" => {
            one(random, Phase { distribution: Distribution::Latest(YCSB), ..phase("run", Mix { search: 0.95, insert: 0.05, ..NONE }) })
        }
        "ycsb-e" => {
            let mix = Mix { scan: 0.95, insert: 0.05, ..NONE };
            one(random, Phase { distribution: Distribution::Zipfian(YCSB), lengths: Lengths::Uniform, ..phase("run", mix) })
        }
        "ycsb-f" => zipf(Mix { search: 0.5, modify: 0.5, ..NONE }),
        _ => {
            let names: Vec<_> = WORKLOADS.iter().map(|(name, _)| *name).collect();
            Err(Error::Usage(format!("no workload is called {name:?}; there are: {}", names.join(", "))))
        }
    }
}

/// Nothing, to be added to.
pub(crate) const NONE: Mix = Mix { search: 0.0, miss: 0.0, insert: 0.0, update: 0.0, delete: 0.0, scan: 0.0, modify: 0.0 };
/// Inserts alone.
pub(crate) const INSERT: Mix = Mix { insert: 1.0, ..NONE };
/// Lookups alone.
pub(crate) const SEARCH: Mix = Mix { search: 1.0, ..NONE };
/// Updates alone.
pub(crate) const UPDATE: Mix = Mix { update: 1.0, ..NONE };
/// Removals alone.
pub(crate) const DELETE: Mix = Mix { delete: 1.0, ..NONE };
pub(crate) const SCAN: Mix = Mix { scan: 1.0, ..NONE };

/// A phase of as many operations as there are keys, each on another key if they are not inserted.
pub(crate) fn phase(name: &str, mix: Mix) -> Phase {
    Phase {
        name: name.into(),
        mix,
        distribution: Distribution::Uniform,
        order: Order::Random,
        operations: None,
        access: Access::Independent,
        lengths: Lengths::Fixed,
        touches_ahead: false,
        measured: true,
    }
}

/// A mix such as `search=95,update=5`: names of operations and their shares.
///
/// # Errors
/// [`Error::Usage`].
pub fn parse_mix(text: &str) -> Result<Mix, Error> {
    let mut mix = NONE;
    for part in text.split(',') {
        let wrong = || Error::Usage(format!("{part:?} is not a share of a mix; write for example search=95,update=5"));
        let (name, share) = part.split_once('=').ok_or_else(wrong)?;
        let share: f64 = share.trim().parse().ok().filter(|share: &f64| share.is_finite() && *share >= 0.0).ok_or_else(wrong)?;
        *match name.trim() {
            "search" => &mut mix.search,
            "miss" => &mut mix.miss,
            "insert" => &mut mix.insert,
            "update" => &mut mix.update,
            "delete" => &mut mix.delete,
            "scan" => &mut mix.scan,
            "modify" => &mut mix.modify,
            other => return Err(Error::Usage(format!("no operation is called {other:?}; there are: search, miss, insert, update, delete, scan, modify"))),
        } += share;
    }
    if mix == NONE { Err(Error::Usage(format!("{text:?} is a mix of nothing"))) } else { Ok(mix) }
}

/// A distribution such as `uniform`, `random`, `sequential`, `zipfian`, `zipfian:0.8`, `latest`.
///
/// # Errors
/// [`Error::Usage`].
pub(crate) fn parse_distribution(text: &str) -> Result<Distribution, Error> {
    let wrong =
        || Error::Usage(format!("{text:?} is no distribution; there are: uniform, random, sequential, zipfian, latest, and zipfian:EXPONENT, latest:EXPONENT"));
    let (name, exponent) = text.split_once(':').map_or((text, None), |(name, exponent)| (name, Some(exponent)));
    let exponent = exponent.map(|text| text.parse::<f64>().map_err(|_| wrong())).transpose()?;
    match (name, exponent) {
        ("uniform", None) => Ok(Distribution::Uniform),
        ("random", None) => Ok(Distribution::Random),
        ("sequential", None) => Ok(Distribution::Sequential),
        ("zipfian", exponent) => Ok(Distribution::Zipfian(exponent.unwrap_or(YCSB))),
        ("latest", exponent) => Ok(Distribution::Latest(exponent.unwrap_or(YCSB))),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_that_is_listed_exists() {
        for (name, _) in WORKLOADS.iter() {
            let workload = find(name).unwrap();
            assert!(workload.name == *name && !workload.phases.is_empty());
        }
        assert!(matches!(find("nothing"), Err(Error::Usage(_))));
    }

    #[test]
    fn mixes_are_read() {
        assert_eq!(parse_mix("search=95, update=5").unwrap(), Mix { search: 95.0, update: 5.0, ..NONE });
        assert_eq!(parse_mix("scan=0.5,insert=0.5").unwrap(), Mix { scan: 0.5, insert: 0.5, ..NONE });
        for text in ["", "search", "search=", "search=-1", "search=nan", "search=inf", "find=1", "search=0"] {
            assert!(matches!(parse_mix(text), Err(Error::Usage(_))), "{text}");
        }
    }

    #[test]
    fn distributions_are_read() {
        assert_eq!(parse_distribution("uniform").unwrap(), Distribution::Uniform);
        assert_eq!(parse_distribution("zipfian").unwrap(), Distribution::Zipfian(0.99));
        assert_eq!(parse_distribution("latest:0.5").unwrap(), Distribution::Latest(0.5));
        for text in ["", "uniform:1", "zipfian:", "zipfian:x", "normal"] {
            assert!(matches!(parse_distribution(text), Err(Error::Usage(_))), "{text}");
        }
    }
}
