//! Memory categories: [`Category`], and a total per category, [`CategoryBytes`].
//!
//! The callers (dispatch, autograd, optimizers) decide which category a block has and when it changes. This file has
//! only the names and their order.

use std::fmt;
use std::ops::{Index, IndexMut};

/// The category of a block.
///
/// ```
/// # use plimsoll_alloc::Category;
/// assert_eq!(Category::OptimizerState.name(), "optimizer state");
/// assert_eq!(Category::ALL.len(), 9);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Category {
    /// A model's parameter.
    Parameter,
    /// Model state that is not trained, such as BatchNorm's statistics.
    Buffer,
    /// The gradient of a parameter.
    Gradient,
    /// State that an optimizer keeps between steps.
    OptimizerState,
    /// Saved by the forward pass for the backward pass.
    Activation,
    /// Everything else.
    #[default]
    Temporary,
    /// Scratch memory of one kernel.
    Workspace,
    /// A batch of data.
    Input,
    /// A result that the program keeps, such as the logits of the last step.
    Output,
}

impl Category {
    /// All categories, in the order in which tables list them.
    pub const ALL: [Self; 9] = [
        Self::Parameter,
        Self::Buffer,
        Self::Gradient,
        Self::OptimizerState,
        Self::Activation,
        Self::Temporary,
        Self::Workspace,
        Self::Input,
        Self::Output,
    ];

    /// The singular name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parameter => "parameter",
            Self::Buffer => "buffer",
            Self::Gradient => "gradient",
            Self::OptimizerState => "optimizer state",
            Self::Activation => "activation",
            Self::Temporary => "temporary",
            Self::Workspace => "workspace",
            Self::Input => "input",
            Self::Output => "output",
        }
    }

    /// The plural name, in lower case.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Parameter => "parameters",
            Self::Buffer => "buffers",
            Self::Gradient => "gradients",
            Self::OptimizerState => "optimizer state",
            Self::Activation => "activations",
            Self::Temporary => "temporaries",
            Self::Workspace => "workspaces",
            Self::Input => "inputs",
            Self::Output => "outputs",
        }
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Bytes for each category.
///
/// ```
/// # use plimsoll_alloc::{Category, CategoryBytes};
/// let mut bytes = CategoryBytes::default();
/// bytes[Category::Input] += 512;
/// bytes[Category::Gradient] += 1024;
/// assert_eq!(bytes.total(), 1536);
/// assert_eq!(bytes.iter().next(), Some((Category::Parameter, 0)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CategoryBytes([u64; Category::ALL.len()]);

impl CategoryBytes {
    /// Each category with its bytes, in the order of [`Category::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Category, u64)> + '_ {
        Category::ALL.into_iter().zip(self.0)
    }

    /// The sum over all categories, bytes.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl Index<Category> for CategoryBytes {
    type Output = u64;

    fn index(&self, category: Category) -> &u64 {
        &self.0[category as usize]
    }
}

impl IndexMut<Category> for CategoryBytes {
    fn index_mut(&mut self, category: Category) -> &mut u64 {
        &mut self.0[category as usize]
    }
}
