//! A value in the `allocator_settings` of a PyTorch snapshot: [`Setting`].

/// A value of [`Config::allocator_settings`](crate::Config::allocator_settings).
///
/// ```
/// # use plimsoll_alloc::{Config, Setting};
/// let settings = Config::default().allocator_settings("");
/// assert!(settings.contains(&("expandable_segments", Setting::Switch(false))));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Setting {
    /// A string.
    Text(String),
    /// An integer.
    Integer(i64),
    /// A floating-point number.
    Real(f64),
    /// A boolean.
    Switch(bool),
    /// Integers by size; the size is a number of MiB, as a string.
    BySize(Vec<(String, i64)>),
}
