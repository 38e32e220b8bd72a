//! Elements by index, by condition and by order.
//!
//! | file | what it has |
//! |---|---|
//! | `indices` | what operators with an index share |
//! | `index` | elements by several indices at once |
//! | `index_select` | slices along a dimension by a vector of indices, and the rows of a table of embeddings |
//! | `gather` | elements by an index for each output |
//! | `scattered` | what operators that write at an index are |
//! | `scatter` | elements written or added at an index |
//! | `scatter_reduce` | elements reduced at an index |
//! | `masked` | elements chosen by a condition |
//! | `selection` | elements chosen by place or by value |
//! | `one_hot` | classes as vectors of zeros with one 1 |
//! | `sort` | elements in order, and the first of them |
//! | `search` | where values belong in rows that are in order |
//! | `count` | where values are and how many there are |

pub(super) mod count;
pub(super) mod gather;
pub(super) mod index;
pub(super) mod index_select;
pub(super) mod indices;
pub(super) mod masked;
pub(super) mod one_hot;
pub(super) mod scatter;
pub(super) mod scatter_reduce;
pub(super) mod scattered;
pub(super) mod search;
pub(super) mod selection;
pub(super) mod sort;

/// What the suite runs of the operators here, by their files.
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
