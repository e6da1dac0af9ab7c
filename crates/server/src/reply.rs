//! Replies: RESP2 and RESP3, written into one output buffer.

/// The protocol version in which a client wants its replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// The one that every client knows; maps are arrays, doubles are strings.
    #[default]
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

impl Protocol {
    /// Its number in HELLO.
    pub(crate) fn version(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// Largest number of digits of the size in a bulk string's header: `u32::MAX` has ten.
const SIZE_DIGITS_MAX: usize = 10;

/// The unsent replies of a connection, and the state for writing the next one.
#[derive(Default)]
pub(crate) struct Reply {
    /// Bytes for the client.
    pub(crate) out: Vec<u8>,
    /// How many of them were sent.
    pub(crate) sent: usize,
    /// The protocol.
    pub(crate) protocol: Protocol,
    /// Number of digits of the last value's size: the guess for the next one, see [`Reply::bulk_with`].
    size_digits: u8,
}

impl Reply {
    pub(crate) fn new(protocol: Protocol) -> Self {
        Self { protocol, ..Self::default() }
    }

    /// Bytes that were not sent yet.
    pub(crate) fn waiting(&self) -> usize {
        self.out.len() - self.sent
    }

    /// `+text`.
    pub(crate) fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// `+OK`.
    pub(crate) fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// `-text`, with line ends, which would end the reply, replaced by spaces.
    pub(crate) fn error(&mut self, text: &[u8]) {
        self.out.push(b'-');
        self.out.extend(text.iter().map(|&byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }));
        self.out.extend_from_slice(b"\r\n");
    }

    /// `:value`.
    pub(crate) fn integer(&mut self, value: i64) {
        self.header(b':', value);
    }

    /// `:1` or `:0`.
    pub(crate) fn flag(&mut self, value: bool) {
        self.out.extend_from_slice(if value { b":1\r\n" } else { b":0\r\n" });
    }

    /// `$size`, `value`.
    pub(crate) fn bulk(&mut self, value: &[u8]) {
        self.header(b'$', value.len() as i64);
        self.out.extend_from_slice(value);
        self.out.extend_from_slice(b"\r\n");
    }

    /// A bulk string that `append` writes straight into the output buffer, returning its size; a null if it returns `None`.
    ///
    /// The size stands before the value but is known only after it. Values of one client mostly have sizes with the same number of digits, so room for as many
    /// digits as last time is left, and the value moves only if the guess was wrong.
    pub(crate) fn bulk_with<E>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> Result<Option<usize>, E>) -> Result<bool, E> {
        let start = self.out.len();
        let guess = usize::from(self.size_digits.max(1));
        self.out.push(b'$');
        self.out.extend_from_slice(&[0; SIZE_DIGITS_MAX + 2][..guess + 2]);
        let Some(size) = append(&mut self.out)? else {
            self.out.truncate(start);
            self.null();
            return Ok(false);
        };
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(size).as_bytes();
        if digits.len() != guess {
            self.size_digits = digits.len() as u8;
            let value = start + 1 + guess + 2;
            if digits.len() > guess {
                let more = digits.len() - guess;
                self.out.extend_from_slice(&[0; SIZE_DIGITS_MAX][..more]);
                self.out.copy_within(value..value + size, value + more);
            } else {
                self.out.drain(start + 1..start + 1 + guess - digits.len());
            }
        }
        let header = &mut self.out[start + 1..start + 1 + digits.len() + 2];
        header[..digits.len()].copy_from_slice(digits);
        header[digits.len()..].copy_from_slice(b"\r\n");
        self.out.extend_from_slice(b"\r\n");
        Ok(true)
    }

    /// Text for people, in a format of three letters such as `txt`: `=size`, `txt:`; a bulk string in RESP2.
    pub(crate) fn verbatim(&mut self, format: &[u8; 3], text: &[u8]) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text),
            Protocol::Resp3 => {
                self.header(b'=', text.len() as i64 + 4);
                self.out.extend_from_slice(format);
                self.out.push(b':');
                self.out.extend_from_slice(text);
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// A number with a fraction; a bulk string in RESP2. With as few digits as say which it is.
    pub(crate) fn double(&mut self, number: f64) {
        let text = format!("{number:?}");
        let text = if number.is_nan() { "nan" } else { text.strip_suffix(".0").unwrap_or(&text) };
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => self.line(b',', text.as_bytes()),
        }
    }

    /// The digits of an integer of any size; a bulk string in RESP2.
    pub(crate) fn big_number(&mut self, digits: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(digits.as_bytes()),
            Protocol::Resp3 => self.line(b'(', digits.as_bytes()),
        }
    }

    /// A null.
    pub(crate) fn null(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// A null array: EXEC's reply when a watched key has changed.
    pub(crate) fn null_array(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// The next `count` replies are one array.
    pub(crate) fn array(&mut self, count: usize) {
        self.header(b'*', count as i64);
    }

    /// The next `count` pairs of replies are one map; an array of twice as many in RESP2.
    pub(crate) fn map(&mut self, count: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(count * 2),
            Protocol::Resp3 => self.header(b'%', count as i64),
        }
    }

    /// The next `count` replies are one set; an array in RESP2.
    pub(crate) fn set(&mut self, count: usize) {
        self.header(if self.protocol == Protocol::Resp2 { b'*' } else { b'~' }, count as i64);
    }

    /// Bytes that are replies already.
    pub(crate) fn raw(&mut self, replies: &[u8]) {
        self.out.extend_from_slice(replies);
    }

    fn header(&mut self, kind: u8, value: i64) {
        self.line(kind, itoa::Buffer::new().format(value).as_bytes());
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn written(protocol: Protocol, write: impl FnOnce(&mut Reply)) -> String {
        let mut reply = Reply::new(protocol);
        write(&mut reply);
        String::from_utf8(reply.out).unwrap()
    }

    #[test]
    fn both_protocols() {
        let all = |reply: &mut Reply| {
            reply.null();
            reply.map(2);
            reply.set(3);
            reply.verbatim(b"txt", b"hi");
            reply.error(b"ERR a\r\nb");
        };
        assert_eq!(written(Protocol::Resp2, all), "$-1\r\n*4\r\n*3\r\n$2\r\nhi\r\n-ERR a  b\r\n");
        assert_eq!(written(Protocol::Resp3, all), "_\r\n%2\r\n~3\r\n=6\r\ntxt:hi\r\n-ERR a  b\r\n");
    }

    #[test]
    fn a_value_of_any_size_after_any_other() {
        let sizes = [0, 1, 9, 10, 99, 100, 12345, 7, 100_000, 0];
        let mut reply = Reply::default();
        let mut expected = Vec::new();
        for size in sizes {
            let value: Vec<u8> = (0..size).map(|i| i as u8).collect();
            let written = reply.bulk_with(|out| {
                out.extend_from_slice(&value);
                Ok::<_, Infallible>(Some(value.len()))
            });
            assert_eq!(written, Ok(true));
            expected.extend(format!("${size}\r\n").bytes());
            expected.extend(&value);
            expected.extend(b"\r\n");
        }
        assert_eq!(reply.bulk_with(|_| Ok::<_, Infallible>(None)), Ok(false));
        expected.extend(b"$-1\r\n");
        assert!(reply.out == expected);
    }
}
