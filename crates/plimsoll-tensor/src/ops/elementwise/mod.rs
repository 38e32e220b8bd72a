//! Elementwise functions: tables whose rows are operators, and other elementwise operations.
//!
//! | file | contents |
//! |---|---|
//! | `real` | the numeric trait in which the rows of the tables are written |
//! | `traced` | evaluates a row's expression as tensor operations, or as source code for a GPU's compiler |
//! | `dual` | evaluates a row's derivative with respect to one of its inputs |
//! | `slope` | the derivatives of the tables' gradients |
//! | `operands` | broadcasting and ordering the operands of elementwise operators |
//! | `unary` | the table of functions of one element |
//! | `functions` | its most common rows, and sums and products with a number |
//! | `math` | mathematical functions |
//! | `hyperbolic` | hyperbolic functions and more exponentials |
//! | `special` | functions of probability theory |
//! | `gamma` | the digamma function, and polynomials |
//! | `activations` | activation functions |
//! | `thresholds` | activations with a threshold |
//! | `activation_backward` | the gradient of an activation together with its recomputed values |
//! | `gradient_in_place` | gradients computed in place over the incoming gradient |
//! | `binary` | the table of functions of two elements |
//! | `pairs` | its rows |
//! | `signs` | the operators `+ - * /`, `& \| ^`, `-x` and `!x` |
//! | `division` | rounding division and its remainders |
//! | `combine` | operations on three tensors in one pass |
//! | `scalars` | sums and products with a number, in place |
//! | `in_place` | changes in place |
//! | `bitwise` | bitwise operations on integers |
//! | `logical` | logical operations, `all`, `any` and counts |
//! | `compare` | comparisons with a number, and predicates such as `isnan` |
//! | `close` | exact and approximate equality of tensors |

pub(super) mod activation_backward;
pub(super) mod activations;
pub(super) mod binary;
pub(super) mod bitwise;
pub(super) mod close;
pub(super) mod combine;
pub(super) mod compare;
pub(super) mod division;
pub(super) mod dual;
pub(super) mod functions;
pub(super) mod gamma;
pub(super) mod gradient_in_place;
pub(super) mod hyperbolic;
pub(super) mod in_place;
pub(super) mod logical;
pub(super) mod math;
pub(super) mod operands;
pub(super) mod pairs;
pub(super) mod real;
pub(super) mod scalars;
pub(super) mod signs;
pub(super) mod slope;
pub(super) mod special;
pub(super) mod thresholds;
pub(super) mod traced;
pub(super) mod unary;

/// The conformance suite's cases for these operators, by file.
pub(super) static CASES: &[(&str, crate::suite::Cases)] = &[
    ("activations", activations::cases),
    ("combine", combine::cases),
    ("compare", compare::cases),
    ("division", division::cases),
    ("functions", functions::cases),
    ("hyperbolic", hyperbolic::cases),
    ("in_place", in_place::cases),
    ("logical", logical::cases),
    ("math", math::cases),
    ("pairs", pairs::cases),
    ("scalars", scalars::cases),
    ("special", special::cases),
    ("thresholds", thresholds::cases),
];
