//! COMMAND: the table of commands for clients.

use super::config::is_like;
use super::{Call, Failure};
use crate::command::{Arguments, Flags, Keys, Spec, TABLE, lookup};
use crate::reply::Reply;

/// A command that only has subcommands, called without one. Its arity requires one, so this is never called.
pub(crate) fn no_subcommand(call: &mut Call<'_>) -> Result<(), Failure> {
    Err(Failure::arity(call.spec.name))
}

pub(crate) fn command(call: &mut Call<'_>) -> Result<(), Failure> {
    call.reply.array(TABLE.len());
    TABLE.iter().for_each(|spec| describe(call.reply, spec));
    Ok(())
}

pub(crate) fn count(call: &mut Call<'_>) -> Result<(), Failure> {
    call.reply.integer(TABLE.len() as i64);
    Ok(())
}

pub(crate) fn list(call: &mut Call<'_>) -> Result<(), Failure> {
    let mut names: Vec<&str> = TABLE.iter().flat_map(|spec| std::iter::once(spec).chain(spec.subcommands)).map(|spec| spec.name).collect();
    match call.arguments.len() {
        2 => names.retain(|name| !name.contains('|')),
        5 if call.arguments.is(2, "filterby") && call.arguments.is(3, "pattern") => {
            let mut chosen = Vec::new();
            for name in names {
                if is_like(name, call.argument(4))? {
                    chosen.push(name);
                }
            }
            names = chosen;
        }
        5 if call.arguments.is(2, "filterby") && call.arguments.is(3, "aclcat") => {
            let category = String::from_utf8_lossy(call.argument(4)).to_ascii_lowercase();
            names.retain(|name| find(name.as_bytes()).is_some_and(|spec| spec.categories().iter().any(|known| known[1..] == category)));
        }
        5 if call.arguments.is(2, "filterby") && call.arguments.is(3, "module") => names.clear(),
        _ => return Err(Failure::SYNTAX),
    }
    // As in Redis, only the full list is a set.
    if call.arguments.len() == 2 {
        call.reply.set(names.len())
    } else {
        call.reply.array(names.len())
    }
    names.iter().for_each(|name| call.reply.bulk(name.as_bytes()));
    Ok(())
}

/// A command or, as `parent|name`, a subcommand.
fn find(name: &[u8]) -> Option<&'static Spec> {
    match name.iter().position(|&byte| byte == b'|') {
        None => lookup(name),
        Some(bar) => lookup(&name[..bar])?.subcommand(&name[bar + 1..]),
    }
}

pub(crate) fn info(call: &mut Call<'_>) -> Result<(), Failure> {
    if call.arguments.len() == 2 {
        return command(call);
    }
    let names = call.few_from(2)?;
    call.reply.array(names.len());
    for name in names {
        match find(name) {
            Some(spec) => describe(call.reply, spec),
            None => call.reply.null(),
        }
    }
    Ok(())
}

/// An entry of COMMAND INFO.
fn describe(reply: &mut Reply, spec: &Spec) {
    reply.array(10);
    reply.bulk(spec.name.as_bytes());
    reply.integer(spec.arity);
    let flags: Vec<&str> = spec.flags.names().collect();
    simple_set(reply, &flags);
    reply.integer(spec.keys.first);
    reply.integer(spec.keys.last);
    reply.integer(spec.keys.step);
    simple_set(reply, &spec.categories());
    // Hints for clusters, which do not exist here.
    reply.array(0);
    key_specs(reply, spec);
    reply.array(spec.subcommands.len());
    spec.subcommands.iter().for_each(|subcommand| describe(reply, subcommand));
}

fn simple_set(reply: &mut Reply, names: &[&str]) {
    reply.set(names.len());
    names.iter().for_each(|name| reply.simple(name));
}

/// The positions of the keys, in the newer form: where they begin, and how many follow.
fn key_specs(reply: &mut Reply, spec: &Spec) {
    let Keys { first, last, step } = spec.keys;
    if first == 0 {
        return reply.array(0);
    }
    reply.array(1);
    reply.map(3);
    reply.bulk(b"flags");
    simple_set(reply, if spec.flags.contains(Flags::WRITE) { &["RW", "access", "update"] } else { &["RO", "access"] });
    reply.bulk(b"begin_search");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"index");
    reply.bulk(b"spec");
    reply.map(1);
    reply.bulk(b"index");
    reply.integer(first);
    reply.bulk(b"find_keys");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"range");
    reply.bulk(b"spec");
    reply.map(3);
    reply.bulk(b"lastkey");
    reply.integer(if last < 0 { last } else { last - first });
    reply.bulk(b"keystep");
    reply.integer(step);
    reply.bulk(b"limit");
    reply.integer(0);
}

pub(crate) fn docs(call: &mut Call<'_>) -> Result<(), Failure> {
    let chosen: Vec<&Spec> = match call.arguments.len() {
        2 => TABLE.iter().collect(),
        _ => call.few_from(2)?.filter_map(find).collect(),
    };
    document_all(call.reply, &chosen);
    Ok(())
}

fn document_all(reply: &mut Reply, chosen: &[&Spec]) {
    reply.map(chosen.len());
    for spec in chosen {
        reply.bulk(spec.name.as_bytes());
        reply.map(if spec.subcommands.is_empty() { 3 } else { 4 });
        for (field, text) in [("summary", spec.summary), ("since", spec.since), ("group", spec.group.name())] {
            reply.bulk(field.as_bytes());
            reply.bulk(text.as_bytes());
        }
        if !spec.subcommands.is_empty() {
            reply.bulk(b"subcommands");
            document_all(reply, &spec.subcommands.iter().collect::<Vec<_>>());
        }
    }
}

pub(crate) fn getkeys(call: &mut Call<'_>) -> Result<(), Failure> {
    let arguments: Vec<&[u8]> = call.arguments.from(2).collect();
    let spec = find_called(call.arguments).ok_or(Failure::fixed("ERR Invalid command specified"))?;
    if spec.keys.first == 0 {
        return Err(Failure::fixed("ERR The command has no key arguments"));
    }
    if !spec.accepts(arguments.len()) {
        return Err(Failure::fixed("ERR Invalid number of arguments specified for command"));
    }
    let last = if spec.keys.last < 0 { arguments.len() as i64 + spec.keys.last } else { spec.keys.last };
    let keys: Vec<&[u8]> = (spec.keys.first..=last).step_by(spec.keys.step as usize).filter_map(|index| arguments.get(index as usize).copied()).collect();
    call.reply.array(keys.len());
    keys.iter().for_each(|key| call.reply.bulk(key));
    Ok(())
}

/// The command that `arguments`, from the third on, call.
fn find_called(arguments: Arguments<'_>) -> Option<&'static Spec> {
    let spec = lookup(arguments.get(2)?)?;
    if spec.subcommands.is_empty() { Some(spec) } else { spec.subcommand(arguments.get(3)?) }
}

/// HELP of any command with subcommands.
pub(crate) fn help(call: &mut Call<'_>) -> Result<(), Failure> {
    let parent = call.spec.name.split('|').next().and_then(|name| lookup(name.as_bytes())).ok_or(Failure::SYNTAX)?;
    call.reply.array(1 + 2 * parent.subcommands.len());
    call.reply.simple(&format!("{} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:", parent.name.to_uppercase()));
    for subcommand in parent.subcommands {
        call.reply.simple(&subcommand.short_name().to_uppercase());
        call.reply.simple(&format!("    {}", subcommand.summary));
    }
    Ok(())
}
