//! Functions of each element: tables whose rows are operators, and what else changes elements one by one.
//!
//! | file | what it has |
//! |---|---|
//! | `real` | real numbers, in which the rows of the tables are written |
//! | `traced` | two more readings of a row's expression: operations on tensors, and text for a GPU's compiler |
//! | `dual` | one more: its derivative by one of its inputs |
//! | `slope` | the derivative of a gradient of the tables |
//! | `operands` | how operands are laid beside each other |
//! | `unary` | the table of functions of one element |
//! | `functions` | its commonest rows, and sums and products with a number |
//! | `math` | mathematical functions |
//! | `hyperbolic` | hyperbolic functions and further exponentials |
//! | `special` | functions of probability theory |
//! | `gamma` | the derivative of the logarithm of the gamma function, and polynomials |
//! | `activations` | activation functions |
//! | `thresholds` | activations with a threshold |
//! | `activation_backward` | the gradient of an activation together with its values, which are computed again |
//! | `gradient_in_place` | the gradient written over the gradient that it is made from |
//! | `binary` | the table of functions of two elements |
//! | `pairs` | its rows; the signs `+ - * /` |
//! | `division` | division that rounds, and what it leaves |
//! | `combine` | three tensors in one pass |
//! | `scalars` | sums and products with a number, in place |
//! | `in_place` | changes in place |
//! | `bitwise` | operations on the bits of whole numbers |
//! | `logical` | logic on conditions, and how many hold |
//! | `compare` | comparisons with a number, and tests of numbers |
//! | `close` | whether tensors are equal, or nearly |

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
pub(super) mod slope;
pub(super) mod special;
pub(super) mod thresholds;
pub(super) mod traced;
pub(super) mod unary;

/// What the suite runs of the operators here, by their files.
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
