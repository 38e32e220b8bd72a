//! Matrix products, and distances of vectors.
//!
//! | file | contents |
//! |---|---|
//! | `batched` | matrix products, batched and broadcast |
//! | `products` | products by their specific names, and a product added to a tensor |
//! | `short_products` | products of 16-bit floats on the host |
//! | `tensordot` | products composed of other operations |
//! | `einsum` | sums of products in Einstein notation |
//! | `linear` | linear layers |
//! | `activation_linear` | linear layers fused with an activation before or after them |
//! | `swiglu_linear` | the second half of a gated feed-forward layer |
//! | `cdist` | distances between all pairs of vectors of two sets |
//! | `distances` | norms, distances and angles of vectors, and the losses of metric learning |

pub(super) mod activation_linear;
pub(super) mod batched;
pub(super) mod cdist;
pub(super) mod distances;
pub(super) mod einsum;
pub(super) mod linear;
pub(super) mod products;
pub(super) mod short_products;
pub(super) mod swiglu_linear;
pub(super) mod tensordot;

/// The conformance suite's cases for these operators, by file.
pub(super) static CASES: &[(&str, crate::suite::Cases)] = &[
    ("activation_linear", activation_linear::cases),
    ("cdist", cdist::cases),
    ("einsum", einsum::cases),
    ("linear", linear::cases),
    ("matmul", batched::cases),
    ("products", products::cases),
    ("swiglu_linear", swiglu_linear::cases),
];
