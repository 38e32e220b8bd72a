//! Selecting elements by index, by condition and by order.
//!
//! | file | contents |
//! |---|---|
//! | `indices` | code that operators with an index share |
//! | `index` | indexing with several indices at once |
//! | `index_select` | slices along a dimension by a vector of indices, and rows of an embedding table |
//! | `gather` | elements by one index per output |
//! | `scattered` | the variants of operators that write at an index |
//! | `scatter_value` | writing one value at an index |
//! | `scatter` | writing or adding elements at an index |
//! | `scatter_reduce` | reducing elements at an index |
//! | `masked` | elements by a condition |
//! | `selection` | elements by position or by value |
//! | `one_hot` | classes as one-hot vectors |
//! | `sort` | sorting, and the largest or smallest elements |
//! | `search` | where values belong in sorted rows |
//! | `count` | positions and counts of values |

pub(super) mod count;
pub(super) mod gather;
pub(super) mod index;
pub(super) mod index_select;
pub(super) mod indices;
pub(super) mod masked;
pub(super) mod one_hot;
pub(super) mod scatter;
pub(super) mod scatter_reduce;
pub(super) mod scatter_value;
pub(super) mod scattered;
pub(super) mod search;
pub(super) mod selection;
pub(super) mod sort;

/// The conformance suite's cases for these operators, by file.
pub(super) static CASES: &[(&str, crate::suite::Cases)] = &[
    ("count", count::cases),
    ("gather", gather::cases),
    ("index_select", index_select::cases),
    ("masked", masked::cases),
    ("one_hot", one_hot::cases),
    ("scatter", scatter::cases),
    ("scatter_reduce", scatter_reduce::cases),
    ("search", search::cases),
    ("sort", sort::cases),
];
