//! The crash checker as a command: it runs its suites for any length of time, plants mistakes to see whether they are found, and replays what was found.
//!
//! The command is `everleaf lab crash`, and, in a build with scheduling points for threads, `cargo xtask crash`.
//!
//! ```text
//! cargo xtask crash run --world isle-128/u64 --operations 5 --depth 2
//! cargo xtask crash run --world pool --world store --sampled --sequences 100 --random 2000 --seed 7
//! cargo xtask crash long --minutes 60
//! cargo xtask crash mutate --world pool --site header.rs
//! cargo xtask crash replay isle-128/u64 0x0102000000000000
//! ```

mod table;
mod threads;
mod watch;

use crate::crash::source::Source;
use crate::crash::{
    Case, FieldBug, OPERATIONS_MAX, Options, Outcome, Progress, Report, STAGES, Suite, dependences, field_bugs, more_suites, mutants, profile, sow, suites,
};
use clap::{Args, Subcommand};
use everleaf_pmem::schedule::IS_BUILT_IN;
use everleaf_pmem::{Act, CrashOptions, Fault, Profile, Site, Tally};
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};
use table::Row;
use watch::watched;

/// What to do.
#[derive(Subcommand)]
#[allow(missing_docs, reason = "what each is for is said to those who use the command")]
pub enum Command {
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
    /// Run every world for long, all sequences of ever more operations and random ones in turn, and print a table of it
    Long {
        #[command(flatten)]
        worlds: Worlds,
        #[command(flatten)]
        extent: Extent,
        /// For how long
        #[arg(long, required_unless_present = "images")]
        minutes: Option<u64>,
        /// Until so many images have been recovered and checked
        #[arg(long)]
        images: Option<u64>,
    },
    /// Make every mistake at every place where something is stored, flushed or fenced, and tell which are found
    Mutate {
        #[command(flatten)]
        worlds: Worlds,
        /// Only at places that begin so: the end of a file's path, perhaps a line
        #[arg(long)]
        site: Option<String>,
        /// Only from this start
        #[arg(long)]
        start: Option<String>,
        /// How much is run, from 1, little, to 5, or to 9 from one start: places that this does not come by are left out, and more may find what it does not
        #[arg(long, default_value_t = STAGES)]
        stages: usize,
        /// Threads
        #[arg(long, default_value_t = 2)]
        threads: usize,
    },
    /// Make the mistakes that others have made, and tell which are found
    Seeded {
        /// Only these, by name; may be given more than once
        #[arg(long = "seed")]
        names: Vec<String>,
        /// Not these, by name, with commas between them
        #[arg(long, value_delimiter = ',')]
        except: Vec<String>,
    },
    /// Tell how many crashes cut each place short, and go on until each was cut short by 1,000
    Sites {
        #[command(flatten)]
        worlds: Worlds,
        #[command(flatten)]
        extent: Extent,
        /// For places with fewer: how many rounds of short sequences at most, each in other memory
        #[arg(long, default_value_t = 400)]
        rounds: u64,
    },
    /// List the stores that rely on earlier ones to the same line: what breaks, and where, if the words of a line are independent
    Lines {
        #[command(flatten)]
        worlds: Worlds,
        #[command(flatten)]
        extent: Extent,
    },
    /// Run threads in every order that a seed can choose, and crash them
    Threads(threads::Arguments),
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

/// Which worlds.
#[derive(Args)]
pub struct Worlds {
    /// Only worlds whose name begins so, such as isle-128, isle/bytes, pool, store, or store-lb-128, which is left out otherwise; may be given more than once
    #[arg(long = "world", visible_alias = "index")]
    names: Vec<String>,
}

impl Worlds {
    fn chosen(&self) -> Result<Vec<Box<dyn Suite>>, String> {
        let mut all = suites();
        if !self.names.is_empty() {
            all.extend(more_suites());
        }
        let names: Vec<_> = all.iter().map(|suite| suite.name()).collect();
        let part = |name: &str, wanted: &str| name == wanted || name.starts_with(&format!("{wanted}/"));
        let chosen: Vec<_> = all.into_iter().filter(|suite| self.names.is_empty() || self.names.iter().any(|wanted| part(&suite.name(), wanted))).collect();
        if chosen.is_empty() { Err(format!("no such world; there are: {}", names.join(", "))) } else { Ok(chosen) }
    }
}

/// How much of each.
#[derive(Args)]
pub struct Extent {
    /// Longest sequence of operations, all of which are run; at most 12
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
    /// In second lives, give recovery and each step a thread of their own
    #[arg(long)]
    hand_over: bool,
    /// Largest number of images of a crash point that are all shown
    #[arg(long, default_value_t = 4096)]
    images_max: u64,
    /// Number of random images of a crash point that has more
    #[arg(long, default_value_t = 32)]
    sample_count: u32,
    /// Decide images of a crash point that has more only as far as they are read, if that takes at most so many runs
    #[arg(long, value_name = "RUNS", default_value_t = 0)]
    lazy: u64,
    /// Show all states of blocks that nobody can reach
    #[arg(long)]
    hidden_in_full: bool,
    /// Stores are durable at once, as with a cache in the persistence domain
    #[arg(long)]
    durable_cache: bool,
    /// The pool is in domain msync: large values go into the caches, and record and entry are published together
    #[arg(long)]
    awaits_device: bool,
    /// Flushes do nothing, as is right with a cache in the persistence domain
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
    fn options(&self) -> Result<Options, String> {
        if self.lazy > 0 && !IS_BUILT_IN {
            return Err("--lazy watches loads, for which this must be built with debug assertions: `cargo xtask crash` does so".to_owned());
        }
        if self.operations > OPERATIONS_MAX || self.threads == 0 {
            return Err(format!("--operations is at most {OPERATIONS_MAX}, of which a case spells each in a number, and --threads at least 1"));
        }
        Ok(Options {
            operations: self.operations,
            random: self.random,
            sequences: self.sequences,
            closes: self.closes,
            depth: self.depth,
            lives: self.lives,
            follow_up_every: self.follow_up_every,
            second_life_every: self.second_life_every,
            hands_over: self.hand_over,
            life: CrashOptions {
                stores_are_durable: self.durable_cache,
                images_max: self.images_max,
                sample_count: self.sample_count,
                lazy_runs_max: self.lazy,
                hidden_in_full: self.hidden_in_full,
                awaits_device: self.awaits_device,
                drops_flushes: self.no_flushes,
                ..CrashOptions::default()
            },
            start: self.start.clone(),
            threads: self.threads,
            memory: self.memory_kib.map(|size| size << 10),
            seed: self.seed,
            shrinks: true,
            progress: None,
        })
    }
}

impl Command {
    /// Runs the command, prints its findings, and returns whether all is well.
    ///
    /// # Errors
    /// If the command cannot be carried out.
    pub fn run(self) -> Result<bool, String> {
        // The checker looks for panics and reports them in the story.
        std::panic::set_hook(Box::new(|_| {}));
        match self {
            Self::Run { worlds, extent, sampled } => run(&worlds.chosen()?, &extent.options()?, sampled),
            Self::Long { worlds, extent, minutes, images } => long(&worlds.chosen()?, &extent.options()?, minutes, images),
            Self::Mutate { worlds, site, start, stages, threads } => {
                let options = Options { start, threads, ..Options::default() };
                mutate(&worlds.chosen()?, site.as_deref(), &options, stages)
            }
            Self::Seeded { names, except } => seeded(&names, &except),
            Self::Sites { worlds, extent, rounds } => sites(&worlds.chosen()?, &extent.options()?, rounds),
            Self::Lines { worlds, extent } => lines(&worlds.chosen()?, &extent.options()?),
            Self::Threads(arguments) => arguments.run(),
            Self::Replay { world, case, extent, site, verb, act } => {
                let suite =
                    suites().into_iter().chain(more_suites()).find(|suite| suite.name() == world).ok_or_else(|| format!("no world is called {world}"))?;
                let mut options = extent.options()?;
                if let (Some(site), Some(verb), Some(act)) = (site, verb, act) {
                    options.life.fault = Some(find_fault(&*suite, &site, &verb, &act)?);
                }
                Ok(tell(&world, &suite.replay(case, &options)))
            }
        }
    }
}

/// Runs `suite` and shows its progress.
fn one(suite: &dyn Suite, options: &Options, sampled: bool, progress: Progress) -> Report {
    let progress = Arc::new(progress);
    let options = Options { progress: Some(Arc::clone(&progress)), ..options.clone() };
    watched(
        &suite.name(),
        "images",
        |begun| (progress.share(begun), progress.checked()),
        || if sampled { suite.sampled(&options) } else { suite.every(&options) },
    )
}

fn run(suites: &[Box<dyn Suite>], options: &Options, sampled: bool) -> Result<bool, String> {
    let mut rows = Vec::new();
    for suite in suites {
        let mut row = Row::new(suite.name());
        let report = one(&**suite, options, sampled, Progress::default());
        tell(&row.world, &report);
        row.operations = (!sampled).then_some(options.operations);
        row.add(&report);
        rows.push(row);
    }
    let sound = rows.iter().all(|row| row.violations == 0);
    table::print(rows);
    Ok(sound)
}

/// Runs rounds over all worlds until the time is up or the number of images is reached. Each round has all sequences of one more operation and twice as many
/// random ones. Within a round all worlds get equal shares of the remaining time. The first round is short, so that later ones know how much a world needs.
fn long(suites: &[Box<dyn Suite>], options: &Options, minutes: Option<u64>, images: Option<u64>) -> Result<bool, String> {
    let deadline = minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let mut rows: Vec<_> = suites.iter().map(|suite| Row::new(suite.name())).collect();
    let checked = |rows: &[Row]| rows.iter().map(|row| row.report.checked).sum::<u64>();
    let is_over = |rows: &[Row]| deadline.is_some_and(|deadline| Instant::now() >= deadline) || images.is_some_and(|images| checked(rows) >= images);
    let mut round = 0;
    while !is_over(&rows) {
        for at in 0..suites.len() * 2 {
            let (number, sampled) = (at / 2, at % 2 == 1);
            let operations = options.operations.saturating_sub(2).max(1) + round;
            let seed = options.seed.wrapping_add((1 << 32) * round as u64);
            let options = Options { operations, sequences: options.sequences << round.min(16), seed, ..options.clone() };
            // A world that did not finish all its sequences within its share will not finish longer ones.
            if is_over(&rows) || !sampled && (operations > OPERATIONS_MAX || rows[number].operations.is_none() && round > 0) {
                continue;
            }
            let shares = (suites.len() * 2 - at) as u32 * if round == 0 { 4 } else { 1 };
            let until = deadline.map(|deadline| Instant::now() + deadline.saturating_duration_since(Instant::now()) / shares);
            let checked_max = images.map(|images| images.saturating_sub(checked(&rows)) / u64::from(shares) + 1);
            let report = one(&*suites[number], &options, sampled, Progress::until(until, checked_max));
            tell(&rows[number].world, &report);
            if !sampled && !report.is_cut {
                rows[number].operations = Some(operations);
            }
            rows[number].add(&report);
        }
        round += 1;
    }
    let sound = rows.iter().all(|row| row.violations == 0);
    table::print(rows);
    Ok(sound)
}

fn tell(world: &str, report: &Report) -> bool {
    println!("{world}: {report}");
    if let Some(violation) = &report.violation {
        println!("{violation}");
    }
    report.violation.is_none()
}

fn mutate(suites: &[Box<dyn Suite>], site: Option<&str>, options: &Options, stages: usize) -> Result<bool, String> {
    let chosen = |fault: &Fault| site.is_none_or(|site| fault.site.place.to_string().contains(site));
    Source::of_this_build().expect()?;
    let begun = Instant::now();
    let bar = std::io::stderr().is_terminal().then(|| watch::bar("mutants", 0));
    let mut images = 0;
    let score = mutants(suites, options, stages, &chosen, &mut |done, total, mutant| {
        images += mutant.images;
        let line = format!("{done:>4}/{total} {mutant}");
        match &bar {
            Some(bar) => {
                bar.set_length(total as u64);
                bar.set_position(done as u64);
                bar.set_message(watch::said(begun.elapsed(), done as f64 / total as f64, images, "images"));
                // A mistake that was found is the expected result, and the table counts it.
                if matches!(mutant.outcome, Outcome::Survived | Outcome::Misjudged(_)) {
                    bar.println(line);
                }
            }
            None => println!("{line}"),
        }
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    table::print_score(&score);
    println!("{score}");
    Ok(score.is_full())
}

fn seeded(names: &[String], except: &[String]) -> Result<bool, String> {
    Source::of_this_build().expect()?;
    println!("| seed | mistake | stands for | | images | seconds | rule that broke, or why it cannot be made |\n|---|---|---|---|---|---|---|");
    let (mut sown, mut seedless) = (Vec::new(), 0);
    let chosen = |name: &str| (names.is_empty() || names.iter().any(|wanted| wanted == name)) && except.iter().all(|unwanted| unwanted != name);
    sow(&Options::default(), &chosen, &mut |next| {
        println!("{next}");
        sown.push(next);
    });
    println!("\n| bug | system | what was wrong | source | seeds | |\n|---|---|---|---|---|---|");
    for FieldBug { name, system, what, source } in field_bugs() {
        let seeds: Vec<_> = sown.iter().filter(|sown| sown.seed.name == name || sown.seed.source.split(", ").any(|bug| bug == name)).collect();
        if seeds.is_empty() && !names.is_empty() {
            continue;
        }
        seedless += usize::from(seeds.is_empty());
        let found = seeds.iter().find(|sown| sown.found == Some(true)).or(seeds.first()).map_or("NO SEED", |sown| sown.outcome());
        let seeds: Vec<_> = seeds.iter().map(|sown| sown.seed.name).collect();
        println!("| {name} | {system} | {what} | {source} | {} | {found} |", seeds.join(", "));
    }
    let count = |found| sown.iter().filter(|sown| sown.found == found).count();
    println!("\n{} found, {} missed, {} cannot be made; {seedless} bugs without a seed", count(Some(true)), count(Some(false)), count(None));
    Ok(count(Some(false)) == 0 && count(Some(true)) > 0 && seedless == 0)
}

/// The mistake that a violation's command names. Its place must be one that the world reaches.
fn find_fault(suite: &dyn Suite, site: &str, verb: &str, act: &str) -> Result<Fault, String> {
    let act = Act::ALL.into_iter().find(|known| known.name() == act).ok_or_else(|| format!("no mistake is called {act}"))?;
    let sites = profile(suite, &Options::default(), usize::MAX).sites();
    let found = sites.into_iter().map(|(known, _)| known).find(|known| known.to_string() == format!("{site} {verb}"));
    found.map(|site| Fault { site, act }).ok_or_else(|| format!("{} comes by no {verb} at {site}", suite.name()))
}

fn lines(suites: &[Box<dyn Suite>], options: &Options) -> Result<bool, String> {
    let mut source = Source::of_this_build();
    source.expect()?;
    let mut is_sound = true;
    let found = dependences(suites, options, &mut |world, report| is_sound &= tell(world, report));
    let mut line = |place| source.line(place).unwrap_or_default().trim().to_owned();
    for pair in &found {
        println!("{pair}\n    {}\n    after {}", line(pair.later), line(pair.earlier));
    }
    let relaxed = found.iter().filter(|pair| !pair.is_ordered).count();
    println!("{} dependences on the order within a line, {relaxed} of them of relaxed stores", found.len());
    Ok(is_sound && relaxed == 0)
}

/// Number of images in which each place is to be the boundary.
const SITE_IMAGES_MIN: u64 = 1000;
/// The rounds, in turn, for places with fewer images: the number of random sequences and their length. Each round has memory of its own. Some places come up
/// only when a pool is new, others only after many operations.
const SITE_ROUNDS: [(usize, usize); 3] = [(512, 1), (64, 8), (16, 24)];

fn sites(suites: &[Box<dyn Suite>], options: &Options, rounds: u64) -> Result<bool, String> {
    let profiles: Vec<_> = suites.iter().map(|_| Arc::new(Profile::default())).collect();
    let profiled = |number: usize, options: &Options| {
        let life = CrashOptions { profile: Some(Arc::clone(&profiles[number])), ..options.life.clone() };
        Options { life, ..options.clone() }
    };
    for (number, suite) in suites.iter().enumerate() {
        let options = profiled(number, options);
        if !(tell(&suite.name(), &suite.every(&options)) && tell(&suite.name(), &suite.sampled(&options))) {
            return Ok(false);
        }
    }
    let all = || {
        let all = Profile::default();
        profiles.iter().for_each(|profile| all.add(profile));
        all.sites()
    };
    let rare = |sites: &[(Site, Tally)]| sites.iter().filter(|(_, tally)| tally.images < SITE_IMAGES_MIN).map(|(site, _)| *site).collect::<Vec<_>>();
    let bar = std::io::stderr().is_terminal().then(|| watch::bar("rounds", rounds));
    for round in 1..=rounds {
        let rare = rare(&all());
        if rare.is_empty() {
            break;
        }
        for (number, suite) in suites.iter().enumerate() {
            if profiles[number].sites().iter().any(|(site, _)| rare.contains(site)) {
                let (sequences, random) = SITE_ROUNDS[round as usize % SITE_ROUNDS.len()];
                let seed = options.seed.wrapping_add(round << 32);
                let report = suite.sampled(&profiled(number, &Options { sequences, random, closes: true, seed, ..options.clone() }));
                if report.violation.is_some() {
                    return Ok(tell(&suite.name(), &report));
                }
            }
        }
        if let Some(bar) = &bar {
            bar.set_position(round);
            bar.set_message(format!("{} places in fewer than {SITE_IMAGES_MIN} images", rare.len()));
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let sites = all();
    for (site, tally) in &sites {
        println!("{:>10} images {:>10} times  {site}", tally.images, tally.hits);
    }
    let rare = rare(&sites).len();
    println!("{} places, {rare} of them cut short in fewer than {SITE_IMAGES_MIN} images", sites.len());
    Ok(rare == 0)
}
