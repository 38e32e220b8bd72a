//! The compile caches that a process would use again: [`CompileCaches`].

use serde::Deserialize;

/// The caches that a process's compiler would use again, as `watch.py` reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub(crate) struct CompileCaches {
    /// Whether AOTAutograd caches its graphs, and could cache all of them.
    pub(crate) autograd: bool,
    /// Whether Inductor caches its graphs, and could cache all of them.
    pub(crate) graphs: bool,
    /// Whether the results of timing kernels are cached.
    pub(crate) timings: bool,
}
