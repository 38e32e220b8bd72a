//! A value of `allocator_settings`: [`Setting`].

/// A setting's value.
#[derive(Debug, Clone, PartialEq)]
pub enum Setting {
    /// Python's `None`.
    None,
    /// A switch.
    Bool(bool),
    /// A count, bytes as a rule; -1 for no limit.
    Int(i64),
    /// A fraction.
    Float(f64),
    /// `PYTORCH_CUDA_ALLOC_CONF` as it was given.
    Text(String),
    /// Settings by name: `roundup_power2_divisions` by interval.
    Map(Vec<(String, Setting)>),
}
