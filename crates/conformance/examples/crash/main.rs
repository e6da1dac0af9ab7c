//! Runs the crash suites for as long as one likes, plants mistakes to see whether they are found, and replays what was found.
//!
//! ```text
//! cargo xtask crash run --world isle-128/u64 --operations 5 --depth 2
//! cargo xtask crash run --world pool --world store --sampled --sequences 100 --random 2000 --seed 7
//! cargo xtask crash mutate --world pool --site header.rs
//! cargo xtask crash replay isle-128/u64 0x0102000000000000
//! ```

use clap::{Args, Parser};
use everleaf_conformance::crash::{Case, FieldBug, Options, Report, Suite, field_bugs, mutants, profile, sow, suites};
use everleaf_pmem::{Act, CrashOptions, Fault, Profile};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

#[derive(Parser)]
#[command(about = "Recovers every image that a crash can leave, and checks the checker")]
enum Command {
    /// Recover every image of every short sequence of operations, or, of long random ones, a sample
    Run {
        #[command(flatten)]
        worlds: Worlds,
        #[command(flatten)]
        extent: Extent,
        /// Random sequences instead of all short ones
        #[arg(long)]
        sampled: bool,
    },
    /// Make every mistake at every place where something is stored, flushed or fenced, and tell which are found
    Mutate {
        #[command(flatten)]
        worlds: Worlds,
        /// Only at places that begin so: the end of a file's path, perhaps a line
        #[arg(long)]
        site: Option<String>,
        /// Threads
        #[arg(long, default_value_t = 2)]
        threads: usize,
    },
    /// Make the mistakes that others have made, and tell which are found
    Seeded {
        /// Only these, by name; may be given more than once
        #[arg(long = "seed")]
        names: Vec<String>,
    },
    /// Tell how many crashes cut each place short
    Sites {
        #[command(flatten)]
        worlds: Worlds,
        #[command(flatten)]
        extent: Extent,
    },
    /// Run one case again, as a violation prints it
    Replay {
        /// The world
        world: String,
        /// The case
        case: Case,
        #[command(flatten)]
        extent: Extent,
        /// The place of a planted mistake
        #[arg(long, requires_all = ["verb", "act"])]
        site: Option<String>,
        /// What is done there
        #[arg(long)]
        verb: Option<String>,
        /// The mistake
        #[arg(long)]
        act: Option<String>,
    },
}

#[derive(Args)]
struct Worlds {
    /// Only worlds whose name begins so, such as isle-128, isle/bytes, pool, store; may be given more than once
    #[arg(long = "world", visible_alias = "index")]
    names: Vec<String>,
}

impl Worlds {
    fn chosen(&self) -> Result<Vec<Box<dyn Suite>>, String> {
        let all = suites();
        let names: Vec<_> = all.iter().map(|suite| suite.name()).collect();
        let part = |name: &str, wanted: &str| name == wanted || name.starts_with(&format!("{wanted}/"));
        let chosen: Vec<_> = all.into_iter().filter(|suite| self.names.is_empty() || self.names.iter().any(|wanted| part(&suite.name(), wanted))).collect();
        if chosen.is_empty() { Err(format!("no such world; there are: {}", names.join(", "))) } else { Ok(chosen) }
    }
}

#[derive(Args)]
struct Extent {
    /// Longest sequence of operations, all of which are run
    #[arg(long, default_value_t = 3)]
    operations: usize,
    /// Length of random sequences
    #[arg(long, default_value_t = 120)]
    random: usize,
    /// Number of random sequences
    #[arg(long, default_value_t = 16)]
    sequences: usize,
    /// Only this start
    #[arg(long)]
    start: Option<String>,
    /// Closing and opening the pool is an operation, too
    #[arg(long)]
    closes: bool,
    /// How deep recoveries are crashed
    #[arg(long, default_value_t = 1)]
    depth: u32,
    /// How many lives come after the first
    #[arg(long, default_value_t = 1)]
    lives: u32,
    /// Use every n-th recovered world on
    #[arg(long, default_value_t = 1)]
    follow_up_every: u64,
    /// Give every n-th image a second life
    #[arg(long, default_value_t = 64)]
    second_life_every: u64,
    /// Largest number of images of a crash point that are all shown
    #[arg(long, default_value_t = 4096)]
    images_max: u64,
    /// Number of random images of a crash point that has more
    #[arg(long, default_value_t = 32)]
    sample_count: u32,
    /// Show all states of blocks that nobody can reach
    #[arg(long)]
    hidden_in_full: bool,
    /// Stores are durable at once, as with a cache in the persistence domain
    #[arg(long)]
    durable_cache: bool,
    /// Flushes do nothing
    #[arg(long)]
    no_flushes: bool,
    /// Threads
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Memory of a thread in KiB, instead of what the world asks for
    #[arg(long)]
    memory_kib: Option<usize>,
    /// Seed of every random choice
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl Extent {
    fn options(&self) -> Options {
        Options {
            operations: self.operations,
            random: self.random,
            sequences: self.sequences,
            closes: self.closes,
            depth: self.depth,
            lives: self.lives,
            follow_up_every: self.follow_up_every,
            second_life_every: self.second_life_every,
            life: CrashOptions {
                stores_are_durable: self.durable_cache,
                images_max: self.images_max,
                sample_count: self.sample_count,
                hidden_in_full: self.hidden_in_full,
                drops_flushes: self.no_flushes,
                ..CrashOptions::default()
            },
            start: self.start.clone(),
            threads: self.threads,
            memory: self.memory_kib.map(|size| size << 10),
            seed: self.seed,
        }
    }
}

fn main() -> ExitCode {
    // Panics are part of what is looked for, and told in the story.
    std::panic::set_hook(Box::new(|_| {}));
    match do_command(Command::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::from(2)
        }
    }
}

/// Whether all is well.
fn do_command(command: Command) -> Result<bool, String> {
    match command {
        Command::Run { worlds, extent, sampled } => {
            let mut sound = true;
            for suite in worlds.chosen()? {
                let options = extent.options();
                let report = if sampled { suite.sampled(&options) } else { suite.every(&options) };
                sound &= tell(&suite.name(), &report);
            }
            Ok(sound)
        }
        Command::Mutate { worlds, site, threads } => mutate(&worlds.chosen()?, site.as_deref(), threads),
        Command::Seeded { names } => seeded(&names),
        Command::Sites { worlds, extent } => sites(&worlds.chosen()?, &extent.options()),
        Command::Replay { world, case, extent, site, verb, act } => {
            let suite = suites().into_iter().find(|suite| suite.name() == world).ok_or_else(|| format!("no world is called {world}"))?;
            let mut options = extent.options();
            if let (Some(site), Some(verb), Some(act)) = (site, verb, act) {
                options.life.fault = Some(find_fault(&*suite, &site, &verb, &act)?);
            }
            Ok(tell(&world, &suite.replay(case, &options)))
        }
    }
}

fn tell(world: &str, report: &Report) -> bool {
    println!("{world}: {report}");
    if let Some(violation) = &report.violation {
        println!("{violation}");
    }
    report.violation.is_none()
}

fn place(fault: &Fault) -> String {
    let place = fault.site.place;
    format!("{}:{}:{}", place.file(), place.line(), place.column())
}

fn mutate(suites: &[Box<dyn Suite>], site: Option<&str>, threads: usize) -> Result<bool, String> {
    let options = Options { threads, ..Options::default() };
    let chosen = |fault: &Fault| site.is_none_or(|site| place(fault).contains(site));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let score = mutants(suites, &options, &root, &chosen, &mut |done, total, mutant| println!("{done:>4}/{total} {mutant}"));
    println!("{score}");
    Ok(score.is_full())
}

fn seeded(names: &[String]) -> Result<bool, String> {
    println!("| seed | mistake | stands for | | images | seconds | rule that broke, or why it cannot be made |\n|---|---|---|---|---|---|---|");
    let mut sown = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let chosen = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    sow(&Options::default(), &root, &chosen, &mut |next| {
        println!("{next}");
        sown.push(next);
    });
    println!("\n| bug | system | what was wrong | source | seeds | |\n|---|---|---|---|---|---|");
    for FieldBug { name, system, what, source } in field_bugs() {
        let seeds: Vec<_> = sown.iter().filter(|sown| sown.seed.name == name || sown.seed.source.split(", ").any(|bug| bug == name)).collect();
        if seeds.is_empty() && !names.is_empty() {
            continue;
        }
        let found = seeds.iter().find(|sown| sown.found == Some(true)).or(seeds.first()).map_or("NO SEED", |sown| sown.outcome());
        let seeds: Vec<_> = seeds.iter().map(|sown| sown.seed.name).collect();
        println!("| {name} | {system} | {what} | {source} | {} | {found} |", seeds.join(", "));
    }
    let count = |found| sown.iter().filter(|sown| sown.found == found).count();
    println!("\n{} found, {} missed, {} cannot be made", count(Some(true)), count(Some(false)), count(None));
    Ok(count(Some(false)) == 0 && count(Some(true)) > 0)
}

/// The mistake that a violation's command names. The place is one that the world comes by.
fn find_fault(suite: &dyn Suite, site: &str, verb: &str, act: &str) -> Result<Fault, String> {
    let act = Act::ALL.into_iter().find(|known| known.name() == act).ok_or_else(|| format!("no mistake is called {act}"))?;
    let sites = profile(suite, &Options::default(), usize::MAX).sites();
    let found = sites.into_iter().map(|(site, _)| Fault { site, act }).find(|fault| place(fault) == site && fault.site.verb.to_string() == verb);
    found.ok_or_else(|| format!("{} comes by no {verb} at {site}", suite.name()))
}

fn sites(suites: &[Box<dyn Suite>], options: &Options) -> Result<bool, String> {
    let all = Arc::new(Profile::default());
    for suite in suites {
        let profile = Arc::new(Profile::default());
        let life = CrashOptions { profile: Some(Arc::clone(&profile)), ..options.life.clone() };
        let options = Options { life, ..options.clone() };
        if !(tell(&suite.name(), &suite.every(&options)) && tell(&suite.name(), &suite.sampled(&options))) {
            return Ok(false);
        }
        all.add(&profile);
    }
    let sites = all.sites();
    for (site, tally) in &sites {
        println!("{:>10} images {:>10} times  {site}", tally.images, tally.hits);
    }
    let rare = sites.iter().filter(|(_, tally)| tally.images < 1000).count();
    println!("{} places, {rare} of them cut short in fewer than 1,000 images", sites.len());
    Ok(rare == 0)
}
