//! The allocator's options: [`Config`]. A value of it is always valid.
//!
//! `definition.rs` has the options, their defaults and their meaning. Setters and validation:
//! `setters.rs`, `pinned.rs` (pinned host memory), `value.rs`.
//!
//! PyTorch's configuration string becomes a `Config` in `parse.rs` and, option by option, `options.rs` (with the state in
//! `parser.rs`); `reader.rs` reads typed values, `tokens.rs` splits words and `numbers.rs` parses numbers as C does.
//! `keys.rs` has the names, `roundup.rs` the one option with its own syntax, `error.rs`, `warning.rs` and
//! `place.rs` the errors and warnings. `render.rs` writes a `Config` as a string.

mod definition;
mod error;
mod keys;
mod numbers;
mod options;
mod parse;
mod parser;
mod pinned;
mod place;
mod reader;
mod render;
mod roundup;
mod setters;
mod tokens;
mod value;
mod warning;

pub use definition::Config;
pub use error::{ConfigError, ConfigProblem, InvalidOption};
pub use parse::Parsed;
pub use pinned::PinnedConfig;
pub use render::Setting;
pub use value::{CaptureTest, Reserve, RoundupRest, TieOrder};
pub use warning::{ConfigWarning, NotApplicable, WarningKind};
