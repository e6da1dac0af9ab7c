//! Lines of input, and what is wrong with them.

use super::line_starts::LineStarts;
use crate::entry::{self, Entry};
use crate::failure::Failure;
use crate::text;
use csv::{ByteRecord, ReaderBuilder, Terminator};
use everleaf::{KEY_SIZE_MAX, VALUE_SIZE_MAX};
use std::io::{self, BufRead, Read};
use std::path::Path;

/// Longest line of NDJSON in bytes: a value of the largest size, with every byte escaped as `\u0000`.
const LINE_SIZE_MAX: u64 = 6 * (VALUE_SIZE_MAX + KEY_SIZE_MAX) as u64 + 1024;

/// The source of keys and values.
pub(super) enum Input<R> {
    /// TSV or CSV.
    Separated {
        reader: Box<csv::Reader<LineStarts<R>>>,
        record: ByteRecord,
        /// Column of the keys, from 0.
        key: usize,
        /// Column of the values, from 0.
        value: usize,
        /// Number of fields of every line: that of the first line.
        width: Option<usize>,
    },
    /// A JSON object on each line.
    Ndjson { reader: R, line: Vec<u8>, number: u64 },
}

/// The number of a line from 1, and its content, or what is wrong with it.
pub(super) type Numbered<T> = (u64, Result<T, String>);

/// The columns to take from separated fields.
pub(super) struct Columns<'a> {
    /// Whether the first line names the columns.
    pub(super) header: bool,
    /// Number from 1, or name, of the key column.
    pub(super) key: &'a str,
    /// The same for the value column.
    pub(super) value: &'a str,
}

/// Checks what the store would refuse, so that this makes a bad line and does not end the load.
pub(super) fn check(line: Entry) -> Result<Entry, String> {
    if line.key.len() > KEY_SIZE_MAX {
        return Err(format!("a key of {} bytes, at most {KEY_SIZE_MAX} are possible", line.key.len()));
    }
    if line.value.len() > VALUE_SIZE_MAX {
        return Err(format!("a value of {} bytes, at most {VALUE_SIZE_MAX} are possible", line.value.len()));
    }
    Ok(line)
}

impl<R: BufRead> Input<R> {
    /// Fields separated by `delimiter`.
    pub(super) fn separated(source: R, delimiter: u8, quoting: bool, columns: Columns<'_>) -> Result<Self, Failure> {
        // Flexible: this module reports lines with another number of fields.
        let source = LineStarts::new(source, quoting.then_some(delimiter));
        let mut builder = ReaderBuilder::new();
        builder.delimiter(delimiter).terminator(Terminator::Any(b'\n')).quoting(quoting).has_headers(columns.header).flexible(true);
        let mut reader = builder.from_reader(source);
        let names = match columns.header {
            true => Some(reader.byte_headers().map_err(|error| Failure::Usage(format!("the header: {error}")))?.clone()),
            false => None,
        };
        if names.is_some() && is_open(&reader) {
            return Err(Failure::Usage(format!("the header: {OPEN}")));
        }
        let (key, value) = (find_column(columns.key, names.as_ref())?, find_column(columns.value, names.as_ref())?);
        Ok(Self::Separated { reader: Box::new(reader), record: ByteRecord::new(), key, value, width: names.map(|names| names.len()) })
    }

    /// A JSON object on each line.
    pub(super) fn ndjson(reader: R) -> Self {
        Self::Ndjson { reader, line: Vec::new(), number: 0 }
    }

    /// The next line; `None` at the end. Empty lines are skipped.
    ///
    /// # Errors
    /// `path` cannot be read on. An error of a line is part of the result.
    pub(super) fn next(&mut self, path: &Path) -> Result<Option<Numbered<Entry>>, Failure> {
        match self {
            Self::Separated { reader, record, key, value, width } => {
                let more = reader.read_byte_record(record).map_err(|error| Failure::io("read", path, error.into()))?;
                let number = record.position().map_or(0, |position| reader.get_mut().line_from(position.byte()));
                Ok(match more {
                    false => None,
                    true if is_open(reader) => Some((number, Err(OPEN.to_owned()))),
                    true => Some((number, fields(record, *key, *value, width))),
                })
            }
            Self::Ndjson { reader, line, number } => loop {
                line.clear();
                let size = reader.take(LINE_SIZE_MAX).read_until(b'\n', line).map_err(|source| Failure::io("read", path, source))?;
                if size == 0 {
                    return Ok(None);
                }
                *number += 1;
                if size as u64 == LINE_SIZE_MAX && line.last() != Some(&b'\n') {
                    skip_line(reader).map_err(|source| Failure::io("read", path, source))?;
                    return Ok(Some((*number, Err(format!("longer than {LINE_SIZE_MAX} bytes")))));
                }
                if !line.trim_ascii().is_empty() {
                    return Ok(Some((*number, object(line))));
                }
            },
        }
    }
}

/// The error for a record with an unclosed quote, which extends to the end of the input: that was not meant as one value.
const OPEN: &str = "a quote that is not closed; what follows it is left out";

/// Whether the record read last is such a record.
fn is_open<R: Read>(reader: &csv::Reader<LineStarts<R>>) -> bool {
    reader.get_ref().is_open_at(reader.position().byte())
}

/// The column called `name`, from 0.
fn find_column(name: &str, names: Option<&ByteRecord>) -> Result<usize, Failure> {
    if let Some(column) = names.and_then(|names| names.iter().position(|field| field == name.as_bytes())) {
        return Ok(column);
    }
    let number = name.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    number.ok_or_else(|| match names {
        Some(names) => Failure::Usage(format!("no column is called {name:?}; there are: {}", names.iter().map(text::escape).collect::<Vec<_>>().join(", "))),
        None => Failure::Usage(format!("{name:?} is not the number of a column, from 1; for a name, the file needs a header, and --header")),
    })
}

/// Takes key and value out of a record.
fn fields(record: &ByteRecord, key: usize, value: usize, width: &mut Option<usize>) -> Result<Entry, String> {
    let expected = *width.get_or_insert_with(|| record.len().max(key.max(value) + 1));
    if record.len() != expected {
        return Err(format!("{} fields, {expected} expected", record.len()));
    }
    match (record.get(key), record.get(value)) {
        (Some(key), Some(value)) => Ok(Entry { namespace: None, key: key.to_vec(), value: value.to_vec(), expiry_ms: None }),
        _ => Err(format!("{} fields, the key is in field {}, the value in field {}", record.len(), key + 1, value + 1)),
    }
}

/// Takes the entry out of a JSON object.
fn object(line: &[u8]) -> Result<Entry, String> {
    entry::parse(serde_json::from_slice(line).map_err(|error| format!("no JSON object: {error}"))?)
}

/// Skips the rest of a line.
fn skip_line(reader: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = reader.fill_buf()?;
        let (size, ended) = match buffer.iter().position(|&byte| byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        reader.consume(size);
        if ended {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(mut input: Input<impl BufRead>) -> Vec<Numbered<(String, String)>> {
        std::iter::from_fn(|| input.next(Path::new("-")).unwrap())
            .map(|(number, line)| (number, line.map(|line| (String::from_utf8(line.key).unwrap(), String::from_utf8(line.value).unwrap()))))
            .collect()
    }

    fn good(number: u64, key: &str, value: &str) -> Numbered<(String, String)> {
        (number, Ok((key.into(), value.into())))
    }

    #[test]
    fn tsv_quotes_nothing_and_bad_lines_carry_their_numbers() {
        let columns = Columns { header: false, key: "1", value: "2" };
        let lines = read_all(Input::separated(&b"a\t\"x\nb\n\nc\ty\tz\nd\t\n"[..], b'\t', false, columns).unwrap());
        assert_eq!(lines, [good(1, "a", "\"x"), (2, Err("1 fields, 2 expected".into())), (4, Err("3 fields, 2 expected".into())), good(5, "d", "")]);
    }

    #[test]
    fn lines_are_counted_whatever_ends_them() {
        for text in [&b"a,1\r\n\r\nb\r\n\r\n\"c\r\n\",3\r\n\r\nd"[..], b"a,1\n\nb\n\n\"c\r\n\",3\n\nd\n\n"] {
            let columns = Columns { header: false, key: "1", value: "2" };
            let lines = read_all(Input::separated(text, b',', true, columns).unwrap());
            assert_eq!(lines[0], good(1, "a", "1"));
            assert!(matches!(lines[1], (3, Err(_))), "{lines:?}");
            assert_eq!(lines[2], good(5, "c\r\n", "3"));
            assert!(matches!(lines[3], (8, Err(_))), "{lines:?}");
            assert_eq!(lines.len(), 4);
        }
    }

    /// Each ended a line: values were cut there, and what followed was loaded as if it were a line.
    #[test]
    fn a_carriage_return_alone_is_a_byte_like_others() {
        let text = b"\ra\tx\ry\r\nb\t\r\r\n\r\nc\n\rd\t1\r";
        let expected = [good(1, "\ra", "x\ry"), good(2, "b", "\r"), (4, Err("1 fields, 2 expected".into())), good(5, "\rd", "1\r")];
        for capacity in 2..20 {
            let columns = Columns { header: false, key: "1", value: "2" };
            let input = Input::separated(std::io::BufReader::with_capacity(capacity, &text[..]), b'\t', false, columns).unwrap();
            assert_eq!(read_all(input), expected, "{capacity}");
        }
        let columns = Columns { header: false, key: "1", value: "2" };
        let lines = read_all(Input::separated(&b"\"a\r\",\"x\ry\r\"\r\nb,\"\r\n\"\n"[..], b',', true, columns).unwrap());
        assert_eq!(lines, [good(1, "a\r", "x\ry\r"), good(2, "b", "\r\n")]);
    }

    /// Everything after the quote was one value, and loading half of a file was a success.
    #[test]
    fn a_quote_that_is_not_closed_makes_a_bad_line() {
        let read = |text: &[u8]| {
            let columns = Columns { header: false, key: "1", value: "2" };
            // In small pieces, so that some records are read before the end is.
            let source = std::io::BufReader::with_capacity(7, text);
            let mut input = Input::separated(source, b',', true, columns).unwrap();
            let lines = std::iter::from_fn(|| input.next(Path::new("-")).unwrap());
            lines.map(|(number, line)| (number, line.map(|line| line.value))).collect::<Vec<_>>()
        };
        let open = Err(OPEN.to_owned());
        for (text, number) in
            [(&b"a,1\nb,\"2\nc,3\nd,4\n"[..], 2), (b"a,1\n\n\"b\"\",2", 3), (b"a,1\nb,x\"y\nc,\"\"\"", 3), (b"a,1\nb,\"", 2), (b"\xef\xbb\xbf\"a", 1)]
        {
            let lines = read(text);
            assert_eq!(lines.last(), Some(&(number, open.clone())), "{text:?}");
            assert!(lines[..lines.len() - 1].iter().all(|(_, line)| line.is_ok()));
        }
        for text in [&b"a,1\nb,\"2\nc\""[..], b"a,\"1\"\"\"\n", b"a,1\"", b"a,\"1\"x\"", b"a,\"1\"x\"\n\n"] {
            assert!(read(text).iter().all(|(_, line)| line.is_ok()), "{text:?}");
        }
        let columns = Columns { header: true, key: "1", value: "2" };
        assert!(matches!(Input::separated(&b"k,\"v\na,1\n"[..], b',', true, columns), Err(Failure::Usage(_))));
    }

    #[test]
    fn csv_takes_columns_by_name() {
        let columns = Columns { header: true, key: "name", value: "born" };
        let lines = read_all(Input::separated(&b"born,name,died\n1815,\"Lovelace, Ada\",1852\n1906,Hopper\n"[..], b',', true, columns).unwrap());
        assert_eq!(lines, [good(2, "Lovelace, Ada", "1815"), (3, Err("2 fields, 3 expected".into()))]);
        let columns = Columns { header: true, key: "age", value: "born" };
        assert!(matches!(Input::separated(&b"born,name\n"[..], b',', true, columns), Err(Failure::Usage(message)) if message.contains("born, name")));
    }

    #[test]
    fn ndjson_says_what_is_wrong() {
        let text = b"{\"key\":\"a\",\"value\":\"1\"}\n\n[1]\n{\"key\":\"a\"}\n{\"key\":7,\"value\":\"\"}\n{\"key_base64\":\"YQ==\",\"value\":\"2\"}";
        let lines = read_all(Input::ndjson(&text[..]));
        assert_eq!(lines[0], good(1, "a", "1"));
        assert!(matches!(&lines[1], (3, Err(what)) if what.contains("no JSON object")));
        assert_eq!(lines[2], (4, Err("no field \"value\"".into())));
        assert_eq!(lines[3], (5, Err("field \"key\" is not a string but 7".into())));
        assert_eq!(lines[4], good(6, "a", "2"));
    }
}
