//! Frames whole and in pieces, right and wrong.

use super::*;
use proptest::prelude::*;

/// What a stream of bytes says: arguments of every frame, and how it ends.
#[derive(Debug, PartialEq, Eq)]
struct Heard {
    frames: Vec<Vec<Vec<u8>>>,
    error: Option<ProtocolError>,
    /// Bytes after the last whole frame.
    rest_size: usize,
}

/// Shows the parser `bytes` in pieces that end at `cuts`.
fn hear(bytes: &[u8], cuts: &[usize], limits: &FrameLimits) -> Heard {
    let mut parser = Parser::new();
    let mut heard = Heard { frames: Vec::new(), error: None, rest_size: 0 };
    let mut buffer: Vec<u8> = Vec::new();
    let mut arrived = 0;
    for end in cuts.iter().copied().chain([bytes.len()]) {
        buffer.extend_from_slice(&bytes[arrived..end.max(arrived)]);
        arrived = arrived.max(end);
        loop {
            match parser.parse(&mut buffer, limits) {
                Ok(Progress::Frame { size }) => {
                    heard.frames.push(parser.spans().iter().map(|span| span.of(&buffer).to_vec()).collect());
                    buffer.drain(..size);
                }
                Ok(Progress::Incomplete { missing }) => {
                    assert!(missing > 0);
                    break;
                }
                Err(error) => {
                    heard.error = Some(error);
                    return heard;
                }
            }
        }
    }
    heard.rest_size = buffer.len();
    heard
}

const LIMITS: FrameLimits = FrameLimits::with_bulk_size_max(512 << 20);

fn whole(bytes: &[u8]) -> Heard {
    hear(bytes, &[], &LIMITS)
}

fn words(bytes: &[u8]) -> Result<Vec<Vec<u8>>, ProtocolError> {
    let heard = whole(bytes);
    heard.error.map_or_else(|| Ok(heard.frames.into_iter().next().unwrap()), Err)
}

#[test]
fn a_pipeline_of_both_kinds() {
    let heard = whole(b"*2\r\n$3\r\nGET\r\n$2\r\nk\n\r\nPING\r\n*0\r\n\r\n*-1\r\n*1\r\n$0\r\n\r\n*1\r\n$4\r\nQU");
    let expected: [&[&[u8]]; 6] = [&[b"GET", b"k\n"], &[b"PING"], &[], &[], &[], &[b""]];
    assert_eq!(heard.frames, expected);
    assert_eq!((heard.error, heard.rest_size), (None, 10));
}

#[test]
fn inline_words() {
    let cases: [(&[u8], &[&[u8]]); 8] = [
        (b"SET k v\n", &[b"SET", b"k", b"v"]),
        (b"  SET\t k  v \r\n", &[b"SET", b"k", b"v"]),
        (b"SET k \"a b\\x41\\n\\\"\"\r\n", &[b"SET", b"k", b"a bA\n\""]),
        (b"SET k 'a\\'b\\n'\r\n", &[b"SET", b"k", b"a'b\\n"]),
        (b"SET k a\"b c\"\r\n", &[b"SET", b"k", b"ab c"]),
        (b"SET k \"\"\r\n", &[b"SET", b"k", b""]),
        (b"SET k \"\\xzz\"\r\n", &[b"SET", b"k", b"xzz"]),
        (b"\r\n", &[]),
    ];
    for (line, expected) in cases {
        assert_eq!(words(line).unwrap(), expected, "{line:?}");
    }
    assert!(whole(b"PING\0 rest\r\n").frames.is_empty());
    for line in [&b"SET k \"a\r\n"[..], b"SET k 'a\r\n", b"SET k \"a\"b\r\n", b"'a'b\r\n", b"\"\\\"\r\n"] {
        assert_eq!(words(line), Err(ProtocolError::UnbalancedQuotes), "{line:?}");
    }
}

#[test]
fn protocol_errors() {
    let cases: [(&[u8], ProtocolError); 9] = [
        (b"*x\r\n", ProtocolError::InvalidCount),
        (b"*\r\n", ProtocolError::InvalidCount),
        (b"*2147483648\r\n", ProtocolError::InvalidCount),
        (b"*99999999999999999999\r\n", ProtocolError::InvalidCount),
        (b"*1\r\n:1\r\n", ProtocolError::ExpectedBulk(b':')),
        (b"*1\r\n$-1\r\n", ProtocolError::InvalidBulkSize),
        (b"*1\r\n$01\r\n", ProtocolError::InvalidBulkSize),
        (b"*1\r\n$536870913\r\n", ProtocolError::InvalidBulkSize),
        (b"*1\r\n$a\r\n", ProtocolError::InvalidBulkSize),
    ];
    for (bytes, error) in cases {
        assert_eq!(words(bytes), Err(error), "{bytes:?}");
    }
    let long = |first: &str| first.bytes().chain(std::iter::repeat_n(b'1', LINE_SIZE_MAX + 1)).collect::<Vec<u8>>();
    assert_eq!(whole(&long("*")).error, Some(ProtocolError::CountLineTooBig));
    assert_eq!(whole(&long("*1\r\n$")).error, Some(ProtocolError::BulkLineTooBig));
    assert_eq!(whole(&long("PING")).error, Some(ProtocolError::InlineTooBig));
}

#[test]
fn before_the_password_little_is_taken() {
    let narrow = |bytes: &[u8]| hear(bytes, &[], &FrameLimits::UNAUTHENTICATED).error;
    assert_eq!(narrow(b"*11\r\n"), Some(ProtocolError::UnauthenticatedCount));
    assert_eq!(narrow(b"*1\r\n$16385\r\n"), Some(ProtocolError::UnauthenticatedBulkSize));
    assert_eq!(narrow(b"*10\r\n$16384\r\n"), None);
}

#[test]
fn a_promise_allocates_nothing() {
    let mut parser = Parser::new();
    let mut bytes = b"*2147483647\r\n$536870912\r\nx".to_vec();
    assert_eq!(parser.parse(&mut bytes, &LIMITS), Ok(Progress::Incomplete { missing: (512 << 20) + 1 }));
    assert_eq!(parser.spans.capacity(), 0);
}

/// Eight bytes for each argument of the longest frame stayed with its connection, however long that was idle.
#[test]
fn room_for_many_arguments_is_given_back() {
    let mut parser = Parser::new();
    let mut bytes = [b"*100000\r\n".to_vec(), b"$0\r\n\r\n".repeat(100_000)].concat();
    assert_eq!(parser.parse(&mut bytes, &LIMITS), Ok(Progress::Frame { size: bytes.len() }));
    assert_eq!(parser.spans().len(), 100_000);
    assert_eq!(parser.parse(&mut [], &LIMITS), Ok(Progress::Incomplete { missing: 1 }));
    assert!(parser.spans.capacity() <= SPAN_COUNT_KEPT);
}

#[test]
fn integers() {
    for (text, value) in [("0", 0), ("-1", -1), ("10", 10), ("9223372036854775807", i64::MAX), ("-9223372036854775808", i64::MIN)] {
        assert_eq!(parse_integer(text.as_bytes()), Some(value));
    }
    for text in ["", "-", "+1", "01", "-0", " 1", "1 ", "1a", "9223372036854775808", "-9223372036854775809", "99999999999999999999"] {
        assert_eq!(parse_integer(text.as_bytes()), None, "{text:?}");
    }
}

/// Frames, broken frames and noise, one after the other.
fn streams() -> impl Strategy<Value = Vec<u8>> {
    let argument = proptest::collection::vec(any::<u8>(), 0..20);
    let frame = proptest::collection::vec(argument, 0..5).prop_map(|arguments| {
        let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            bytes.extend(format!("${}\r\n", argument.len()).bytes());
            bytes.extend(argument);
            bytes.extend(b"\r\n");
        }
        bytes
    });
    let noise = proptest::collection::vec(proptest::sample::select(b"*$-0123456789\r\n \"'\\xabPING\0:".to_vec()), 0..30);
    let inline = "[a-z]{1,8}( [a-z\"'\\\\]{0,6}){0,3}\r?\n".prop_map(String::into_bytes);
    proptest::collection::vec(prop_oneof![6 => frame, 1 => noise, 2 => inline], 0..6).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn cuts_change_nothing(bytes in streams(), cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..12)) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let single: Vec<usize> = (0..bytes.len()).collect();
        let expected = whole(&bytes);
        prop_assert_eq!(&hear(&bytes, &cuts, &LIMITS), &expected);
        prop_assert_eq!(&hear(&bytes, &single, &LIMITS), &expected);
    }
}
