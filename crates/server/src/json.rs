//! `cjson.decode` of scripts. (`cjson.encode` is in `script.lua`.)

use crate::script::is_over;
use mlua::{Lua, Table, Value};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// The value of Lua for a text in JSON. Nothing is kept outside of the interpreter, whose memory is limited.
///
/// # Errors
/// Why it is none, or cannot be made.
pub(crate) fn decode(lua: &Lua, text: &[u8]) -> Result<Value, String> {
    let mut parser = serde_json::Deserializer::from_slice(text);
    let value = Made(lua).deserialize(&mut parser).and_then(|value| parser.end().map(|()| value));
    value.map_err(|error| error.to_string())
}

/// What parts of a text are made into.
#[derive(Clone, Copy)]
struct Made<'l>(&'l Lua);

impl Made<'_> {
    fn table<E: Error>(self) -> Result<Table, E> {
        if is_over() { Err(E::custom("the time of the script is over")) } else { self.0.create_table().map_err(E::custom) }
    }
}

impl<'de> DeserializeSeed<'de> for Made<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Made<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::NULL)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Boolean(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value as f64))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value as f64))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Number(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.0.create_string(value).map(Value::String).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let (table, mut place) = (self.table()?, 1);
        while let Some(element) = elements.next_element_seed(self)? {
            table.raw_set(place, element).map_err(A::Error::custom)?;
            place += 1;
        }
        Ok(Value::Table(table))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let table = self.table()?;
        while let Some(name) = fields.next_key::<Cow<'_, str>>()? {
            table.raw_set(&*name, fields.next_value_seed(self)?).map_err(A::Error::custom)?;
        }
        Ok(Value::Table(table))
    }
}
