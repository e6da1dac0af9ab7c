//! The source of the examined code, if available: the text at a place, and its comments.

use everleaf_pmem::Site;
use std::collections::HashMap;
use std::panic::Location;
use std::path::{Path, PathBuf};

/// Files of the repository, each read once.
pub(crate) struct Source {
    root: PathBuf,
    files: HashMap<String, Vec<String>>,
}

/// Most lines that a call may take.
const CALL_LINES_MAX: usize = 6;

impl Source {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), files: HashMap::new() }
    }

    /// The source from which this program was built.
    pub(crate) fn of_this_build() -> Self {
        Self::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
    }

    /// Checks that the source is there.
    ///
    /// # Errors
    /// If it is not there; the error says where it was looked for, and what to do.
    pub(crate) fn expect(&self) -> Result<(), String> {
        match self.root.join("crates").is_dir() {
            true => Ok(()),
            false => Err(format!("this reads Everleaf's source, which was in {} when it was built: build it where the source is", self.root.display())),
        }
    }

    /// The line at `place`.
    pub(crate) fn line(&mut self, place: &'static Location<'static>) -> Option<&str> {
        self.lines(place.file()).get(place.line() as usize - 1).map(String::as_str)
    }

    /// The lines of a file; empty if the file is not there.
    pub(super) fn lines(&mut self, file: &str) -> &[String] {
        self.files.entry(file.to_owned()).or_insert_with(|| {
            let text = std::fs::read_to_string(self.root.join(file)).unwrap_or_default();
            text.lines().map(str::to_owned).collect()
        })
    }

    /// Whether the file's path ends so, and the line has this text with the site at the `|`.
    pub(super) fn stands_at(&mut self, site: &Site, file: &str, text: &str) -> bool {
        let (place, (before, after)) = (site.place, text.split_once('|').unwrap_or(("", text)));
        let Some(line) = self.line(place) else { return false };
        // Columns count characters, and the code has only ASCII before its calls.
        let Some((left, right)) = line.split_at_checked(place.column() as usize - 1) else { return false };
        place.file().ends_with(file) && left.ends_with(before) && right.starts_with(after)
    }

    /// The line number of `code`, the first after the line of `function`.
    pub(super) fn line_of(&mut self, file: &'static str, function: &str, code: &str) -> Option<u32> {
        let lines = self.lines(file).iter().enumerate().skip_while(|(_, line)| !line.contains(function));
        lines.into_iter().find(|(_, line)| line.contains(code)).map(|(at, _)| at as u32 + 1)
    }

    /// The reason that the comment above or behind a line gives why `which` changes nothing there: `// mark: why` or `// mark(which, which): why`.
    pub(crate) fn why(&mut self, file: &str, line: u32, mark: &str, which: &str) -> Option<String> {
        let lines = self.lines(file);
        let at = line as usize - 1;
        let comment = |line: &String| line.trim_start().starts_with("//");
        let above = lines.get(..at)?.iter().rev().take_while(|line| comment(line)).count();
        // A comment of several lines is read as one. The line itself contributes the text behind its code.
        let said = |line: &String| line.split_once("//").map_or(String::new(), |(_, said)| said.trim().to_owned());
        let text = lines.get(at - above..=at)?.iter().map(said).collect::<Vec<_>>().join(" ");
        text.split(mark).skip(1).find_map(|said| {
            let (named, why) = match said.strip_prefix('(') {
                Some(rest) => rest.split_once("):")?,
                None => ("", said.strip_prefix(':')?),
            };
            (named.is_empty() || named.split(',').any(|name| name.trim() == which)).then(|| why.trim().to_owned())
        })
    }

    /// The statement at `place`, on one line: it names what is stored to.
    pub(super) fn statement(&mut self, place: &'static Location<'static>) -> Option<String> {
        let lines = self.lines(place.file());
        let at = place.line() as usize - 1;
        // A line that begins with a dot continues the line above.
        let above = lines.get(..at)?.iter().rev().zip(lines.get(at)?.trim_start().starts_with('.').then_some(()));
        let mut text: String = above.map(|(line, ())| line.trim()).collect();
        for line in lines.get(at..)?.iter().take(CALL_LINES_MAX) {
            let line = line.split_once(" // ").map_or(&**line, |(code, _)| code).trim();
            if !text.is_empty() && !line.starts_with(['.', ')']) && !text.ends_with('(') {
                text.push(' ');
            }
            text += line;
            if text.matches('(').count() <= text.matches(')').count() {
                break;
            }
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn here(_what: u32) -> &'static Location<'static> {
        Location::caller()
    }

    #[test]
    #[rustfmt::skip]
    fn a_statement_is_read_as_a_whole() {
        let mut source = Source::of_this_build();
        let place = here(1); // a comment
        assert_eq!(source.statement(place).as_deref(), Some("let place = here(1);"));
        let place = here(
            1 + 1,
        );
        assert_eq!(source.statement(place).as_deref(), Some("let place = here(1 + 1,);"));
        assert_eq!(Source::new(Path::new("nowhere")).statement(place), None);
    }
}
