//! The measuring half of `everleaf lab`: `list | run | rerun | reproduce`.
//!
//! ```text
//! everleaf lab run --systems isle,lb --workload ycsb-a --keys 4000000 --threads 1,2 --output results.jsonl
//! everleaf lab run --systems lb,wb --workload insert --measure counts
//! everleaf lab rerun results.jsonl
//! everleaf lab reproduce isle --scale small --report isle
//! everleaf lab reproduce nv --claims D21,D22,D23 --scale 100000000 --rounds 1
//! ```

use crate::claims::{self, Scale};
use crate::driver::THREADS_MAX;
use crate::plan::{Access, Case, Experiment, Figure, KeyKind, Load, Measure, Memory, Order, Parameters, Plan, Shape, Workload};
use crate::result::{Results, metric};
use crate::run::Run;
use crate::system::ON_INDEXES;
use crate::{Error, System, child, report, summary, workload};
use clap::{Args, Subcommand};
use everleaf_pmem::Domain;
use std::fs::{self, File};
use std::io::{BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What to do.
#[derive(Subcommand)]
#[allow(missing_docs, reason = "what each is for is said to those who use the command")]
pub enum Command {
    /// Say what can be measured: systems, workloads, claims
    List,
    /// Measure systems on one workload, in turns
    Run(Box<Work>),
    /// Do again what a result file says was done
    Rerun {
        /// The result file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Judge the claims of a paper by measuring them here
    Reproduce {
        /// isle, lb, sentinels, nv, pftree, or all of them
        #[arg(default_value = "all", value_name = "PAPER")]
        paper: String,
        /// Judge these of its claims alone, by the ids of `lab list`, and measure nothing but what they are judged by
        #[arg(long, value_delimiter = ',', value_name = "ID,...")]
        claims: Vec<String>,
        /// Number of keys that stands for the papers' ten million: tiny, small, default (a million), large, or a number
        #[arg(long, default_value = "default", value_name = "SCALE")]
        scale: Scale,
        /// Rounds, of which the median is told; by fewer than five no time is judged, and more decide more; what is counted takes one
        #[arg(long, default_value_t = 9, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// Seed of keys and choices
        #[arg(long, default_value_t = 1, value_name = "N")]
        seed: u64,
        #[command(flatten)]
        output: Output,
    },
    /// Measure one case, given on standard input: what the lab starts for itself
    #[command(hide = true)]
    Child,
}

/// Where results go.
#[derive(Args)]
pub struct Output {
    /// Keep all figures in this file, as lines of JSON; a new one
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Put everything into this directory: the lines as results.jsonl, a new one, the pictures, and report.html
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "output")]
    report: Option<PathBuf>,
    /// Print the lines of JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// What `lab run` measures.
#[derive(Args)]
pub struct Work {
    /// Systems, as `lab list` has them; the first is what the others are compared with
    #[arg(long, default_value = "volatile,isle,lb", value_delimiter = ',', value_name = "NAME,...")]
    systems: Vec<String>,
    /// What others are compared with, instead of the first: one of the systems
    #[arg(long, value_name = "NAME")]
    baseline: Option<String>,
    /// Workloads of `lab list`; if neither this nor a mix is given, micro
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    workload: Vec<String>,
    /// A mix such as search=95,update=5, done with keys that were loaded before, in one phase, `run`; for the rest as the first phase of the workload, if one
    /// is given. One with delete among others gives each thread a share of the keys to itself
    #[arg(long, value_name = "MIX")]
    mix: Option<String>,
    /// Another choice of keys: uniform (each once, if there are enough), random (with repetition), sequential, zipfian, latest, zipfian:0.8
    #[arg(long, value_name = "NAME")]
    distribution: Option<String>,
    /// Lookups or inserts in batches of so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536), conflicts_with = "dependent")]
    batch: Option<u32>,
    /// Each lookup waits for the one before; for workloads whose phases all have lookups
    #[arg(long)]
    dependent: bool,
    /// Ascending keys, one behind the other, in what is loaded and in what is inserted; those that a lookup misses are below all of them
    #[arg(long)]
    dense: bool,
    /// Load in bulk, and fill each leaf to this share, from 0.1 to 1
    #[arg(long, value_name = "SHARE")]
    fill: Option<f64>,
    /// Numbers of keys
    #[arg(long, default_value = "1000000", value_delimiter = ',', value_name = "N,...")]
    keys: Vec<u64>,
    /// Operations of each phase. If not given, as many as there are keys; of scans so many that they visit about as many, and at least 100
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    operations: Option<u64>,
    /// Keys: `integer`, or strings of so many bytes. If not given, those that the workload is known by, where all systems take them: 23 for YCSB, 16 for
    /// db_bench, else integers
    #[arg(long, value_name = "BYTES", value_parser = parse_key)]
    key: Option<KeyKind>,
    /// Size of values in bytes. If not given, as for keys: 1000 for YCSB, 100 for db_bench, else 8
    #[arg(long, value_name = "BYTES")]
    value_bytes: Option<u32>,
    /// Numbers of threads
    #[arg(long, default_value = "1", value_delimiter = ',', value_name = "N,...", value_parser = clap::value_parser!(u16).range(1..=i64::from(THREADS_MAX)))]
    threads: Vec<u16>,
    /// Nanoseconds added to every line that is written back; papers use 0 to 600. For times and recovery
    #[arg(long, default_value = "0", value_delimiter = ',', value_name = "NS,...", value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    write_latency: Vec<u64>,
    /// Persistence domains; msync needs a directory
    #[arg(long, default_value = "adr", value_delimiter = ',', value_name = "NAME,...")]
    domains: Vec<Domain>,
    /// Put pools into files of this directory instead of memory without a file
    #[arg(long, value_name = "PATH")]
    directory: Option<PathBuf>,
    /// Leave pages of pools as small as a tmpfs makes them, 4 KiB, where they are of 2 MiB otherwise; other engines have what they have
    #[arg(long, requires = "directory")]
    small_pages: bool,
    /// Have memory found for all keys before the first is inserted, in pools; other engines have what they have
    #[arg(long)]
    prefault: bool,
    /// Entries of a scan; of ycsb-e, the most of them
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    scan_length: u32,
    /// What to find out
    #[arg(long, default_value = "time", value_delimiter = ',', value_name = "WHAT,...")]
    measure: Vec<Measure>,
    /// Count instructions, by callgrind; the same as --measure instructions
    #[arg(long, conflicts_with = "measure")]
    instructions: bool,
    /// Rounds, of which the median is told
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seed of keys and choices
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    #[command(flatten)]
    output: Output,
}

/// What a mix is called that changes no workload.
const MIX: &str = "mix";

fn parse_key(text: &str) -> Result<KeyKind, String> {
    match text {
        "integer" => Ok(KeyKind::Integer),
        size => size.parse().ok().filter(|size| *size >= 8).map(KeyKind::Bytes).ok_or(format!("{text:?} is neither `integer` nor a size from 8 bytes on")),
    }
}

impl Command {
    /// Does it with the systems of this crate. `stop` ends it early; what was measured then is kept.
    ///
    /// # Errors
    /// What makes no sense; files that cannot be read or written; whatever a system fails by.
    pub fn run(self, stop: &Arc<AtomicBool>) -> Result<(), Error> {
        self.run_with(crate::systems(), stop)
    }

    /// Does it with `systems`.
    ///
    /// # Errors
    /// As [`Command::run`].
    pub fn run_with(self, mut systems: Vec<Box<dyn System>>, stop: &Arc<AtomicBool>) -> Result<(), Error> {
        match self {
            Self::List => list(&systems),
            Self::Run(work) => {
                let plan = work.plan(&mut systems)?;
                execute(plan, &work.output, &mut systems, stop)
            }
            Self::Rerun { file, output } => {
                let opened = File::open(&file).map_err(|source| Error::io("open", &file, source))?;
                let plan = Results::read(BufReader::new(opened))?.header.plan;
                defaults(&plan).iter().for_each(|warning| eprintln!("everleaf: {warning}"));
                execute(plan, &output, &mut systems, stop)
            }
            Self::Reproduce { paper, claims, scale, rounds, seed, output } => {
                let names = crate::names(&systems);
                let plan = claims::plan(&paper, scale, &names, rounds, seed)?;
                let plan = if claims.is_empty() { plan } else { claims::only(plan, &claims, &names)? };
                execute(plan, &output, &mut systems, stop)
            }
            Self::Child => child::serve(&mut systems, std::io::stdin(), &mut std::io::stdout(), stop),
        }
    }
}

/// What older files do not say, so that it may be another now: of `store`, the index; of files, the pages that they lay on.
fn defaults(plan: &Plan) -> Vec<String> {
    let names = plan.experiments.iter().flat_map(|experiment| &experiment.systems).filter(|name| ON_INDEXES.contains(&name.as_str()));
    let index = everleaf::Options::default().index;
    let mut warnings: Vec<String> = names.map(|name| format!("the file does not say which index {name:?} was on; {index} is measured now")).collect();
    let mut cases = plan.experiments.iter().flat_map(|experiment| &experiment.cases);
    if cases.any(|case| matches!(case.parameters.memory, Memory::Directory(_))) {
        warnings.push("the file does not say on which pages its files lay, of 4 KiB in older ones; on a tmpfs they are of 2 MiB now".into());
    }
    warnings
}

fn print(text: &str) -> Result<(), Error> {
    std::io::stdout().write_all(text.as_bytes()).map_err(|source| Error::Io { action: "write to standard output".into(), source })
}

fn list(systems: &[Box<dyn System>]) -> Result<(), Error> {
    let mut text = String::from("systems (and store:INDEX, store-snapshots:INDEX, server:INDEX for each persistent index; without INDEX, on the default)\n");
    for system in systems {
        let leaf = system.capabilities().leaf_bytes.filter(|bytes| *bytes > 0).map_or(String::new(), |bytes| format!("{bytes} B"));
        text += &format!("  {:20}{leaf:>8}  {}\n", system.name(), system.summary());
    }
    text += "\nworkloads, and the bytes of keys and values if nothing else is asked for\n";
    for (name, what) in workload::WORKLOADS {
        let (key, value_bytes) = workload::records(name);
        text += &format!("  {name:20}{:>8}  {what}\n", format!("{}, {value_bytes}", key.bytes()));
    }
    text += "\nclaims, by paper\n";
    for (id, paper, what) in claims::list() {
        text += &format!("  {id:6}{paper:10}  {what}\n");
    }
    print(&text)
}

/// Runs a plan, keeps its lines, and prints them or what they come to.
fn execute(plan: Plan, output: &Output, systems: &mut Vec<Box<dyn System>>, stop: &Arc<AtomicBool>) -> Result<(), Error> {
    let path = std::env::current_exe().map_err(|source| Error::Io { action: "find this program".into(), source })?;
    let child = child::Program { path, arguments: vec!["lab".into(), "child".into()] };
    let command = std::env::args().collect();
    let mut run = Run { systems, command, stop: stop.as_ref(), child: Some(child), progress: std::io::stderr().is_terminal() };
    // Before anything is created.
    let plan = run.check(plan)?;
    if let Some(directory) = &output.report {
        fs::create_dir_all(directory).map_err(|source| Error::io("create", directory, source))?;
    }
    let kept = output.report.as_ref().map(|directory| directory.join("results.jsonl")).or_else(|| output.output.clone());
    let mut lines: Box<dyn Write> = match &kept {
        Some(path) => Box::new(create(path)?),
        None if output.json => Box::new(std::io::stdout()),
        None => Box::new(std::io::sink()),
    };
    let (results, measured) = run.plan(plan, &mut lines)?;
    if let Some(directory) = &output.report {
        let written = report::write(&results, directory)?;
        eprintln!("everleaf: {}, {} figures", written.page.display(), written.figures);
    }
    match (output.json, &kept) {
        (false, _) => print(&summary::text(&results))?,
        (true, None) => {}
        (true, Some(path)) => print(&fs::read_to_string(path).map_err(|source| Error::io("read", path, source))?)?,
    }
    measured?;
    if results.end.is_some_and(|end| end.complete) { Ok(()) } else { Err(Error::Interrupted) }
}

/// Results of hours are not written over.
fn create(path: &Path) -> Result<File, Error> {
    File::create_new(path).map_err(|source| Error::io("create", path, source))
}

impl Work {
    /// One experiment, with a case for each combination of what was given several times.
    fn plan(&self, systems: &mut Vec<Box<dyn System>>) -> Result<Plan, Error> {
        let mut all_take_strings = true;
        for name in &self.systems {
            all_take_strings &= crate::find(systems, name)?.capabilities().any_size;
        }
        let measures = if self.instructions { &[Measure::Instructions] } else { self.measure.as_slice() };
        if self.write_latency.iter().any(|added| *added > 0) && !measures.iter().any(|measure| measure.is_slowed()) {
            return Err(Error::Usage("--write-latency changes nothing that is counted; leave it out, or measure time, latency or recovery".into()));
        }
        let memory = self.directory.clone().map_or(Memory::Anonymous, if self.small_pages { Memory::SmallPages } else { Memory::Directory });
        let mut cases = Vec::new();
        let workloads = self.workloads();
        for (measure, name) in measures.iter().flat_map(|measure| workloads.iter().map(move |name| (*measure, *name))) {
            let (key, value_bytes) = if all_take_strings { workload::records(name) } else { workload::INTEGERS };
            let (key, value_bytes) = (self.key.unwrap_or(key), self.value_bytes.unwrap_or(value_bytes));
            let sizes = self.keys.iter().flat_map(|keys| self.threads.iter().map(move |threads| (*keys, *threads)));
            for (keys, threads) in sizes {
                for &write_latency_ns in &self.write_latency {
                    for domain in &self.domains {
                        let (scan_length, prefault) = (self.scan_length, self.prefault);
                        let (domain, memory) = (domain.name().to_owned(), memory.clone());
                        let parameters = Parameters { keys, key, value_bytes, threads, write_latency_ns, domain, memory, scan_length, prefault, measure };
                        cases.push(Case { workload: self.workload(name, measure)?, parameters });
                    }
                }
            }
        }
        let horizontal = if self.keys.len() > 1 {
            "keys"
        } else if self.threads.len() > 1 {
            "threads"
        } else if self.write_latency.len() > 1 {
            "write_latency_ns"
        } else {
            "phase"
        };
        let vertical = match cases.first().map_or(Measure::Time, |case| case.parameters.measure) {
            Measure::Time => metric::MEAN,
            Measure::Latency => metric::P99,
            Measure::Counts => metric::LINES_FLUSHED,
            Measure::Space => metric::POOL,
            Measure::Recovery => metric::RECOVERY,
            Measure::Instructions => metric::INSTRUCTIONS,
        };
        let shape = if horizontal == "phase" { Shape::Bars } else { Shape::Lines };
        let figure = Figure { shape, horizontal: horizontal.into(), vertical: vertical.into(), phases: Vec::new() };
        let experiment = Experiment {
            id: "run".into(),
            title: format!("Workload {}", workloads.join(", ")),
            systems: self.systems.clone(),
            baseline: self.baseline.clone(),
            cases,
            figures: vec![figure],
        };
        Ok(Plan { experiments: vec![experiment], claims: Vec::new(), rounds: self.rounds, seed: self.seed })
    }

    /// The names of the workloads, of which that of a mix alone is none of the list.
    fn workloads(&self) -> Vec<&str> {
        match (self.workload.as_slice(), &self.mix) {
            ([], None) => vec!["micro"],
            ([], Some(_)) => vec![MIX],
            (names, _) => names.iter().map(String::as_str).collect(),
        }
    }

    /// The workload as the options change it.
    fn workload(&self, name: &str, measure: Measure) -> Result<Workload, Error> {
        let mut workload = if name == MIX && self.mix.is_some() { Workload { name: MIX.into(), ..workload::find("search")? } } else { workload::find(name)? };
        if let Some(mix) = &self.mix {
            // Whatever there was of phases, their names would say something else.
            workload.load.get_or_insert(Load { order: Order::Random, fill: None });
            workload.phases.truncate(1);
            workload.phases.iter_mut().try_for_each(|phase| {
                (phase.name, phase.mix) = ("run".into(), workload::parse_mix(mix)?);
                Ok::<_, Error>(())
            })?;
        } else if matches!(measure, Measure::Space | Measure::Recovery) {
            // Of what takes space, or is opened again, only what is there at the end counts.
            workload.phases.retain(|phase| phase.mix.delete == 0.0);
        }
        if let Some(fill) = self.fill {
            workload.load = Some(Load { order: workload.load.map_or(Order::Random, |load| load.order), fill: Some(fill) });
            workload.name = format!("{}, leaves {:.0} % full", workload.name, 100.0 * fill);
        }
        if self.dense {
            workload.load = workload.load.map(|load| Load { order: Order::Dense, ..load });
            workload.phases.iter_mut().for_each(|phase| phase.order = Order::Dense);
        }
        // What is not as its name says is told.
        let dense = self.dense.then(|| "dense keys".to_owned());
        let batch = self.batch.map(|size| format!("by {size}"));
        let dependent = (self.dependent && batch.is_none()).then(|| "dependent".to_owned());
        let operations = self.operations.map(|count| format!("{count} operations"));
        for change in [&dense, &self.mix, &self.distribution, &batch, &dependent, &operations].into_iter().flatten() {
            workload.name = format!("{}, {change}", workload.name);
        }
        for phase in &mut workload.phases {
            if let Some(distribution) = &self.distribution {
                phase.distribution = workload::parse_distribution(distribution)?;
            }
            phase.access = match self.batch {
                Some(size) => Access::Batch(size),
                None if self.dependent => Access::Dependent,
                None => phase.access,
            };
            phase.operations = self.operations.or(phase.operations);
        }
        Ok(workload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::{Capabilities, Instance, Setting};
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: Command,
    }

    /// Takes integers only.
    struct Integers;

    impl System for Integers {
        fn name(&self) -> &str {
            "integers"
        }

        fn summary(&self) -> String {
            String::new()
        }

        fn capabilities(&self) -> Capabilities {
            let volatile = crate::systems().iter().find(|system| system.name() == "volatile").map(|system| system.capabilities());
            Capabilities { any_size: false, ..volatile.unwrap() }
        }

        fn durability(&self, _: &Setting) -> String {
            "none".into()
        }

        fn create(&self, _: &Setting) -> Result<Box<dyn Instance>, Error> {
            Err(Error::Missing { system: "integers".into(), operation: "instances" })
        }
    }

    fn parse(arguments: &str) -> Result<Box<Work>, clap::Error> {
        match Line::try_parse_from(["lab", "run"].into_iter().chain(arguments.split_whitespace()))?.command {
            Command::Run(work) => Ok(work),
            _ => panic!("it is a run"),
        }
    }

    fn plan(arguments: &str) -> Result<Plan, Error> {
        let mut systems = crate::systems();
        systems.push(Box::new(Integers));
        parse(arguments).unwrap().plan(&mut systems)
    }

    /// The records of each workload of a run.
    fn records(arguments: &str) -> Vec<workload::Records> {
        plan(arguments).unwrap().experiments[0].cases.iter().map(|Case { parameters, .. }| (parameters.key, parameters.value_bytes)).collect()
    }

    /// The one took the other's place, and nobody was told.
    #[test]
    fn instructions_and_other_measures_are_not_asked_for_at_once() {
        assert!(parse("--instructions --measure time").is_err());
        assert_eq!(plan("--instructions").unwrap().experiments[0].cases[0].parameters.measure, Measure::Instructions);
    }

    /// Counts were taken without the latency that stood above them.
    #[test]
    fn what_is_counted_is_not_slowed_down() {
        for measure in ["counts", "space", "instructions", "counts,space"] {
            let slow = plan(&format!("--measure {measure} --write-latency 0,300"));
            assert!(matches!(slow, Err(Error::Usage(message)) if message.contains("--write-latency")), "{measure}");
            assert!(plan(&format!("--measure {measure}")).is_ok());
        }
        assert!(plan("--measure time,counts --write-latency 300").is_ok());
    }

    /// The example of the help failed with the workload that there is by default, whose phases all became that mix, under the names that they had.
    #[test]
    fn a_mix_is_one_phase_on_keys_that_were_loaded() {
        for (options, name) in
            [("", "mix, search=95,update=5"), ("--workload micro", "micro, search=95,update=5"), ("--workload ycsb-a", "ycsb-a, search=95,update=5")]
        {
            let plan = plan(&format!("--mix search=95,update=5 {options}")).unwrap();
            let [Case { workload, parameters }] = &plan.experiments[0].cases[..] else { panic!("{plan:?}") };
            let [phase] = &workload.phases[..] else { panic!("{workload:?}") };
            assert!(workload.name == name && workload.load.is_some() && phase.name == "run" && phase.measured, "{workload:?}");
            assert_eq!((phase.mix.search, phase.mix.update, phase.mix.insert), (95.0, 5.0, 0.0));
            assert_eq!(phase.distribution == crate::plan::Distribution::Zipfian(0.99), options.contains("ycsb"));
            assert!(crate::driver::check(&Case { workload: workload.clone(), parameters: parameters.clone() }).is_ok());
        }
        assert_eq!(plan("").unwrap().experiments[0].cases[0].workload.name, "micro");
        assert!(plan("--workload mix").is_err());
    }

    /// Inserts were called dependent that wait for nothing, and deletes of keys that come again ended the run by wrong answers; an exponent without an end was
    /// a run without one.
    #[test]
    fn what_makes_no_sense_of_options_is_refused() {
        let check = |options: &str| plan(options).unwrap().experiments[0].cases.iter().try_for_each(crate::driver::check);
        for (options, why) in [
            ("--dependent", "phase insert looks up nothing"),
            ("--distribution zipfian", "phase delete only deletes"),
            ("--workload delete --distribution random", "phase delete only deletes"),
            ("--workload search --distribution zipfian:inf", "exponent inf"),
            ("--workload search --distribution latest:11", "exponent 11"),
            ("--workload search --operations 18446744073709551615", "18446744073709551615 operations"),
            ("--workload load --mix delete=1 --operations 1000001", "deletes 1000001 of 1000000 keys"),
        ] {
            assert!(matches!(check(options), Err(Error::Usage(message)) if message.contains(why)), "{options}");
        }
        for options in ["--dependent --workload search,ycsb-f", "--workload delete --distribution sequential", "--workload search --distribution zipfian:0"] {
            assert!(check(options).is_ok(), "{options}");
        }
    }

    /// Files of before huge pages were the rule were measured again on other pages, and nobody was told.
    #[test]
    fn what_older_files_do_not_say_is_told() {
        let plan = |memory| {
            let mut plan = plan("--systems store,isle").unwrap();
            plan.experiments[0].cases[0].parameters.memory = memory;
            plan
        };
        let directory = || std::path::PathBuf::from("/dev/shm");
        assert!(defaults(&plan(Memory::Directory(directory())))[1].contains("pages"));
        let [warning] = &defaults(&plan(Memory::SmallPages(directory())))[..] else { panic!("more than one") };
        assert!(warning.contains("\"store\""), "{warning}");
        let Plan { mut experiments, .. } = plan(Memory::HugePages(directory()));
        experiments[0].systems.remove(0);
        assert!(defaults(&Plan { experiments, ..Plan::default() }).is_empty());
    }

    #[test]
    fn there_is_a_case_for_each_combination() {
        let plan = plan("--keys 10,20 --threads 1,2 --domains adr,page-cache").unwrap();
        let experiment = &plan.experiments[0];
        let cases = experiment.cases.iter().map(|Case { parameters, .. }| (parameters.keys, parameters.threads, &*parameters.domain));
        let all = [10, 20]
            .into_iter()
            .flat_map(|keys| [1, 2].map(|threads| (keys, threads)))
            .flat_map(|(keys, threads)| ["adr", "page-cache"].map(|domain| (keys, threads, domain)));
        assert!(cases.eq(all));
        assert_eq!(experiment.figures[0].horizontal, "keys");
    }

    /// Dense keys could be inserted, but nothing else could be done with them: what was loaded was random.
    #[test]
    fn dense_keys_are_loaded_as_well_as_inserted() {
        for options in ["", "--fill 0.7"] {
            let plan = plan(&format!("--dense --workload micro,search,ycsb-e {options}")).unwrap();
            for Case { workload, .. } in &plan.experiments[0].cases {
                assert!(workload.name.contains("dense keys"), "{}", workload.name);
                assert!(workload.load.iter().all(|load| load.order == Order::Dense), "{workload:?}");
                assert!(workload.phases.iter().all(|phase| phase.order == Order::Dense), "{workload:?}");
            }
        }
        assert_eq!(plan("--workload search").unwrap().experiments[0].cases[0].workload.load.unwrap().order, Order::Random);
    }

    #[test]
    fn workloads_have_the_records_that_they_are_known_by_unless_others_are_asked_for() {
        use workload::{DB_BENCH_RECORDS, INTEGERS, YCSB_RECORDS};
        assert_eq!(records("--systems lb,store --workload ycsb-a,overwrite,micro"), [YCSB_RECORDS, DB_BENCH_RECORDS, INTEGERS]);
        assert_eq!(records("--systems lb,integers --workload ycsb-a,overwrite"), [INTEGERS; 2]);
        assert_eq!(records("--workload ycsb-a --key integer --value-bytes 8"), [INTEGERS]);
        assert_eq!(records("--workload ycsb-a --value-bytes 100"), [(KeyKind::Bytes(23), 100)]);
    }
}
