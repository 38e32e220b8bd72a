//! A graph of operations as plain data: a list of descriptions with attributes. Later descriptions refer to
//! earlier ones.
//!
//! The numbers are from `cudnn_graph.h`.

use std::ffi::c_int;

use crate::driver::Handle;
use crate::step::Float;

/// `cudnnBackendDescriptorType_t`, and the types from `cudnnBackendAttributeType_t` whose values are
/// enumerations.
pub(crate) mod kind {
    use std::ffi::c_int;

    pub(crate) const CONVOLUTION: c_int = 1;
    pub(crate) const ENGINE: c_int = 2;
    pub(crate) const CONFIGURATION: c_int = 3;
    pub(crate) const HEURISTICS: c_int = 4;
    pub(crate) const PLAN: c_int = 5;
    pub(crate) const CONVOLUTION_FORWARD: c_int = 10;
    pub(crate) const CONVOLUTION_TO_WEIGHT: c_int = 11;
    pub(crate) const CONVOLUTION_TO_INPUT: c_int = 12;
    pub(crate) const OPERATION_GRAPH: c_int = 15;
    pub(crate) const VARIANT_PACK: c_int = 16;
    pub(crate) const TENSOR: c_int = 17;

    pub(crate) const CONVOLUTION_MODE: c_int = 7;
    pub(crate) const HEURISTICS_MODE: c_int = 8;
}

/// `cudnnBackendAttributeName_t`.
pub(crate) mod attribute {
    use std::ffi::c_int;

    pub(crate) const CONVOLUTION_COMPUTE: c_int = 100;
    pub(crate) const CONVOLUTION_MODE: c_int = 101;
    pub(crate) const CONVOLUTION_DILATIONS: c_int = 102;
    pub(crate) const CONVOLUTION_STRIDES: c_int = 103;
    pub(crate) const CONVOLUTION_PADDING_AFTER: c_int = 104;
    pub(crate) const CONVOLUTION_PADDING_BEFORE: c_int = 105;
    pub(crate) const CONVOLUTION_RANK: c_int = 106;
    pub(crate) const HEURISTICS_MODE: c_int = 200;
    pub(crate) const HEURISTICS_GRAPH: c_int = 201;
    pub(crate) const HEURISTICS_RESULTS: c_int = 202;
    pub(crate) const CONFIGURATION_ENGINE: c_int = 300;
    pub(crate) const PLAN_HANDLE: c_int = 400;
    pub(crate) const PLAN_CONFIGURATION: c_int = 401;
    pub(crate) const PLAN_WORKSPACE: c_int = 402;
    /// The attributes of a pass: alpha, beta, the convolution, then its tensors.
    pub(crate) const FORWARD: c_int = 700;
    pub(crate) const TO_INPUT: c_int = 706;
    pub(crate) const TO_WEIGHT: c_int = 712;
    pub(crate) const GRAPH_HANDLE: c_int = 800;
    pub(crate) const GRAPH_OPERATIONS: c_int = 801;
    pub(crate) const TENSOR_ALIGNMENT: c_int = 900;
    pub(crate) const TENSOR_TYPE: c_int = 901;
    pub(crate) const TENSOR_SIZES: c_int = 902;
    pub(crate) const TENSOR_STRIDES: c_int = 903;
    pub(crate) const TENSOR_NUMBER: c_int = 906;
    pub(crate) const PACK_NUMBERS: c_int = 1000;
    pub(crate) const PACK_POINTERS: c_int = 1001;
    pub(crate) const PACK_WORKSPACE: c_int = 1003;
    pub(crate) const ENGINE_NUMERICAL_NOTES: c_int = 1303;
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// `CUDNN_TYPE_INT64`.
    Integers(Vec<i64>),
    /// `CUDNN_TYPE_FLOAT`.
    Float(f32),
    /// `CUDNN_TYPE_DOUBLE`.
    Double(f64),
    /// `CUDNN_TYPE_DATA_TYPE`.
    Type(Float),
    /// A value of an enumeration.
    Choice { kind: c_int, value: i64 },
    /// Earlier descriptions, by index.
    Descriptors(Vec<usize>),
    /// Addresses on the device.
    Addresses(Vec<u64>),
    /// The library's handle.
    Handle(Handle),
}

/// A descriptor to create.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Description {
    pub(crate) kind: c_int,
    pub(crate) attributes: Vec<(c_int, Value)>,
}

/// Descriptions of descriptors; the last one is the graph of operations.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Graph(Vec<Description>);

impl Graph {
    /// Adds a description; returns its index.
    pub(crate) fn add(&mut self, kind: c_int, attributes: Vec<(c_int, Value)>) -> usize {
        self.0.push(Description { kind, attributes });
        self.0.len() - 1
    }

    /// Adds a tensor, to which a run refers by its number.
    pub(crate) fn tensor(
        &mut self,
        number: i64,
        float: Float,
        sizes: &[i64],
        strides: &[i64],
        alignment: i64,
    ) -> usize {
        self.add(
            kind::TENSOR,
            vec![
                (attribute::TENSOR_TYPE, Value::Type(float)),
                (attribute::TENSOR_SIZES, Value::Integers(sizes.to_vec())),
                (attribute::TENSOR_STRIDES, Value::Integers(strides.to_vec())),
                (attribute::TENSOR_NUMBER, Value::Integers(vec![number])),
                (attribute::TENSOR_ALIGNMENT, Value::Integers(vec![alignment])),
            ],
        )
    }

    /// Finishes the graph with these operations.
    #[must_use]
    pub(crate) fn of(mut self, operations: Vec<usize>) -> Graph {
        self.add(kind::OPERATION_GRAPH, vec![(attribute::GRAPH_OPERATIONS, Value::Descriptors(operations))]);
        self
    }

    pub(crate) fn descriptions(&self) -> &[Description] {
        &self.0
    }
}
