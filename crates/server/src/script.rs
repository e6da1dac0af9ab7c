//! Scripts in Lua 5.1, as Redis has them: `EVAL`, `EVALSHA`, `SCRIPT`.
//!
//! Each event loop has an interpreter of its own, made for the first script. A script sees the libraries `string`, `table` and `math`, the harmless part of the
//! basic one, `redis`, and what encodes and decodes of `cjson`. It cannot change what it sees: its environment is empty, and looks everything up behind it. So
//! no script depends on those before it.
//!
//! A script whose time is over is ended: a hook raises an error every so many instructions, and `pcall` raises it again. The clock is also looked at before
//! each command, and while the reply is written. What a single instruction does is not interrupted. A script that needs more than [`MEMORY_MAX`] gets no more.
//! What its commands have done is undone then (`executor/scripting.rs`). A panic in a command goes through the script to the caller.

use crate::REDIS_VERSION;
use crate::reply::Reply;
use mlua::chunk::ChunkMode;
use mlua::debug::Debug;
use mlua::{Function, HookTriggers, Lua, LuaOptions, LuaString, StdLib, Table, Value, Variadic, VmState};
use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a script may run, all attempts together. Other clients of its event loop wait meanwhile.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(5);
/// Memory of an interpreter, in bytes.
const MEMORY_MAX: usize = 256 << 20;
/// When so much has come since garbage was collected last, and twice as much as was left then, it is collected after a script.
const GARBAGE_MAX: usize = 16 << 20;
/// Instructions between two looks at the clock.
const INSTRUCTIONS: u32 = 1000;
/// Bytes of the arguments of a command of a script: they are copied.
const WORDS_MAX: usize = 64 << 20;
/// Bytes of the scripts that an interpreter has compiled, and their number: each takes one of the few thousand places by which Lua is referred to from here.
const COMPILED_MAX: usize = 8 << 20;
const COMPILED_COUNT_MAX: usize = 1024;
/// Bytes of all scripts that are kept.
const SCRIPTS_MAX: usize = 64 << 20;
/// How deep tables in the reply of a script may be nested.
const DEPTH_MAX: usize = 64;

/// The SHA-1 of a script, in hexadecimal digits of lower case.
pub(crate) type Digest = [u8; 40];

/// The digest of a script.
pub(crate) fn digest(text: &[u8]) -> Digest {
    let digits = sha1_smol::Sha1::from(text).digest().to_string();
    digits.into_bytes().try_into().expect("40 digits")
}

/// Scripts that clients can call by their digests. A crash or a shutdown forgets them, as in Redis.
#[derive(Default)]
pub(crate) struct Scripts(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    by_digest: HashMap<Digest, Arc<[u8]>>,
    /// Their size in bytes.
    size: usize,
    /// Number of SCRIPT FLUSHes.
    flushes: u64,
}

impl Kept {
    fn has_room(&self, size: usize) -> bool {
        self.size + size <= SCRIPTS_MAX
    }
}

impl Scripts {
    /// Whether there is room for so many bytes.
    pub(crate) fn has_room(&self, size: usize) -> bool {
        self.0.lock().has_room(size)
    }

    /// Keeps a script; returns false if there is no room for it.
    pub(crate) fn keep(&self, digest: Digest, text: &[u8]) -> bool {
        let kept = &mut *self.0.lock();
        if kept.by_digest.contains_key(&digest) {
            return true;
        }
        let has_room = kept.has_room(text.len());
        if has_room {
            kept.size += text.len();
            kept.by_digest.insert(digest, text.into());
        }
        has_room
    }

    /// Forgets a script.
    fn forget(&self, digest: &Digest) {
        let kept = &mut *self.0.lock();
        kept.size -= kept.by_digest.remove(digest).map_or(0, |text| text.len());
    }

    pub(crate) fn get(&self, digest: &Digest) -> Option<Arc<[u8]>> {
        self.0.lock().by_digest.get(digest).cloned()
    }

    /// Forgets all scripts.
    pub(crate) fn flush(&self) {
        let kept = &mut *self.0.lock();
        *kept = Kept { flushes: kept.flushes + 1, ..Kept::default() };
    }

    fn flushes(&self) -> u64 {
        self.0.lock().flushes
    }
}

/// What a script calls, with the arguments of a command, and whether it may only read. Returns the reply, in RESP2.
pub(crate) type CallBack<'c> = dyn FnMut(&[Vec<u8>], bool) -> Vec<u8> + 'c;

/// Runs a script, which may only read if it or `reads_only` says so, and writes its reply, which may have `size_max` bytes. One that cannot be compiled is not
/// kept.
///
/// # Errors
/// The text of the error, its code first.
pub(crate) fn run(
    scripts: &Scripts,
    (digest, text): (&Digest, &[u8]),
    [keys, arguments]: [&[&[u8]]; 2],
    reads_only: bool,
    back: &mut CallBack<'_>,
    (reply, size_max): (&mut Reply, usize),
    deadline: Instant,
) -> Result<(), Vec<u8>> {
    thread_local! {
        static INTERPRETER: RefCell<Option<Interpreter>> = const { RefCell::new(None) };
    }
    INTERPRETER.with_borrow_mut(|interpreter| {
        let interpreter = match interpreter {
            Some(interpreter) => interpreter,
            None => interpreter.insert(Interpreter::new().map_err(|error| failed(&error))?),
        };
        IS_OVER.set(false);
        DEADLINE.set(Some(deadline));
        let compiled = interpreter.compiled(digest, text, scripts.flushes()).inspect_err(|_| scripts.forget(digest));
        let outcome = compiled.and_then(|Compiled { function, reads_only: says }| {
            if reads_only && says == Some(false) {
                return Err(MAY_WRITE.into());
            }
            let mut back = |words: &[Vec<u8>]| back(words, reads_only || says == Some(true));
            let outcome = interpreter.call(&function, keys, arguments, &mut back).map_err(|error| failed(&error))?;
            let size_max = reply.out.len() + size_max;
            outcome.map_err(|error| told(&error, digest)).and_then(|value| answer(reply, &value, size_max, 0))
        });
        DEADLINE.set(None);
        interpreter.tidy();
        outcome
    })
}

/// Compiles a script, to see whether it can be.
pub(crate) fn check(text: &[u8]) -> Result<(), Vec<u8>> {
    let lua = Lua::new_with(StdLib::NONE, LuaOptions::default()).map_err(|error| failed(&error))?;
    lua.set_memory_limit(MEMORY_MAX).map_err(|error| failed(&error))?;
    compile(&lua, text, None).map(drop)
}

thread_local! {
    /// When the script that runs must have ended.
    static DEADLINE: Cell<Option<Instant>> = const { Cell::new(None) };
    static IS_OVER: Cell<bool> = const { Cell::new(false) };
}

/// Looks at the clock. Once the time is over, it stays so.
fn is_over() -> bool {
    if DEADLINE.get().is_some_and(|deadline| Instant::now() >= deadline) {
        IS_OVER.set(true);
    }
    IS_OVER.get()
}

#[derive(Clone)]
struct Compiled {
    function: Function,
    /// Whether it writes nothing, if it says so or not.
    reads_only: Option<bool>,
}

/// An interpreter and the scripts that it has compiled.
struct Interpreter {
    lua: Lua,
    /// What scripts see: see `script.lua`.
    seen: Table,
    environment: Table,
    /// Functions for the libraries of scripts.
    host: Table,
    /// Calls a function, and catches what it raises.
    attempt: Function,
    compiled: HashMap<Digest, Compiled>,
    /// The size of their texts.
    compiled_size: usize,
    /// The number of flushes when they were compiled.
    flushes: u64,
    /// Bytes that were left when garbage was collected last.
    left: usize,
}

impl Interpreter {
    fn new() -> mlua::Result<Self> {
        let libraries = StdLib::STRING | StdLib::TABLE | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new().catch_rust_panics(false))?;
        lua.set_memory_limit(MEMORY_MAX)?;
        let hook = |_: &Lua, _: &Debug<'_>| if is_over() { Err(mlua::Error::runtime(OVER)) } else { Ok(VmState::Continue) };
        lua.set_global_hook(HookTriggers::new().every_nth_instruction(INSTRUCTIONS), hook)?;
        let host = lua.create_table()?;
        host.raw_set("over", OVER)?;
        host.raw_set("version", REDIS_VERSION)?;
        host.raw_set("is_over", lua.create_function(|_, ()| Ok(IS_OVER.get()))?)?;
        host.raw_set("sha1hex", lua.create_function(|lua, text: LuaString| lua.create_string(digest(&text.as_bytes())))?)?;
        host.raw_set("null", Value::NULL)?;
        host.raw_set("random", lua.create_function(|_, ()| Ok(rand::random::<f64>()))?)?;
        let (seen, environment, attempt) = lua.load(include_str!("script.lua")).set_name("=script.lua").call(host.clone())?;
        Ok(Self { lua, seen, environment, host, attempt, compiled: HashMap::new(), compiled_size: 0, flushes: 0, left: 0 })
    }

    /// The compiled script.
    fn compiled(&mut self, digest: &Digest, text: &[u8], flushes: u64) -> Result<Compiled, Vec<u8>> {
        if self.flushes != flushes {
            self.forget();
            self.flushes = flushes;
        }
        if let Some(compiled) = self.compiled.get(digest) {
            return Ok(compiled.clone());
        }
        let compiled = compile(&self.lua, text, Some(self.environment.clone()))?;
        if self.compiled_size + text.len() > COMPILED_MAX || self.compiled.len() == COMPILED_COUNT_MAX {
            self.forget();
        }
        self.compiled_size += text.len();
        self.compiled.insert(*digest, compiled.clone());
        Ok(compiled)
    }

    /// Forgets what was compiled.
    fn forget(&mut self) {
        self.compiled.clear();
        self.compiled_size = 0;
    }

    /// Calls a script. What it raises is the inner error.
    fn call(
        &self,
        function: &Function,
        keys: &[&[u8]],
        arguments: &[&[u8]],
        back: &mut dyn FnMut(&[Vec<u8>]) -> Vec<u8>,
    ) -> mlua::Result<Result<Value, Value>> {
        for (name, of) in [("KEYS", keys), ("ARGV", arguments)] {
            let list = self.lua.create_table_with_capacity(of.len(), 0)?;
            // One by one: few strings can be referred to from here at a time.
            (1..).zip(of).try_for_each(|(place, bytes): (usize, _)| list.raw_set(place, self.lua.create_string(bytes)?))?;
            self.seen.raw_set(name, list)?;
        }
        let called = self.lua.scope(|scope| {
            let call = scope.create_function_mut(|lua, given: Variadic<Value>| {
                let refuse = |text| Ok(Value::Table(lua.create_table_from([("err", text)])?));
                if is_over() {
                    return refuse(OVER);
                }
                let size: usize = given.iter().map(|word| if let Value::String(text) = word { text.as_bytes().len() } else { 0 }).sum();
                if size > WORDS_MAX {
                    return refuse(TOO_LARGE);
                }
                let Some(words) = given.iter().map(word).collect::<Option<Vec<_>>>().filter(|words| !words.is_empty()) else {
                    return refuse(if given.is_empty() { NO_WORDS } else { NO_WORD });
                };
                taken(lua, &back(&words), &mut 0)
            })?;
            self.host.raw_set("call", call)?;
            self.attempt.call::<(bool, Value)>(function)
        });
        called.map(|(is_done, value)| if is_done { Ok(value) } else { Err(value) })
    }

    /// Forgets what a script has left.
    fn tidy(&mut self) {
        // A later script sets these, and without memory for that it fails.
        let _ = ["KEYS", "ARGV"].into_iter().try_for_each(|name| self.seen.raw_set(name, Value::Nil));
        let used = self.lua.used_memory();
        if used > MEMORY_MAX / 2 {
            self.forget();
        }
        if used > 2 * self.left + GARBAGE_MAX {
            let _ = self.lua.gc_collect();
            self.left = self.lua.used_memory();
        }
    }
}

const OVER: &str = "ERR the script has run for 5 seconds and was ended; nothing was changed";
const TOO_LARGE: &str = "ERR the arguments of a command of a script may have 64 MiB in all";
const MAY_WRITE: &str = "ERR Can not execute a script with write flag using *_ro command.";
const NO_WORDS: &str = "ERR Please specify at least one argument for this redis.call()/redis.pcall() call";
const NO_WORD: &str = "ERR Lua redis lib command arguments must be strings or integers";

/// The error of an interpreter, which has nothing to do with the script, except that memory may be exhausted.
fn failed(error: &mlua::Error) -> Vec<u8> {
    format!("ERR the script could not be run: {error}").into_bytes()
}

/// Compiles a script.
fn compile(lua: &Lua, text: &[u8], environment: Option<Table>) -> Result<Compiled, Vec<u8>> {
    let (size, reads_only) = heading(text)?;
    let chunk = lua.load(&text[size..]).set_name("@user_script").set_mode(ChunkMode::Text);
    let chunk = environment.into_iter().fold(chunk, |chunk, environment| chunk.set_environment(environment));
    let function = chunk.into_function().map_err(|error| {
        let why = error.to_string();
        format!("ERR Error compiling script (new function): {}", why.strip_prefix("syntax error: ").unwrap_or(&why)).into_bytes()
    })?;
    Ok(Compiled { function, reads_only })
}

/// The first line of a script, if that says for what the script is: its size without its end, so that lines keep their numbers when it is cut off; and whether,
/// as it says, the script writes nothing. As in Redis, such a line is `#!lua`, perhaps with `flags=` and names of flags.
///
/// # Errors
/// A first line that begins so, and says anything else.
fn heading(text: &[u8]) -> Result<(usize, Option<bool>), Vec<u8>> {
    if !text.starts_with(b"#!") {
        return Ok((0, None));
    }
    let size = memchr::memchr(b'\n', text).ok_or_else(|| b"ERR Invalid script shebang".to_vec())?;
    let line = String::from_utf8_lossy(&text[..size]);
    let mut words = line.split_ascii_whitespace();
    let engine = words.next().unwrap_or_default();
    if engine != "#!lua" {
        return Err(format!("ERR Unexpected engine in script shebang: {engine}").into_bytes());
    }
    let mut reads_only = false;
    for word in words {
        let flags = word.strip_prefix("flags=").ok_or_else(|| format!("ERR Unknown lua shebang option: {word}").into_bytes())?;
        for flag in flags.split(',').filter(|_| !flags.is_empty()) {
            match flag {
                "no-writes" => reads_only = true,
                // Of what these allow nothing is refused here.
                "allow-oom" | "allow-stale" | "no-cluster" | "allow-cross-slot-keys" => {}
                _ => return Err(format!("ERR Unexpected flag in script shebang: {flag}").into_bytes()),
            }
        }
    }
    Ok((size, Some(reads_only)))
}

/// The text of what a script has raised.
fn told(error: &Value, digest: &Digest) -> Vec<u8> {
    if IS_OVER.get() {
        return OVER.into();
    }
    let text = match error {
        Value::Table(table) => table.raw_get::<LuaString>("err").map(|text| text.as_bytes().to_vec()).ok(),
        Value::String(text) => Some([b"ERR ", &*text.as_bytes()].concat()),
        Value::Error(error) => {
            let mut cause = &**error;
            while let mlua::Error::CallbackError { cause: next, .. } = cause {
                cause = next;
            }
            Some(format!("ERR {cause}").into_bytes())
        }
        _ => None,
    };
    let text = text.unwrap_or_else(|| format!("ERR the script raised a {}", error.type_name()).into_bytes());
    [&text[..], b" script: ", digest].concat()
}

/// An argument of a command.
fn word(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(number) => Some(number.to_string().into_bytes()),
        // As few digits as say which it is, where Redis writes seventeen.
        Value::Number(number) => Some(format!("{number:?}").into_bytes()),
        _ => None,
    }
}

/// The value of the reply in RESP2 that begins at `at`.
fn taken(lua: &Lua, replies: &[u8], at: &mut usize) -> mlua::Result<Value> {
    let start = *at;
    let end = start + memchr::memchr(b'\r', &replies[start..]).expect("a reply ends its first line");
    let line = &replies[start + 1..end];
    *at = end + 2;
    let number = || std::str::from_utf8(line).ok().and_then(|line| line.parse::<i64>().ok()).expect("a number in a reply");
    let named = |name| Ok(Value::Table(lua.create_table_from([(name, lua.create_string(line)?)])?));
    match replies[start] {
        b'+' => named("ok"),
        b'-' => named("err"),
        b':' => Ok(Value::Integer(number())),
        b'$' => match usize::try_from(number()) {
            Ok(size) => {
                let value = &replies[*at..*at + size];
                *at += size + 2;
                Ok(Value::String(lua.create_string(value)?))
            }
            Err(_) => Ok(Value::Boolean(false)),
        },
        b'*' => match usize::try_from(number()) {
            Ok(count) => {
                let list = lua.create_table_with_capacity(count, 0)?;
                for place in 1..=count {
                    list.raw_set(place, taken(lua, replies, at)?)?;
                }
                Ok(Value::Table(list))
            }
            Err(_) => Ok(Value::Boolean(false)),
        },
        _ => unreachable!("a kind of reply that RESP2 does not have"),
    }
}

/// Writes a value of Lua as a reply, as Redis does.
fn answer(reply: &mut Reply, value: &Value, size_max: usize, depth: usize) -> Result<(), Vec<u8>> {
    if depth > DEPTH_MAX {
        return Err(b"ERR the reply of the script is nested too deeply; tables may contain each other 64 times".to_vec());
    }
    if matches!(value, Value::Table(_)) && is_over() {
        return Err(OVER.into());
    }
    if reply.out.len() > size_max {
        return Err(b"ERR the reply of the script is larger than the output buffer may be".to_vec());
    }
    match value {
        Value::Integer(number) => reply.integer(*number),
        Value::Number(number) => reply.integer(*number as i64),
        Value::Boolean(true) => reply.integer(1),
        Value::String(text) => reply.bulk(&text.as_bytes()),
        Value::Table(table) => answer_table(reply, table, size_max, depth + 1)?,
        _ => reply.null(),
    }
    Ok(())
}

/// Writes a table of Lua as a reply: of the kind that its field names, or its elements.
fn answer_table(reply: &mut Reply, table: &Table, size_max: usize, depth: usize) -> Result<(), Vec<u8>> {
    let field = |name| table.raw_get(name).unwrap_or(Value::Nil);
    let line = |text: &LuaString| String::from_utf8_lossy(&text.as_bytes()).replace(['\r', '\n'], " ");
    if let Value::String(text) = field("err") {
        let text = text.as_bytes();
        reply.error(text.strip_prefix(b"-").unwrap_or(&text));
    } else if let Value::String(text) = field("ok") {
        reply.simple(&line(&text));
    } else if let Value::Number(number) = field("double") {
        reply.double(number);
    } else if let Value::Integer(number) = field("double") {
        reply.double(number as f64);
    } else if let Value::Table(map) = field("map") {
        reply.map(map.pairs::<Value, Value>().count());
        each_pair(&map, |key, value| [key, value].iter().try_for_each(|value| answer(reply, value, size_max, depth)))?;
    } else if let Value::Table(set) = field("set") {
        reply.set(set.pairs::<Value, Value>().count());
        each_pair(&set, |key, _| answer(reply, &key, size_max, depth))?;
    } else if let Value::String(digits) = field("big_number") {
        reply.big_number(&line(&digits));
    } else if let Value::Table(verbatim) = field("verbatim_string")
        && let (Ok(text), Ok(format)) = (verbatim.raw_get::<LuaString>("string"), verbatim.raw_get::<LuaString>("format"))
    {
        let format = format.as_bytes();
        reply.verbatim(&std::array::from_fn(|place| format.get(place).copied().unwrap_or(b' ')), &text.as_bytes());
    } else {
        let count = (1..).take_while(|place| table.raw_get(*place).is_ok_and(|value: Value| !value.is_nil())).count();
        reply.array(count);
        for place in 1..=count {
            let value = table.raw_get(place).map_err(|error| failed(&error))?;
            answer(reply, &value, size_max, depth)?;
        }
    }
    Ok(())
}

/// One by one: few values can be referred to from here at a time.
fn each_pair(table: &Table, mut visit: impl FnMut(Value, Value) -> Result<(), Vec<u8>>) -> Result<(), Vec<u8>> {
    table.pairs().try_for_each(|pair| {
        let (key, value) = pair.map_err(|error| failed(&error))?;
        visit(key, value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So long that no test depends on it.
    const LONG: Duration = Duration::from_secs(3600);

    fn run_alone(text: &str) -> Result<String, String> {
        run_for(LONG, text)
    }

    fn run_for(time: Duration, text: &str) -> Result<String, String> {
        let (mut reply, text) = (Reply::default(), text.as_bytes());
        let mut back = |_: &[Vec<u8>], _: bool| b"+OK\r\n".to_vec();
        let outcome = run(&Scripts::default(), (&digest(text), text), [&[], &[]], false, &mut back, (&mut reply, 1 << 20), Instant::now() + time);
        outcome.map(|()| String::from_utf8(reply.out).unwrap()).map_err(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn a_script_that_does_not_end_is_ended() {
        for endless in [
            "while true do end",
            "while true do pcall(function() while true do end end) end",
            "local function again() local ok, why = pcall(again) again() end again()",
            "while true do xpcall(function() while true do end end, function() while true do end end) end",
            "while true do redis.call('PING') end",
            "while true do string.rep('', 2^31 - 1) end",
            "while true do pcall(cjson.encode, {{1}}) pcall(cjson.decode, '[[1]]') end",
            "local t = {'x'} for _ = 1, 40 do t = {t, t} end pcall(cjson.encode, t) while true do end",
            "local t = {} for i = 1, 100000 do t[i] = i end while true do table.insert(t, 1, 0) end",
            "local s = '' while true do s = s .. string.rep('x', 1000) if #s > 10000000 then s = '' end end",
            "return (string.rep('a', 30)):find(string.rep('a*', 6) .. 'b') or (function() while true do end end)()",
        ] {
            assert_eq!(run_for(Duration::from_millis(100), endless), Err(OVER.to_owned()), "{endless}");
        }
        assert_eq!(run_alone("return 1"), Ok(":1\r\n".to_owned()));
    }

    /// It was caught by the script, which went on with whatever the panic had left.
    #[test]
    #[should_panic(expected = "a panic of a command")]
    fn a_panic_goes_through_a_script() {
        let (mut reply, text) = (Reply::default(), &b"pcall(redis.call, 'PING') return 1"[..]);
        let mut back = |_: &[Vec<u8>], _: bool| panic!("a panic of a command");
        let _ = run(&Scripts::default(), (&digest(text), text), [&[], &[]], false, &mut back, (&mut reply, 1 << 20), Instant::now() + LONG);
    }

    #[test]
    fn garbage_and_compiled_scripts_are_bounded() {
        for n in 0..40 {
            assert_eq!(run_alone(&format!("local s = '{}' return {n}", "x".repeat(3_000_000))), Ok(format!(":{n}\r\n")));
        }
        let copies = "local x = string.rep('x', 2^20) local t = {} for i = 1, 100 do t[i] = x end return redis.pcall('EXISTS', unpack(t)).err";
        assert_eq!(run_alone(copies), Ok(format!("${}\r\n{TOO_LARGE}\r\n", TOO_LARGE.len())));
        assert_eq!(run_alone("local x = string.rep('x', 1e9)").unwrap_err().split(" script: ").next().unwrap(), "ERR user_script:1: not enough memory");
        assert_eq!(run_alone("return #string.rep('x', 3e7)"), Ok(":30000000\r\n".to_owned()));
    }

    #[test]
    fn replies_are_not_larger_than_allowed() {
        let doubled = run_alone("local t = {'x'} for _ = 1, 40 do t = {t, t} end return t");
        assert_eq!(doubled, Err("ERR the reply of the script is larger than the output buffer may be".to_owned()));
    }

    #[test]
    fn maps_may_be_large() {
        let map = run_alone("local t = {} for i = 1, 30000 do t['k' .. i] = 'v' end return {map = t}").unwrap();
        assert_eq!((map.lines().next(), map.lines().count()), (Some("*60000"), 120_001));
        let set = run_alone("local t = {} for i = 1, 30000 do t['k' .. i] = true end return {set = t}").unwrap();
        assert_eq!((set.lines().next(), set.lines().count()), (Some("*30000"), 60_001));
    }

    #[test]
    fn there_is_room_for_so_many_scripts() {
        let (scripts, large) = (Scripts::default(), vec![b'x'; SCRIPTS_MAX / 2]);
        assert!(scripts.keep([1; 40], &large) && scripts.keep([2; 40], &large) && scripts.keep([1; 40], &large));
        assert!(!scripts.keep([3; 40], b"x"));
        scripts.flush();
        assert!(scripts.keep([3; 40], b"x") && scripts.get(&[1; 40]).is_none());
    }
}
