//! Scripts in Lua.

use crate::peer::{Client, Running};
use std::thread;

/// Calls a script with keys and other arguments; returns the reply.
fn eval(client: &mut Client, script: &str, keys: &[&str], arguments: &[&str]) -> String {
    let count = keys.len().to_string();
    let words: Vec<&[u8]> = ["EVAL", script, &count].iter().chain(keys).chain(arguments).map(|word| word.as_bytes()).collect();
    String::from_utf8(client.call(&words)).unwrap()
}

fn eval_ro(client: &mut Client, script: &str) -> String {
    String::from_utf8(client.call(&[b"EVAL_RO", script.as_bytes(), b"0"])).unwrap()
}

/// Expects that each of these scripts fails, with an error that contains the text beside it.
fn expect_refusals(client: &mut Client, scripts: &[(&str, &str)]) {
    for (script, why) in scripts {
        let reply = eval(client, script, &[], &[]);
        assert!(reply.starts_with("-ERR ") && reply.contains(why), "{script}: {reply}");
    }
}

#[test]
fn values_of_lua_are_replies() {
    let server = Running::start();
    let mut client = server.client();
    let replies = [
        ("return 1", ":1\r\n"),
        ("return 3.99", ":3\r\n"),
        ("return 'abc'", "$3\r\nabc\r\n"),
        ("return true", ":1\r\n"),
        ("return false", "$-1\r\n"),
        ("return nil", "$-1\r\n"),
        ("", "$-1\r\n"),
        ("return {1, 'b', {true, {}}, nil, 5}", "*3\r\n:1\r\n$1\r\nb\r\n*2\r\n:1\r\n*0\r\n"),
        ("return {ok = 'fine'}", "+fine\r\n"),
        ("return redis.status_reply('fine')", "+fine\r\n"),
        ("return redis.error_reply('MY error')", "-MY error\r\n"),
        ("return redis.error_reply()", "-ERR wrong number or type of arguments\r\n"),
        ("return redis.status_reply(5)", "-ERR wrong number or type of arguments\r\n"),
        ("return {pcall(redis.call, 'INCRBY', KEYS[1], 'x')}", "*2\r\n$-1\r\n$43\r\nERR value is not an integer or out of range\r\n"),
        ("return {pcall(error, {x = 1})}", "*2\r\n$-1\r\n*0\r\n"),
        ("return redis.error_reply('-MY error')", "-MY error\r\n"),
        ("return redis.error_reply('error')", "-ERR error\r\n"),
        ("return {KEYS[1], KEYS[2], ARGV[1], #ARGV}", "*4\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n:2\r\n"),
        ("return redis.sha1hex('')", "$40\r\nda39a3ee5e6b4b0d3255bfef95601890afd80709\r\n"),
        ("#!lua flags=no-writes,allow-stale\nreturn 1", ":1\r\n"),
        ("#!lua flags=\nreturn redis.call('SET', KEYS[1], 1)", "+OK\r\n"),
        ("#!lua\nreturn redis.call('SET', KEYS[1], 1)", "+OK\r\n"),
        ("return {{double = 3.5}, {double = -10}, {double = 1 / 0}}", "*3\r\n$3\r\n3.5\r\n$3\r\n-10\r\n$3\r\ninf\r\n"),
        ("return {{map = {x = {1}}}, {set = {y = true}}}", "*2\r\n*2\r\n$1\r\nx\r\n*1\r\n:1\r\n*1\r\n$1\r\ny\r\n"),
        ("return {{big_number = '12\\r34'}, {verbatim_string = {string = 'v', format = 'txt'}}}", "*2\r\n$5\r\n12 34\r\n$1\r\nv\r\n"),
        ("return {{double = 'x'}, {map = 3}}", "*2\r\n*0\r\n*0\r\n"),
        ("return {redis.REDIS_VERSION, redis.REDIS_VERSION_NUM}", "*2\r\n$6\r\n7.0.15\r\n:458767\r\n"),
        ("local n = math.random(3, 5) return n >= 3 and n <= 5 and math.random() < 1 and math.random(1) == 1", ":1\r\n"),
        ("return string.format('%s %d', table.concat({'x', 'y'}, '-'), math.max(1, 2))", "$5\r\nx-y 2\r\n"),
    ];
    for (script, reply) in replies {
        assert_eq!(eval(&mut client, script, &["a", "b"], &["c", "d"]), reply, "{script}");
    }
    client.call(&[b"HELLO", b"3"]);
    assert_eq!(eval(&mut client, "return {true, false}", &[], &[]), "*2\r\n:1\r\n_\r\n");
    let replies = [
        ("return {{double = 3.5}, {double = 1e300}, {double = 0 / 0}}", "*3\r\n,3.5\r\n,1e300\r\n,nan\r\n"),
        ("return {{map = {x = {1}}}, {set = {y = true}}}", "*2\r\n%1\r\n$1\r\nx\r\n*1\r\n:1\r\n~1\r\n$1\r\ny\r\n"),
        ("return {{big_number = '123'}, {verbatim_string = {string = 'v', format = 'md'}}}", "*2\r\n(123\r\n=5\r\nmd :v\r\n"),
    ];
    for (script, reply) in replies {
        assert_eq!(eval(&mut client, script, &[], &[]), reply, "{script}");
    }
    let cycle = eval(&mut client, "local t = {} t[1] = t return t", &[], &[]);
    assert!(cycle.starts_with("-ERR the reply of the script is nested too deeply"), "{cycle}");
}

/// As in Redis, except that no digits of numbers are lost.
#[test]
fn values_of_lua_are_texts_in_json() {
    let server = Running::start();
    let mut client = server.client();
    let texts = [
        ("{1, 2, 'x', true, cjson.null, {a = 1}, {}}", r#"[1,2,"x",true,null,{"a":1},{}]"#),
        ("{[1] = 1, [3] = 3}", "[1,null,3]"),
        ("{[10] = 1}", "[null,null,null,null,null,null,null,null,null,1]"),
        ("{[0] = 1}", r#"{"0":1}"#),
        ("{[1.5] = false}", r#"{"1.5":false}"#),
        ("{1, x = 3}", r#"{"1":1,"x":3}"#),
        ("{3.0, -0.1, 1 / 3, 1e20, 1e15 + 0.5, 9007199254740991}", "[3,-0.1,0.3333333333333333,1e+20,1000000000000000.5,9007199254740991]"),
        ("'a/b\"\\\\\\n\\1\\127\\0é'", r#""a\/b\"\\\n\u0001\u007f\u0000é""#),
        ("nil", "null"),
        ("cjson.decode('{\"a\": [1, null, 2.5, \"x\", false], \"a\": {\"b\": []}}')", r#"{"a":{"b":{}}}"#),
        (
            "cjson.decode('[1, null, 2.5e3, \"\\\\u00e9\\\\ud83d\\\\ude00\", -9007199254740991, 12.088995980580641]')",
            r#"[1,null,2500,"é😀",-9007199254740991,12.088995980580641]"#,
        ),
        ("{cjson.decode('null') == cjson.null, cjson.decode(1), #cjson.decode('[[],[]]')}", "[true,1,2]"),
    ];
    for (value, text) in texts {
        let reply = eval(&mut client, &format!("return cjson.encode({value})"), &[], &[]);
        assert_eq!(reply, format!("${}\r\n{text}\r\n", text.len()), "{value}");
    }
    let refused = [
        ("return cjson.encode({[11] = 1})", "Cannot serialise table: excessively sparse array"),
        ("return cjson.encode({[true] = 1})", "Cannot serialise boolean: table key must be a number or string"),
        ("return cjson.encode(0 / 0)", "Cannot serialise number: must not be NaN or Inf"),
        ("return cjson.encode({a = cjson.encode})", "Cannot serialise function: type not supported"),
        ("return cjson.encode()", "bad argument #1 to 'encode' (expected 1 argument)"),
        ("local t = {} t[1] = t return cjson.encode(t)", "Cannot serialise, excessive nesting (1001)"),
        ("return cjson.decode(nil)", "bad argument #1 to 'decode' (string expected, got nil)"),
        ("return cjson.decode('1', '2')", "bad argument #1 to 'decode' (expected 1 argument)"),
        ("return cjson.decode('')", "Expected value but found T_END at character 1"),
        ("return cjson.decode('[1,2,')", "Expected value but found T_END at character 6"),
        ("return cjson.decode('[1,2]x')", "Expected the end but found invalid token at character 6"),
        ("return cjson.decode('[1 2]')", "Expected comma or array end but found invalid token at character 4"),
        ("return cjson.decode('{1:2}')", "Expected object key string but found invalid token at character 2"),
        ("return cjson.decode('{\"a\" 2}')", "Expected colon but found invalid token at character 6"),
        ("return cjson.decode('[nul]')", "Expected value but found invalid token at character 2"),
        ("return cjson.decode('[-]')", "Expected value but found invalid token at character 2"),
        ("return cjson.decode('\"a')", "unexpected end of string"),
        ("return cjson.decode('\"\\\\x\"')", "invalid escape code"),
        ("return cjson.decode('\"\\\\ud83d\"')", "invalid unicode escape code"),
        ("return cjson.decode(string.rep('[', 1001) .. string.rep(']', 1001))", "Found too many nested data structures (1001) at character 1001"),
        ("cjson.decode = nil", "Attempt to modify a readonly table"),
    ];
    expect_refusals(&mut client, &refused);
    let caught = "Expected object key string but found T_END at character 2";
    assert_eq!(eval(&mut client, "return select(2, pcall(cjson.decode, '{'))", &[], &[]), format!("${}\r\n{caught}\r\n", caught.len()));
    let deep = "local t = {} for _ = 1, 999 do t = {t} end return #cjson.encode(cjson.decode(cjson.encode(t)))";
    assert_eq!(eval(&mut client, deep, &[], &[]), ":2000\r\n");
    // What is no UTF-8 passes, and so do control characters.
    let all = "local t = {} for n = 0, 255 do t[n + 1] = string.char(n) end local s = table.concat(t) return cjson.decode(cjson.encode({[s] = s}))[s] == s \
               and cjson.decode('\"' .. s:gsub('[\"\\\\]', '') .. '\"') == s:gsub('[\"\\\\]', '')";
    assert_eq!(eval(&mut client, all, &[], &[]), ":1\r\n");
    let escaped = r#"return cjson.decode('"\\u0024\\u00a3\\u20ac\\ud800\\udf48\\uFFFF"') == '$£€𐍈\239\191\191'"#;
    assert_eq!(eval(&mut client, escaped, &[], &[]), ":1\r\n");
    client.says(r#"SET counter {"count":1}"#, "+OK\r\n");
    let script = "local o = cjson.decode(redis.call('GET', KEYS[1])) o.count = o.count + 1 return redis.call('SET', KEYS[1], cjson.encode(o))";
    assert_eq!(eval(&mut client, script, &["counter"], &[]), "+OK\r\n");
    client.says("GET counter", "$11\r\n{\"count\":2}\r\n");
}

#[test]
fn the_first_line_says_what_a_script_may_do() {
    let server = Running::start();
    let mut client = server.client();
    let refused = [
        ("#!lua flags=no-writes\nreturn redis.call('SET', 'k', 'v')", "-ERR Write commands are not allowed from read-only scripts."),
        ("#!lua", "-ERR Invalid script shebang"),
        ("#!python\nreturn 1", "-ERR Unexpected engine in script shebang: #!python"),
        ("#!lua name=x\nreturn 1", "-ERR Unknown lua shebang option: name=x"),
        ("#!lua flags=no-writes,fast\nreturn 1", "-ERR Unexpected flag in script shebang: fast"),
    ];
    for (script, why) in refused {
        let reply = eval(&mut client, script, &[], &[]);
        assert!(reply.starts_with(why), "{script}: {reply}");
    }
    assert_eq!(eval_ro(&mut client, "#!lua flags=no-writes\nreturn 1"), ":1\r\n");
    let reply = eval_ro(&mut client, "#!lua\nreturn 1");
    assert!(reply.starts_with("-ERR Can not execute a script with write flag using *_ro command."), "{reply}");
    let loaded = String::from_utf8(client.call(&[b"SCRIPT", b"LOAD", refused[2].0.as_bytes()])).unwrap();
    assert!(loaded.starts_with(refused[2].1), "{loaded}");
    client.says("DBSIZE", ":0\r\n");
}

#[test]
fn commands_return_values_of_lua() {
    let server = Running::start();
    let mut client = server.client();
    let script = "
        local set = redis.call('SET', KEYS[1], ARGV[1])
        local kinds = {}
        local values = {redis.call('INCRBY', KEYS[1], 2), redis.call('GET', KEYS[1]), redis.call('GET', 'absent'), redis.call('MGET', KEYS[1], 'absent')[2]}
        for _, value in ipairs(values) do
            kinds[#kinds + 1] = type(value) .. ':' .. tostring(value)
        end
        return {set.ok, unpack(kinds)}";
    assert_eq!(
        eval(&mut client, script, &["k"], &["40"]),
        "*5\r\n$2\r\nOK\r\n$9\r\nnumber:42\r\n$9\r\nstring:42\r\n$13\r\nboolean:false\r\n$13\r\nboolean:false\r\n"
    );
    let refused = eval(&mut client, "return redis.call({})", &[], &[]);
    assert!(refused.starts_with("-ERR Lua redis lib command arguments must be strings or integers script: "), "{refused}");
    let refused = eval(&mut client, "return redis.call()", &[], &[]);
    assert!(refused.starts_with("-ERR Please specify at least one argument"), "{refused}");
    for command in ["MULTI", "SAVE", "SHUTDOWN", "WATCH', 'k", "CONFIG', 'GET', 'port", "EVAL', 'return 1', '0"] {
        let refused = eval(&mut client, &format!("return redis.call('{command}')"), &[], &[]);
        assert!(refused.starts_with("-ERR This Redis command is not allowed from script"), "{command}: {refused}");
    }
    // As many keys as a request may have.
    let keys: Vec<String> = (0..20_000).map(|n| n.to_string()).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert_eq!(eval(&mut client, "return #KEYS", &keys, &[]), ":20000\r\n");
    // The script's database is its own.
    assert_eq!(eval(&mut client, "redis.call('SELECT', 3) redis.call('SET', 'k', 'third') return redis.call('GET', 'k')", &[], &[]), "$5\r\nthird\r\n");
    client.says("GET k", "$2\r\n42\r\n");
}

#[test]
fn a_script_does_all_or_nothing() {
    let server = Running::start();
    let mut client = server.client();
    let failed = eval(&mut client, "redis.call('SET', 'a', '1') redis.call('INCRBY', 'a', 'x')", &[], &[]);
    assert!(failed.starts_with("-ERR value is not an integer or out of range script: "), "{failed}");
    let failed = eval(&mut client, "redis.call('SET', 'a', '1') error('enough')", &[], &[]);
    assert!(failed.starts_with("-ERR user_script:1: enough script: "), "{failed}");
    let failed = eval(&mut client, "redis.call('SET', 'a', '1') error({err = 'MY reason'})", &[], &[]);
    assert!(failed.starts_with("-MY reason script: "), "{failed}");
    client.says("EXISTS a", ":0\r\n");
    // An error that is caught undoes one command.
    let caught = "redis.call('SET', 'a', 'text') local reply = redis.pcall('INCR', 'a') redis.call('SET', 'b', '2') return reply.err";
    assert_eq!(eval(&mut client, caught, &[], &[]), "$43\r\nERR value is not an integer or out of range\r\n");
    let caught = "local ok, raised = pcall(redis.call, 'INCR', 'a') return {tostring(ok), raised}";
    assert_eq!(eval(&mut client, caught, &[], &[]), "*2\r\n$5\r\nfalse\r\n$43\r\nERR value is not an integer or out of range\r\n");
    client.says("MGET a b", "*2\r\n$4\r\ntext\r\n$1\r\n2\r\n");
    // Within a transaction it is a command like others.
    client.replies("MULTI", "+OK\r\n");
    client.exchange(&[b"EVAL", b"redis.call('SET', 'c', '1') return redis.call('INCR', 'c')", b"0"]);
    client.exchange(&[b"EVAL", b"redis.call('SET', 'c', '9') error('enough')", b"0"]);
    client.replies("GET c", "+QUEUED\r\n");
    let replies = String::from_utf8(client.exchange(&[b"EXEC"])).unwrap();
    assert!(replies.starts_with("*3\r\n:2\r\n-ERR user_script:1: enough") && replies.ends_with("\r\n$1\r\n2\r\n"), "{replies}");
    let sizes = eval(&mut client, "for n = 1, 3000 do redis.call('SET', 'key' .. n, n) end return #redis.call('KEYS', 'key*')", &[], &[]);
    assert_eq!(sizes, ":3000\r\n");
}

#[test]
fn scripts_of_several_clients_do_not_mix() {
    const TIMES: usize = 300;
    let server = Running::start();
    let clients: Vec<_> = (0..4).map(|_| server.client()).collect();
    thread::scope(|scope| {
        for mut client in clients {
            scope.spawn(move || {
                for _ in 0..TIMES {
                    let script = "local n = tonumber(redis.call('GET', KEYS[1]) or '0') redis.call('SET', KEYS[1], n + 1) return n + 1";
                    assert!(eval(&mut client, script, &["n"], &[]).starts_with(':'));
                }
            });
        }
    });
    server.client().says("GET n", "$4\r\n1200\r\n");
}

/// What libraries use scripts for.
#[test]
fn locks_and_limits_of_libraries_work() {
    let server = Running::start();
    let (mut client, mut other) = (server.client(), server.client());
    let release = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
    client.says("SET lock mine NX PX 60000", "+OK\r\n");
    assert_eq!(eval(&mut other, release, &["lock"], &["theirs"]), ":0\r\n");
    assert_eq!(eval(&mut client, release, &["lock"], &["mine"]), ":1\r\n");
    assert_eq!(eval(&mut client, release, &["lock"], &["mine"]), ":0\r\n");
    let limit = "
        local hits = redis.call('INCR', KEYS[1])
        local left = redis.call('PTTL', KEYS[1])
        if left < 0 then
            redis.call('PEXPIRE', KEYS[1], ARGV[1])
            left = tonumber(ARGV[1])
        end
        return {hits, left <= tonumber(ARGV[1]) and left > 0}";
    for hits in 1..4 {
        assert_eq!(eval(&mut client, limit, &["user"], &["60000"]), format!("*2\r\n:{hits}\r\n:1\r\n"));
    }
}

#[test]
fn scripts_are_known_by_their_digests() {
    let server = Running::start();
    let (mut client, mut other) = (server.client(), server.client());
    let script = b"return 'known'";
    let digest = "ff8c3a48d5b0d8ea0e2bd06b0c5ddbb30a8d6ba0";
    client.says(&format!("EVALSHA {digest} 0"), "-NOSCRIPT No matching script. Please use EVAL.\r\n");
    client.says("EVALSHA short 0", "-NOSCRIPT No matching script. Please use EVAL.\r\n");
    let loaded = String::from_utf8(client.call(&[b"SCRIPT", b"LOAD", script])).unwrap();
    let digest = loaded.lines().nth(1).unwrap();
    other.says(&format!("EVALSHA {digest} 0"), "$5\r\nknown\r\n");
    other.says(&format!("EVALSHA {} 0", digest.to_uppercase()), "$5\r\nknown\r\n");
    other.says(&format!("SCRIPT EXISTS {digest} {}", "0".repeat(40)), "*2\r\n:1\r\n:0\r\n");
    client.says("SCRIPT FLUSH", "+OK\r\n");
    other.says(&format!("EVALSHA {digest} 0"), "-NOSCRIPT No matching script. Please use EVAL.\r\n");
    assert_eq!(eval(&mut other, "return 'known'", &[], &[]), "$5\r\nknown\r\n");
    client.says(&format!("EVALSHA {digest} 0"), "$5\r\nknown\r\n");
    let wrong = String::from_utf8(client.call(&[b"SCRIPT", b"LOAD", b"return return"])).unwrap();
    assert!(wrong.starts_with("-ERR Error compiling script (new function): user_script:1: "), "{wrong}");
    assert!(eval(&mut client, "return return", &[], &[]).starts_with("-ERR Error compiling script (new function): user_script:1: "));
    client.says("EVAL x -1", "-ERR Number of keys can't be negative\r\n");
    client.says("EVAL x 2 k", "-ERR Number of keys can't be greater than number of args\r\n");
    let refused = eval_ro(&mut client, "return redis.call('SET', 'k', 'v')");
    assert!(refused.starts_with("-ERR Write commands are not allowed from read-only scripts. script: "), "{refused}");
    assert_eq!(eval_ro(&mut client, "return redis.call('EXISTS', 'k')"), ":0\r\n");
}

/// Each would have changed what later scripts of the same thread see.
#[test]
fn scripts_leave_nothing_behind() {
    let server = Running::start();
    let mut client = server.client();
    let refused = [
        ("x = 1", "Script attempted to create global variable 'x'"),
        ("string = nil", "Script attempted to create global variable 'string'"),
        ("return x", "Script attempted to access nonexistent global variable 'x'"),
        ("string.format = nil", "Attempt to modify a readonly table"),
        ("redis.call = nil", "Attempt to modify a readonly table"),
        ("_G.pairs = nil", "Script attempted to create global variable 'pairs'"),
        ("getmetatable('').__index.rep = nil", "attempt to index"),
        ("setmetatable(_G, {})", "cannot change a protected metatable"),
        ("table.insert(_G, 'left')", "Attempt to modify a readonly table"),
        ("table.insert(math, 1, 'left')", "Attempt to modify a readonly table"),
        ("table.sort(redis)", "Attempt to modify a readonly table"),
        ("rawset(string, 'format', nil)", "nonexistent global variable 'rawset'"),
        ("loadstring('return 1')", "nonexistent global variable 'loadstring'"),
        ("os.exit()", "nonexistent global variable 'os'"),
        ("io.open('/etc/passwd')", "nonexistent global variable 'io'"),
        ("require('os')", "nonexistent global variable 'require'"),
        ("return string.dump(function() end)", "attempt to call"),
        ("return string.rep('x', 1000000000)", "not enough memory"),
        ("local t = {} while true do t[#t + 1] = string.rep('x', 1000000) .. #t end", "not enough memory"),
    ];
    expect_refusals(&mut client, &refused);
    assert_eq!(eval(&mut client, "for name in pairs({1}) do return string.format('%s', ('x'):rep(3)) end", &[], &[]), "$3\r\nxxx\r\n");
}
