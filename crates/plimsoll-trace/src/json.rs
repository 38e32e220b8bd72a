//! Reads a snapshot from JSON ([`read`]): the same dictionaries and lists, passed on as `serde_json` reads them.

use std::fmt;
use std::io::Read;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::error::{SnapshotError, Why};
use crate::grant::Grant;
use crate::pickle::{Builder, Slot};
use crate::snapshot::Snapshot;
use crate::torch::objects::Objects;
use crate::torch::value::Value;

/// The number of items that are collected before they are appended to their list, as in Python's pickles.
const BATCH: usize = 1000;
/// The memory use is checked each time this many containers have been read.
const ACCOUNT_EVERY: u64 = 4096;

/// Reads JSON to its end.
///
/// # Errors
/// If the text is not JSON, or not a snapshot.
pub(crate) fn read(input: impl Read, grant: &Grant) -> Result<Snapshot, SnapshotError> {
    let mut objects = Objects::new(grant).map_err(|why| SnapshotError { at: None, why })?;
    let (mut refused, mut containers) = (None, 0);
    let mut json = serde_json::Deserializer::from_reader(grant.rationing(input));
    let node = Node { objects: &mut objects, refused: &mut refused, containers: &mut containers };
    let read = node.deserialize(&mut json).and_then(|top| json.end().map(|()| top));
    match (read, refused) {
        (Ok(top), _) => objects.assemble(top),
        (Err(at), Some(why)) => Err(Why::InJson { line: at.line(), column: at.column(), why: Box::new(why) }),
        (Err(why), None) => Err(Why::Json(why)),
    }
    .map_err(|why| SnapshotError { at: None, why })
}

/// One value in the JSON text.
struct Node<'a> {
    objects: &'a mut Objects,
    /// The error that [`Objects`] returned, which serde's own error type cannot contain.
    refused: &'a mut Option<Why>,
    containers: &'a mut u64,
}

impl Node<'_> {
    fn child(&mut self) -> Node<'_> {
        Node { objects: self.objects, refused: self.refused, containers: self.containers }
    }

    fn kept<T, E: Error>(&mut self, made: Result<T, Why>) -> Result<T, E> {
        made.map_err(|why| {
            *self.refused = Some(why);
            E::custom("refused")
        })
    }

    fn account(&mut self) -> Result<(), Why> {
        *self.containers += 1;
        if self.containers.is_multiple_of(ACCOUNT_EVERY) {
            self.objects.account(0)?;
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of a memory snapshot")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::None)
    }

    fn visit_bool<E>(self, on: bool) -> Result<Value, E> {
        Ok(Value::Bool(on))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Int(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(i64::try_from(number).map_or(Value::Big(number), Value::Int))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Float(number))
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<Value, E> {
        let text = self.objects.text(text.as_bytes());
        self.kept(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Value::EmptyList(Slot::NONE);
        let mut batch = Vec::new();
        loop {
            let item = items.next_element_seed(self.child())?;
            batch.extend(item);
            if item.is_none() || batch.len() == BATCH {
                let added = self.objects.append(list, &batch).and_then(|list| self.account().map(|()| list));
                list = self.kept(added)?;
                batch.clear();
            }
            if item.is_none() {
                return Ok(list);
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut pairs: A) -> Result<Value, A::Error> {
        let mut dict = Value::EmptyDict(Slot::NONE);
        let mut batch = Vec::new();
        loop {
            let key = pairs.next_key_seed(self.child())?;
            if let Some(key) = key {
                batch.extend([key, pairs.next_value_seed(self.child())?]);
            }
            if !batch.is_empty() && (key.is_none() || batch.len() == 2 * BATCH) {
                let set = self.objects.set(dict, &batch).and_then(|dict| self.account().map(|()| dict));
                dict = self.kept(set)?;
                batch.clear();
            }
            if key.is_none() {
                return Ok(dict);
            }
        }
    }
}
