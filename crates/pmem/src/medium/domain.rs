//! The persistence domain: the point from which a store survives, and how the domain of the machine is determined.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The point from which a store survives, and what it survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Domain {
    /// Memory controllers are in the domain, caches are not: persistent memory on a DAX mapping. Lines are written back and fenced.
    Adr,
    /// Caches are in the domain, too (eADR, or CXL with a global persistent flush). Only a fence is needed; large blocks are written back to spare the caches.
    Eadr,
    /// The operating system's page cache: a tmpfs or an ordinary file. Nothing to flush.
    PageCache,
    /// The device behind an ordinary file, reached by a journal at every fence.
    Msync,
}

impl Domain {
    /// Every domain.
    pub const ALL: [Self; 4] = [Self::Adr, Self::Eadr, Self::PageCache, Self::Msync];

    /// The name used in options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Adr => "adr",
            Self::Eadr => "eadr",
            Self::PageCache => "page-cache",
            Self::Msync => "msync",
        }
    }

    /// What acknowledged writes survive, as a phrase after "survives".
    pub fn survives(self) -> &'static str {
        match self {
            Self::Adr => "power failure (persistent memory, caches written back)",
            Self::Eadr => "power failure (persistent memory, caches in the power-fail domain)",
            Self::PageCache => "kill -9 and restart of the process, but not of the machine",
            Self::Msync => "power failure, at the price of a wait for the device per fence",
        }
    }

    /// Whether acknowledged writes survive the machine.
    pub fn survives_power_failure(self) -> bool {
        self != Self::PageCache
    }

    /// Whether a fence waits for a device, a hundred microseconds or more, and not just for memory: then many writes should share one.
    pub fn awaits_device(self) -> bool {
        self == Self::Msync
    }

    /// The number kept in the superblock; 0 stands for none.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Adr => 1,
            Self::Eadr => 2,
            Self::PageCache => 3,
            Self::Msync => 4,
        }
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Domain {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|domain| domain.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|domain| domain.name()).collect();
            format!("no persistence domain is called {name:?}; choose one of {}", names.join(", "))
        })
    }
}

/// The part of sysfs that describes persistent memory. The root is a parameter so that tests can lay one out.
pub(crate) struct Sysfs<'a> {
    pub(crate) root: &'a Path,
}

impl Sysfs<'_> {
    pub(crate) fn of_this_machine() -> Self {
        Self { root: Path::new("/sys") }
    }

    /// The domain of a file on `device` that was mapped with `MAP_SYNC`.
    ///
    /// Unless every region that may lie under the file declares that caches are in the domain, they are assumed not to be: flushing too much is only slow.
    pub(crate) fn domain(&self, device: u64) -> Domain {
        let regions = self.regions(device);
        let in_cache = |region: &PathBuf| read(&region.join("persistence_domain")).is_some_and(|domain| domain == "cpu_cache");
        if !regions.is_empty() && regions.iter().all(in_cache) { Domain::Eadr } else { Domain::Adr }
    }

    /// How often the modules under `device` have failed to save what was in flight at a power failure; `None` where the platform does not count.
    pub(crate) fn dirty_shutdowns(&self, device: u64) -> Option<u64> {
        let mut modules = Vec::new();
        for region in self.regions(device) {
            for number in 0.. {
                // "nmem0,0,17179869184,0": module, start, size, position.
                let Some(mapping) = read(&region.join(format!("mapping{number}"))) else { break };
                modules.push(mapping.split(',').next().unwrap_or_default().to_owned());
            }
        }
        modules.sort();
        modules.dedup();
        let count = |module: &String| {
            let module = self.root.join("bus/nd/devices").join(module);
            ["nfit/dirty_shutdown", "papr/dirty_shutdown", "cxl/dirty_shutdown", "dirty_shutdown"]
                .iter()
                .find_map(|file| read(&module.join(file))?.parse::<u64>().ok())
        };
        modules.iter().filter_map(count).reduce(u64::wrapping_add)
    }

    /// The regions of persistent memory under a block device: the one among its ancestors, or, for a device composed of others, all that exist.
    fn regions(&self, device: u64) -> Vec<PathBuf> {
        let link = self.root.join(format!("dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device)));
        let own = std::fs::canonicalize(link).ok();
        if let Some(region) = own.iter().flat_map(|path| path.ancestors()).find(|path| path.join("persistence_domain").exists()) {
            return vec![region.to_owned()];
        }
        let Ok(devices) = std::fs::read_dir(self.root.join("bus/nd/devices")) else { return Vec::new() };
        let is_region = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("region"));
        devices.filter_map(|entry| Some(entry.ok()?.path())).filter(is_region).collect()
    }
}

/// A number that changes when the machine restarts; 0 if it is unknown.
pub(crate) fn boot_id() -> u64 {
    let id = read(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default().replace('-', "");
    u128::from_str_radix(&id, 16).map_or(0, |id| (id >> 64) as u64 ^ id as u64)
}

fn read(path: &Path) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::fs;

    /// Lays out a sysfs with two modules under region 0, which holds block device 259:0.
    fn sysfs(domain: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let region = root.join("devices/ndbus0/region0");
        let block = region.join("namespace0.0/block/pmem0");
        for path in [&block, &root.join("dev/block"), &root.join("bus/nd/devices/nmem0/nfit"), &root.join("bus/nd/devices/nmem1/cxl")] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(region.join("persistence_domain"), format!("{domain}\n")).unwrap();
        fs::write(region.join("mapping0"), "nmem0,0,4096,0\n").unwrap();
        fs::write(region.join("mapping1"), "nmem1,0,4096,1\n").unwrap();
        fs::write(root.join("bus/nd/devices/nmem0/nfit/dirty_shutdown"), "3\n").unwrap();
        fs::write(root.join("bus/nd/devices/nmem1/cxl/dirty_shutdown"), "4\n").unwrap();
        std::os::unix::fs::symlink(&region, root.join("bus/nd/devices/region0")).unwrap();
        std::os::unix::fs::symlink(&block, root.join("dev/block/259:0")).unwrap();
        dir
    }

    #[test]
    fn the_region_under_the_device_decides() {
        for (text, domain) in [("cpu_cache", Domain::Eadr), ("memory_controller", Domain::Adr), ("", Domain::Adr)] {
            let dir = sysfs(text);
            let sysfs = Sysfs { root: dir.path() };
            assert_eq!(sysfs.domain(rustix::fs::makedev(259, 0)), domain);
            // For a device composed of others, such as a striped one, all regions are asked.
            assert_eq!(sysfs.domain(rustix::fs::makedev(253, 7)), domain);
        }
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(Sysfs { root: nothing.path() }.domain(0), Domain::Adr);
    }

    #[test]
    fn dirty_shutdowns_are_summed_over_the_modules() {
        let dir = sysfs("memory_controller");
        assert_eq!(Sysfs { root: dir.path() }.dirty_shutdowns(rustix::fs::makedev(259, 0)), Some(7));
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(Sysfs { root: nothing.path() }.dirty_shutdowns(rustix::fs::makedev(259, 0)), None);
    }

    #[test]
    fn a_domain_is_found_by_its_name() {
        for domain in Domain::ALL {
            assert_eq!(domain.name().parse(), Ok(domain));
        }
        assert!("nvram".parse::<Domain>().unwrap_err().contains("page-cache"));
    }
}
