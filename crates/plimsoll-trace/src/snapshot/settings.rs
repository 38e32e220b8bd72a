//! A value of `allocator_settings`: [`Setting`].

/// A setting's value.
#[derive(Debug, Clone, PartialEq)]
pub enum Setting {
    /// Python's `None`.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer, usually a number of bytes; -1 means no limit.
    Int(i64),
    /// A fraction.
    Float(f64),
    /// A string, such as `PYTORCH_CUDA_ALLOC_CONF` as it was set.
    Text(String),
    /// Settings by name: `roundup_power2_divisions` by interval.
    Map(Vec<(String, Setting)>),
}
