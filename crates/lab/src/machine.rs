//! The machine, as far as it tells.

use crate::result::Machine;
use everleaf_pmem::{Domain, Hardware, htm};
use std::collections::BTreeMap;
use std::path::Path;

impl Machine {
    /// This machine. What its memory costs is added by whoever measures it.
    pub fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.split_once(':').map(|(_, value)| value.trim().to_owned()));
        let memory = field(&read("/proc/meminfo"), "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok()).unwrap_or(0);
        let kernel = [read("/proc/sys/kernel/ostype"), read("/proc/sys/kernel/osrelease")].map(|text| text.trim().to_owned()).join(" ");
        let choice = |path: &str| read(path).split(['[', ']']).nth(1).unwrap_or("unknown").to_owned();
        let huge = "/sys/kernel/mm/transparent_hugepage/";
        Self {
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.into()),
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
            caches: caches(Path::new("/sys/devices/system/cpu/cpu0/cache")),
            memory_bytes: memory * 1024,
            kernel,
            page_bytes: rustix::param::page_size() as u64,
            huge_pages: format!("anonymous memory: {}; shared memory: {}", choice(&format!("{huge}enabled")), choice(&format!("{huge}shmem_enabled"))),
            has_transactions: htm::is_available(),
            flush_instruction: Hardware::new(Domain::Adr).flush_instruction().into(),
            raw_ns: BTreeMap::new(),
        }
    }

    /// In a few words.
    pub fn summary(&self) -> String {
        format!("{}, {} cores", self.processor, self.cores)
    }
}

/// Sizes of the caches of a processor: `L1 data`, `L2`.
fn caches(directory: &Path) -> BTreeMap<String, u64> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let read = |name: &str| Some(std::fs::read_to_string(entry.path().join(name)).ok()?.trim().to_lowercase());
            let (level, kind, size) = (read("level")?, read("type")?, read("size")?);
            let (digits, unit) = size.split_at(size.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(size.len()));
            let factor = match unit {
                "k" => 1 << 10,
                "m" => 1 << 20,
                _ => 1,
            };
            let name = if kind == "unified" { format!("L{level}") } else { format!("L{level} {kind}") };
            Some((name, digits.parse::<u64>().ok()? * factor))
        })
        .collect()
}

/// Name of the file system that holds `path`: that of the longest mount point above it.
pub fn file_system(path: &Path) -> String {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let above = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (point, kind) = (words.next()?, words.next()?);
        path.starts_with(point).then_some((point.len(), kind))
    });
    above.max_by_key(|(length, _)| *length).map_or_else(|| "an unknown file system".into(), |(_, kind)| kind.to_owned())
}

/// Whether a program of that name is on the PATH.
pub fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

/// Private memory of this process in bytes: not files, not shared memory.
pub(crate) fn private_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().split(' ').next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_tells_of_itself() {
        let machine = Machine::this();
        assert!(machine.cores > 0 && machine.memory_bytes > 1 << 20 && machine.page_bytes >= 4096, "{machine:?}");
        assert!(!machine.processor.is_empty() && machine.kernel.starts_with("Linux "), "{machine:?}");
        assert!(private_bytes().is_some_and(|bytes| bytes > 0));
    }
}
