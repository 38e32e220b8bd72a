//! The allocator's options: [`Config`]. A value of it is always valid.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `place.rs`, `value.rs`, `error.rs`, `warning.rs` | places in a string; types of values; errors and warnings |
//! | `setting.rs` | a value in a snapshot |
//! | `numbers.rs`, `tokens.rs`, `reader.rs` | numbers as C reads them; words; values from words |
//! | `roundup.rs`, `spelling.rs` | the one option with a special syntax; misspelt names |
//! | `fields.rs`, `row.rs` | the definition of an option: a field with its setter; a row of the configuration string |
//! | `pinned.rs`, `options.rs` | the options: meaning, defaults and bounds |
//! | `parse.rs`, `render.rs` | converting PyTorch's configuration string to a `Config`, and back |
//! | `answers.rs` | a test that compares the parser with PyTorch's |

#[cfg(test)]
mod answers;
mod error;
mod fields;
mod numbers;
mod options;
mod parse;
mod pinned;
mod place;
mod reader;
mod render;
mod roundup;
mod row;
mod setting;
mod spelling;
mod tokens;
mod value;
mod warning;

pub use error::{ConfigError, ConfigProblem, InvalidOption};
pub use options::Config;
pub use parse::Parsed;
pub use pinned::PinnedConfig;
pub use setting::Setting;
pub use value::{CaptureTest, Reserve, RoundupRest, TieOrder};
pub use warning::{ConfigWarning, NotApplicable, WarningKind};
