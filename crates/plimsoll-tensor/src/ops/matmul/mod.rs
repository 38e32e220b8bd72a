//! Products of matrices, and distances of vectors.
//!
//! | file | what it has |
//! |---|---|
//! | `batched` | matrix products, batched and broadcast |
//! | `products` | products under the names that say which, and a product added to a tensor |
//! | `short_products` | products of 16-bit floats on the host |
//! | `tensordot` | products composed of others |
//! | `einsum` | sums of products in Einstein's notation |
//! | `linear` | the layer's product with its bias |
//! | `activation_linear` | a linear layer with an activation before or after it |
//! | `swiglu_linear` | the second half of a gated perceptron |
//! | `cdist` | distances of every pair of two sets of vectors |
//! | `distances` | lengths, distances and angles of vectors, and the losses of metric learning |

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

/// What the suite runs of the operators here, by their files.
pub(super) static CASES: &[(&str, crate::suite::Cases)] = &[
    ("activation_linear", activation_linear::cases),
    ("cdist", cdist::cases),
    ("einsum", einsum::cases),
    ("linear", linear::cases),
    ("matmul", batched::cases),
    ("products", products::cases),
    ("swiglu_linear", swiglu_linear::cases),
];
