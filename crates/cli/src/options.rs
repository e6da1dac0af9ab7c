//! Options that several commands share.

use crate::failure::Failure;
use crate::interrupt;
use crate::output::tell;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use everleaf::{Namespace, Options, Store};
use everleaf_pmem::{Domain, Hardware};
use std::path::PathBuf;
use std::str::FromStr;

/// The pool, for commands that only read it.
#[derive(Args, Clone, Debug)]
pub(crate) struct FileArguments {
    /// The pool file
    #[arg(long, default_value = "everleaf.pool", value_name = "PATH")]
    pub(crate) pool: PathBuf,
    /// Open the pool even if a machine failure may have torn it or its journal is missing, to save what can be saved
    #[arg(long)]
    pub(crate) accept_dirty_shutdown: bool,
}

/// The pool, and how to open it.
#[derive(Args, Clone, Debug)]
pub(crate) struct PoolArguments {
    #[command(flatten)]
    pub(crate) file: FileArguments,
    /// Size to which the pool may grow while it is open this time; the file is as large as its content needs
    #[arg(long, default_value = "1T", value_name = "BYTES")]
    pub(crate) size_max: ByteSize,
    /// Persistence domain, if not the detected one: adr, eadr, page-cache or msync; the pool remembers the last one until another is requested
    #[arg(long, value_name = "NAME", value_parser = domains(), hide_possible_values = true)]
    pub(crate) domain: Option<Domain>,
    /// Minimum size of the pool, with memory behind all of it, so that no write waits for growth or first access to a page; opening takes longer
    #[arg(long, default_value = "0", value_name = "BYTES")]
    pub(crate) prefault: ByteSize,
}

/// A domain by its name; completions offer all of them.
fn domains() -> impl TypedValueParser<Value = Domain> {
    PossibleValuesParser::new(Domain::ALL.map(Domain::name)).try_map(|name| name.parse::<Domain>())
}

/// The index of namespaces that a command creates.
#[derive(Args, Clone, Debug)]
pub(crate) struct IndexArgument {
    /// Index of new namespaces; `everleaf lab list` lists them
    #[arg(
        long,
        default_value_t = Options::default().index,
        value_name = "NAME",
        value_parser = PossibleValuesParser::new(persistent_indexes()),
        hide_possible_values = true
    )]
    pub(crate) index: String,
}

/// The namespace if none is named.
pub(crate) const DEFAULT_NAMESPACE: &str = "0";

/// A namespace.
#[derive(Args, Clone, Debug)]
pub(crate) struct NamespaceArgument {
    /// Namespace; those of the server are "0", "1" and so on, as in SELECT
    #[arg(long, short, default_value = DEFAULT_NAMESPACE, value_name = "NAME", value_parser = namespace_name)]
    pub(crate) namespace: String,
}

/// A valid namespace name: checked before a pool is created for an invalid one.
pub(crate) fn namespace_name(name: &str) -> Result<String, everleaf::Error> {
    everleaf::check_namespace_name(name).map(|()| name.to_owned())
}

impl NamespaceArgument {
    /// The namespace in a store, for commands that create none: it must exist if it was named. The default one may be without keys.
    pub(crate) fn of(&self, store: &Store) -> Result<Namespace, Failure> {
        if self.namespace != DEFAULT_NAMESPACE {
            expect_namespace(store, &self.namespace)?;
        }
        Ok(store.namespace(&self.namespace)?)
    }
}

impl FileArguments {
    /// Opens the store, which must exist, to read it for `work`.
    pub(crate) fn with_store<T>(&self, work: impl FnOnce(&Store) -> Result<T, Failure>) -> Result<T, Failure> {
        let options = Options { accept_dirty_shutdown: self.accept_dirty_shutdown, ..Options::default() };
        use_and_close(warned(Store::open_read_only(&self.pool, options)?), work)
    }
}

impl PoolArguments {
    /// Opens the store, which must exist, for `work`, and closes it whatever the result: a store left open must be recovered.
    pub(crate) fn with_store<T>(&self, work: impl FnOnce(&Store) -> Result<T, Failure>) -> Result<T, Failure> {
        use_and_close(warned(Store::open_existing(&self.file.pool, self.store_options())?), work)
    }

    /// The same with a store that is created if it does not exist.
    pub(crate) fn with_store_or_new<T>(&self, index: &IndexArgument, work: impl FnOnce(&Store) -> Result<T, Failure>) -> Result<T, Failure> {
        use_and_close(self.open_or_create(index)?, work)
    }

    /// Opens or creates the store.
    pub(crate) fn open_or_create(&self, index: &IndexArgument) -> Result<Store, Failure> {
        Ok(warned(Store::open(&self.file.pool, Options { index: index.index.clone(), ..self.store_options() })?))
    }

    /// Options to open or create the store.
    pub(crate) fn store_options(&self) -> Options {
        let Self { size_max, domain, prefault, file: FileArguments { accept_dirty_shutdown, .. } } = *self;
        Options { size_max: size_max.0, domain, accept_dirty_shutdown, prefault: prefault.0, ..Options::default() }
    }
}

/// Refuses a name that no namespace has: it would look like a namespace without keys.
pub(crate) fn expect_namespace(store: &Store, name: &str) -> Result<(), Failure> {
    let known = store.namespaces();
    match known.iter().any(|known| known == name) {
        true => Ok(()),
        false => Err(Failure::Usage(format!("there is no namespace {name:?}; there are: {}", known.join(", ")))),
    }
}

/// Tells of whatever should have prevented the store from being opened, and was accepted.
fn warned(store: Store) -> Store {
    store.pool().flaws().iter().for_each(|flaw| tell(format_args!("warning: {flaw}")));
    store
}

/// Of two failures that of `work` is reported, unless it is not about the pool: a negative result, a reader that has left, or a signal, whose report says that
/// the pool is closed.
fn use_and_close<T>(store: Store, work: impl FnOnce(&Store) -> Result<T, Failure>) -> Result<T, Failure> {
    let outcome = interrupt::hold().and_then(|()| work(&store));
    let closed = store.close().map_err(|error| Failure::Store(error.into()));
    match (outcome, closed) {
        (Ok(_) | Err(Failure::No | Failure::Interrupted | Failure::Output(_)), Err(error)) => Err(error),
        (outcome, _) => outcome,
    }
}

/// Names of the indexes that outlive the process.
fn persistent_indexes() -> Vec<&'static str> {
    everleaf_index::registry::<[u8], Hardware>().iter().filter(|entry| entry.persistent).map(|entry| entry.name).collect()
}

/// A number of bytes, written with or without a unit: 4096, 64K, 64M, 2G, 1T, 1GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) usize);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(end);
        let shift = match unit.trim().to_ascii_lowercase().trim_end_matches('b').trim_end_matches('i') {
            "" => 0,
            "k" => 10,
            "m" => 20,
            "g" => 30,
            "t" => 40,
            _ => return Err(format!("no unit of bytes is called {unit:?}; choose one of K, M, G, T (powers of 1024), or none")),
        };
        let number: usize = digits.parse().map_err(|_| format!("{text:?} is not a number of bytes; write for example 64M or 2G"))?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(|| format!("{text:?} is more than this machine can address"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("64K", 64 << 10), ("64m", 64 << 20), ("2G", 2 << 30), ("1GiB", 1 << 30), ("3 MB", 3 << 20), ("1T", 1 << 40)]
        {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "G", "-1", "1.5G", "1X", "99999999999999999999", "99999999T"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }
}
