//! A descriptor of cuDNN's graph API: its attributes, and the facts about it ([`Known`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::convolution::Convolution;
use crate::argument::little_endian;
use crate::planner::wire::{Attribute, DESCRIPTOR, Engine};

/// `cudnnBackendAttributeType_t`: the type of an attribute's values.
pub(super) mod kind {
    pub(in crate::dnn) const HANDLE: i32 = 0;
    pub(in crate::dnn) const BOOLEAN: i32 = 2;
    pub(in crate::dnn) const INT64: i32 = 3;
    pub(in crate::dnn) const DOUBLE: i32 = 5;
    pub(in crate::dnn) const VOID_PTR: i32 = 6;
    pub(in crate::dnn) const NUMERICAL_NOTE: i32 = 11;
    pub(in crate::dnn) const BEHAVIOR_NOTE: i32 = 19;
    pub(in crate::dnn) const INT32: i32 = 23;
    pub(in crate::dnn) const CHAR: i32 = 24;
    pub(in crate::dnn) const FRACTION: i32 = 26;
}

/// The facts about a descriptor.
#[derive(Debug, Default, Clone)]
pub(super) enum Known {
    #[default]
    Nothing,
    /// Its convolution, for the model.
    Modelled(Convolution),
    /// The ID of the planner's heuristics result.
    Found { heuristics: u64, engines: Vec<Engine>, is_convolution: bool },
    /// A configuration of that result, by index.
    Chosen { heuristics: u64, place: u64, engine: Engine, is_convolution: bool },
    /// A cuDNN plan's workspace bytes.
    Planned(i64),
}

/// A descriptor's attributes. Referenced descriptors are stored in the state that they had when the attribute was set,
/// because PyTorch destroys a tensor's descriptor as soon as the operation refers to it.
#[derive(Debug, Default, Clone)]
pub(super) struct Descriptor {
    pub(super) kind: i32,
    /// By attribute name. References to other descriptors are in `children`.
    pub(super) attributes: BTreeMap<i32, Attribute>,
    /// By attribute name.
    pub(super) children: BTreeMap<i32, Vec<Arc<Descriptor>>>,
    pub(super) known: Known,
}

impl Descriptor {
    /// The first descriptor that an attribute refers to.
    pub(super) fn child(&self, name: i32) -> Option<&Descriptor> {
        self.children.get(&name)?.first().map(Arc::as_ref)
    }

    /// The values of an integer attribute.
    pub(super) fn numbers(&self, name: i32) -> Option<Vec<i64>> {
        let attribute = self.attributes.get(&name)?;
        Some(attribute.bytes.chunks(value_bytes(attribute.kind)).map(little_endian).collect())
    }
}

/// Bytes per value.
pub(super) fn value_bytes(kind: i32) -> usize {
    match kind {
        kind::HANDLE | kind::INT64 | kind::DOUBLE | kind::VOID_PTR | DESCRIPTOR => 8,
        kind::BOOLEAN | kind::CHAR => 1,
        kind::FRACTION => 16,
        // Floats, enumerations and `INT32`.
        _ => 4,
    }
}
