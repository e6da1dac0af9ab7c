//! The commands. Names, arities, flags and key positions are Redis's; what Redis does not have says so in `since`.

use super::{Flags, Group, Keys, Run, Spec};
use crate::executor::{
    backup, client, conditional, config, connection, expiry, info, introspection, keys, many, memory, numbers, scan, scripting, server, slowlog, strings,
    transaction, walk,
};

const READ: Flags = Flags::READONLY;
const WRITE: Flags = Flags::WRITE;
const WRITE_NEW: Flags = Flags::WRITE.and(Flags::DENYOOM);
const FAST: Flags = Flags::FAST;
const ALWAYS: Flags = Flags::LOADING.and(Flags::STALE);
const SESSION: Flags = Flags::NOSCRIPT.and(ALWAYS);
const TRANSACTION: Flags = SESSION.and(Flags::AT_ONCE);
const AT_ONCE: Flags = TRANSACTION.and(FAST).and(Flags::ALLOW_BUSY);
const ADMIN: Flags = SESSION.and(Flags::ADMIN);
const BACKUP: Flags = Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::NO_ASYNC_LOADING);
const SAVE: Flags = BACKUP.and(Flags::NO_MULTI);
const SCRIPT_FLAGS: Flags = Flags::NOSCRIPT.and(Flags::STALE);
const OPEN: Flags = SESSION.and(Flags::FAST).and(Flags::NO_AUTH).and(Flags::ALLOW_BUSY);

#[expect(clippy::too_many_arguments, reason = "one for each column of the table")]
const fn line(group: Group, name: &'static str, arity: i64, flags: Flags, keys: Keys, since: &'static str, summary: &'static str, run: Run) -> Spec {
    Spec { name, arity, flags, keys, group, since, summary, subcommands: &[], run }
}

const fn string(name: &'static str, arity: i64, flags: Flags, keys: Keys, since: &'static str, summary: &'static str, run: Run) -> Spec {
    line(Group::String, name, arity, flags, keys, since, summary, run)
}

const fn generic(name: &'static str, arity: i64, flags: Flags, keys: Keys, since: &'static str, summary: &'static str, run: Run) -> Spec {
    line(Group::Generic, name, arity, flags, keys, since, summary, run)
}

const fn plain(group: Group, name: &'static str, arity: i64, flags: Flags, since: &'static str, summary: &'static str, run: Run) -> Spec {
    line(group, name, arity, flags, Keys::NONE, since, summary, run)
}

const fn parent(group: Group, name: &'static str, since: &'static str, summary: &'static str, subcommands: &'static [Spec]) -> Spec {
    Spec { subcommands, ..plain(group, name, -2, Flags::NONE, since, summary, introspection::no_subcommand) }
}

use Group::{Connection, Scripting, Server, Transactions};

/// Every command, in the order of their names.
#[rustfmt::skip]
pub(crate) static TABLE: &[Spec] = &[
    string("append", 3, WRITE_NEW.and(FAST), Keys::FIRST, "2.0.0", "Appends to the value of a key; sets it if there is none.", strings::append),
    plain(Connection, "auth", -2, OPEN, "1.0.0", "Shows the password.", connection::auth),
    plain(Server, "bgsave", -1, BACKUP, "1.0.0", "Writes a backup in the background.", backup::bgsave),
    parent(Connection, "client", "2.4.0", "Commands about connections.", CLIENT),
    Spec { subcommands: COMMAND, ..plain(Connection, "command", -1, ALWAYS, "2.8.13", "Describes every command.", introspection::command) },
    parent(Server, "config", "2.0.0", "Commands about the configuration.", CONFIG),
    generic("copy", -3, WRITE_NEW, Keys::FIRST_TWO, "6.2.0", "Sets a key to what another one holds, to expire with it.", conditional::copy),
    generic("dbsize", 1, READ.and(FAST), Keys::NONE, "1.0.0", "Counts the keys of the database.", keys::dbsize),
    string("decr", 2, WRITE_NEW.and(FAST), Keys::FIRST, "1.0.0", "Subtracts one from the number in a key, from 0 if there is none.", numbers::decr),
    string("decrby", 3, WRITE_NEW.and(FAST), Keys::FIRST, "1.0.0", "Subtracts from the number in a key, from 0 if there is none.", numbers::decrby),
    generic("del", -2, WRITE, Keys::ALL, "1.0.0", "Removes keys.", many::del),
    string("delex", -2, WRITE.and(FAST), Keys::FIRST, "8.4.0", "Removes a key; with IFEQ or IFNE, if it has a value, or another one.", strings::delex),
    string("delifeq", 3, WRITE.and(FAST), Keys::FIRST, "Valkey 9.0.0", "Removes a key if it has a value.", strings::delifeq),
    plain(Transactions, "discard", 1, AT_ONCE, "2.0.0", "Forgets the commands since MULTI, and what is watched.", transaction::discard),
    plain(Connection, "echo", 2, ALWAYS.and(FAST), "1.0.0", "Returns its argument.", connection::echo),
    plain(Scripting, "eval", -3, SCRIPT_FLAGS, "2.6.0", "Runs a script.", scripting::eval),
    plain(Scripting, "eval_ro", -3, SCRIPT_FLAGS.and(READ), "7.0.0", "Runs a script that may not write.", scripting::eval),
    plain(Scripting, "evalsha", -3, SCRIPT_FLAGS, "2.6.0", "Runs a script that the server knows.", scripting::evalsha),
    plain(Scripting, "evalsha_ro", -3, SCRIPT_FLAGS.and(READ), "7.0.0", "Runs a script that the server knows and that may not write.", scripting::evalsha),
    plain(Transactions, "exec", 1, TRANSACTION.and(Flags::SKIP_SLOWLOG), "1.2.0", "Runs the commands since MULTI, all at once.", transaction::exec),
    generic("exists", -2, READ.and(FAST), Keys::ALL, "1.0.0", "Counts how many of the keys are present.", many::exists),
    generic("expire", -3, WRITE.and(FAST), Keys::FIRST, "1.0.0", "Has a key expire after some seconds.", expiry::expire),
    generic("expireat", -3, WRITE.and(FAST), Keys::FIRST, "1.2.0", "Has a key expire at a time in seconds since 1970.", expiry::expireat),
    generic("expiretime", 2, READ.and(FAST), Keys::FIRST, "7.0.0", "Returns when a key expires, in seconds since 1970.", expiry::expiretime),
    generic("flushall", -1, WRITE.and(Flags::DANGEROUS), Keys::NONE, "1.0.0", "Removes every key of every database.", keys::flushall),
    generic("flushdb", -1, WRITE.and(Flags::DANGEROUS), Keys::NONE, "1.0.0", "Removes every key of the database.", keys::flushdb),
    string("get", 2, READ.and(FAST), Keys::FIRST, "1.0.0", "Returns the value of a key.", strings::get),
    string("getdel", 2, WRITE.and(FAST), Keys::FIRST, "6.2.0", "Returns the value of a key and removes it.", strings::getdel),
    string("getex", -2, WRITE.and(FAST), Keys::FIRST, "6.2.0", "Returns the value of a key, and sets when it expires.", expiry::getex),
    string("getrange", 4, READ, Keys::FIRST, "2.4.0", "Returns a part of the value of a key.", strings::getrange),
    string("getset", 3, WRITE_NEW.and(FAST), Keys::FIRST, "1.0.0", "Sets a key and returns what it held.", strings::getset),
    plain(Connection, "hello", -1, OPEN, "6.0.0", "Agrees on the protocol; may show the password and set the connection's name.", connection::hello),
    string("incr", 2, WRITE_NEW.and(FAST), Keys::FIRST, "1.0.0", "Adds one to the number in a key, to 0 if there is none.", numbers::incr),
    string("incrby", 3, WRITE_NEW.and(FAST), Keys::FIRST, "1.0.0", "Adds to the number in a key, to 0 if there is none.", numbers::incrby),
    string("incrbyfloat", 3, WRITE_NEW.and(FAST), Keys::FIRST, "2.6.0", "Adds a fraction to the number in a key, to 0 if there is none.", numbers::incrbyfloat),
    plain(Server, "info", -1, ALWAYS.and(Flags::DANGEROUS), "1.0.0", "Describes the server and its state.", info::info),
    generic("keys", 2, READ.and(Flags::DANGEROUS), Keys::NONE, "1.0.0", "Returns the keys that match a pattern.", walk::keys),
    plain(Server, "lastsave", 1, ALWAYS.and(FAST).and(Flags::ADMINISTRATIVE), "1.0.0", "Returns when a backup was done last.", backup::lastsave),
    parent(Server, "memory", "4.0.0", "Commands about memory.", MEMORY),
    string("mget", -2, READ.and(FAST), Keys::ALL, "1.0.0", "Returns the values of keys.", many::mget),
    string("mset", -3, WRITE_NEW, Keys::PAIRS, "1.0.1", "Sets several keys, all or none.", conditional::mset),
    string("msetnx", -3, WRITE_NEW, Keys::PAIRS, "1.0.1", "Sets several keys if none of them is present.", conditional::msetnx),
    plain(Transactions, "multi", 1, AT_ONCE, "1.2.0", "Begins to queue commands for EXEC.", transaction::multi),
    parent(Group::Generic, "object", "2.2.3", "Commands about how a value is kept.", OBJECT),
    generic("persist", 2, WRITE.and(FAST), Keys::FIRST, "2.2.0", "Has a key expire no more.", expiry::persist),
    generic("pexpire", -3, WRITE.and(FAST), Keys::FIRST, "2.6.0", "Has a key expire after some milliseconds.", expiry::pexpire),
    generic("pexpireat", -3, WRITE.and(FAST), Keys::FIRST, "2.6.0", "Has a key expire at a time in milliseconds since 1970.", expiry::pexpireat),
    generic("pexpiretime", 2, READ.and(FAST), Keys::FIRST, "7.0.0", "Returns when a key expires, in milliseconds since 1970.", expiry::pexpiretime),
    plain(Connection, "ping", -1, FAST, "1.0.0", "Answers.", connection::ping),
    string("psetex", 4, WRITE_NEW, Keys::FIRST, "2.6.0", "Sets a key, to expire after some milliseconds.", expiry::psetex),
    generic("pttl", 2, READ.and(FAST), Keys::FIRST, "2.6.0", "Returns after how many milliseconds a key expires.", expiry::pttl),
    plain(Connection, "quit", -1, OPEN.and(Flags::AT_ONCE), "1.0.0", "Closes the connection.", connection::quit),
    generic("randomkey", 1, READ, Keys::NONE, "1.0.0", "Returns a key, whichever.", keys::randomkey),
    generic("range", -3, READ, Keys::NONE, "everleaf 0.1.0", "Returns keys and their values in order: start end [LIMIT n] [REV] [KEYSONLY].", walk::range),
    generic("rename", 3, WRITE, Keys::FIRST_TWO, "1.0.0", "Renames a key; what the new name held is gone.", conditional::rename),
    generic("renamenx", 3, WRITE.and(FAST), Keys::FIRST_TWO, "1.0.0", "Renames a key if the new name is free.", conditional::renamenx),
    plain(Connection, "reset", 1, OPEN.and(Flags::AT_ONCE), "6.2.0", "Puts the connection into its first state.", connection::reset),
    plain(Server, "save", 1, SAVE, "1.0.0", "Writes a backup, and answers when it is done.", backup::save),
    generic("scan", -2, READ, Keys::NONE, "2.8.0", "Returns some keys, and a cursor for the rest.", scan::scan),
    parent(Scripting, "script", "2.6.0", "Commands about scripts.", SCRIPT),
    plain(Connection, "select", 2, ALWAYS.and(FAST), "1.0.0", "Changes the database.", connection::select),
    string("set", -3, WRITE_NEW, Keys::FIRST, "1.0.0", "Sets a key.", strings::set),
    string("setex", 4, WRITE_NEW, Keys::FIRST, "2.0.0", "Sets a key, to expire after some seconds.", expiry::setex),
    string("setnx", 3, WRITE_NEW.and(FAST), Keys::FIRST, "1.0.0", "Sets a key if it is absent.", strings::setnx),
    string("setrange", 4, WRITE_NEW, Keys::FIRST, "2.2.0", "Overwrites a part of the value of a key, after zeros if it is too short.", strings::setrange),
    plain(Server, "shutdown", -1, ADMIN.and(Flags::ALLOW_BUSY).and(Flags::NO_MULTI), "1.0.0", "Stops the server.", server::shutdown),
    parent(Server, "slowlog", "2.2.12", "Commands about the commands that took long.", SLOWLOG),
    string("strlen", 2, READ.and(FAST), Keys::FIRST, "2.2.0", "Returns the length of the value of a key.", strings::strlen),
    string("substr", 4, READ, Keys::FIRST, "1.0.0", "An older name of GETRANGE.", strings::getrange),
    plain(Server, "time", 1, ALWAYS.and(FAST), "2.6.0", "Returns the time as seconds and microseconds since 1970.", server::time),
    generic("touch", -2, READ.and(FAST), Keys::ALL, "3.2.1", "Counts how many of the keys are present: reads leave no trace on keys here.", many::exists),
    generic("ttl", 2, READ.and(FAST), Keys::FIRST, "1.0.0", "Returns after how many seconds a key expires.", expiry::ttl),
    generic("type", 2, READ.and(FAST), Keys::FIRST, "1.0.0", "Returns the kind of a key's value.", keys::kind),
    generic("unlink", -2, WRITE.and(FAST), Keys::ALL, "4.0.0", "Removes keys.", many::del),
    plain(Transactions, "unwatch", 1, SESSION.and(FAST).and(Flags::ALLOW_BUSY), "2.2.0", "Watches no key any more.", transaction::unwatch),
    line(Transactions, "watch", -2, AT_ONCE, Keys::ALL, "2.2.0", "Has EXEC do nothing if a key changes until then.", transaction::watch),
];

#[rustfmt::skip]
const CLIENT: &[Spec] = &[
    plain(Connection, "client|getname", 2, SESSION, "2.6.9", "Returns the connection's name.", client::getname),
    plain(Connection, "client|help", 2, ALWAYS, "5.0.0", "Lists the subcommands.", introspection::help),
    plain(Connection, "client|id", 2, SESSION, "5.0.0", "Returns the connection's number.", client::id),
    plain(Connection, "client|info", 2, SESSION, "6.2.0", "Describes the connection.", client::info),
    plain(Connection, "client|kill", -3, ADMIN, "2.4.0", "Closes connections.", client::kill),
    plain(Connection, "client|list", -2, ADMIN, "2.4.0", "Describes connections.", client::list),
    plain(Connection, "client|no-evict", 3, ADMIN, "7.0.0", "Accepted: connections are not evicted here.", client::on_or_off),
    plain(Connection, "client|no-touch", 3, SESSION, "7.2.0", "Accepted: reads leave no trace on keys here.", client::on_or_off),
    plain(Connection, "client|reply", 3, SESSION, "3.2.0", "Says whether the connection wants replies.", client::reply),
    plain(Connection, "client|setinfo", 4, SESSION, "7.2.0", "Names the client library and its version.", client::setinfo),
    plain(Connection, "client|setname", 3, SESSION, "2.6.9", "Names the connection.", client::setname),
];

#[rustfmt::skip]
const COMMAND: &[Spec] = &[
    plain(Connection, "command|count", 2, ALWAYS, "2.8.13", "Counts the commands.", introspection::count),
    plain(Connection, "command|docs", -2, ALWAYS, "7.0.0", "Documents commands.", introspection::docs),
    plain(Connection, "command|getkeys", -4, ALWAYS, "2.8.13", "Returns the keys of a command line.", introspection::getkeys),
    plain(Connection, "command|help", 2, ALWAYS, "5.0.0", "Lists the subcommands.", introspection::help),
    plain(Connection, "command|info", -2, ALWAYS, "2.8.13", "Describes commands.", introspection::info),
    plain(Connection, "command|list", -2, ALWAYS, "7.0.0", "Names the commands.", introspection::list),
];

#[rustfmt::skip]
const CONFIG: &[Spec] = &[
    plain(Server, "config|get", -3, ADMIN, "2.0.0", "Returns settings.", config::get),
    plain(Server, "config|help", 2, ALWAYS, "5.0.0", "Lists the subcommands.", introspection::help),
    plain(Server, "config|resetstat", 2, ADMIN, "2.0.0", "Sets the counters of INFO to zero.", config::resetstat),
    plain(Server, "config|set", -4, ADMIN, "2.0.0", "Changes settings.", config::set),
];

#[rustfmt::skip]
const MEMORY: &[Spec] = &[
    plain(Server, "memory|help", 2, ALWAYS, "5.0.0", "Lists the subcommands.", introspection::help),
    plain(Server, "memory|purge", 2, SAVE, "4.0.0", "Makes the pool as small as what it holds, in the background.", memory::purge),
    line(Server, "memory|usage", -3, READ, Keys::SECOND, "4.0.0", "Returns how many bytes a key takes in the pool.", memory::usage),
];

#[rustfmt::skip]
const SCRIPT: &[Spec] = &[
    plain(Scripting, "script|exists", -3, Flags::NOSCRIPT, "2.6.0", "Says which scripts the server knows.", scripting::exists),
    plain(Scripting, "script|flush", -2, Flags::NOSCRIPT, "2.6.0", "Forgets all scripts.", scripting::flush),
    plain(Scripting, "script|help", 2, ALWAYS, "5.0.0", "Lists the subcommands.", introspection::help),
    plain(Scripting, "script|load", 3, Flags::NOSCRIPT.and(Flags::STALE), "2.6.0", "Has the server know a script.", scripting::load),
];

#[rustfmt::skip]
const SLOWLOG: &[Spec] = &[
    plain(Server, "slowlog|get", -2, ADMIN, "2.2.12", "Returns the last commands that took long.", slowlog::get),
    plain(Server, "slowlog|help", 2, ALWAYS, "6.2.0", "Lists the subcommands.", introspection::help),
    plain(Server, "slowlog|len", 2, ADMIN, "2.2.12", "Counts the commands that are kept.", slowlog::len),
    plain(Server, "slowlog|reset", 2, ADMIN, "2.2.12", "Forgets them.", slowlog::reset),
];

#[rustfmt::skip]
const OBJECT: &[Spec] = &[
    generic("object|encoding", 3, READ, Keys::SECOND, "2.2.3", "Returns how Redis would keep the value.", keys::encoding),
    generic("object|help", 2, ALWAYS, Keys::NONE, "6.2.0", "Lists the subcommands.", introspection::help),
];
