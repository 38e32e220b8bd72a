//! The configuration string: [`Config::parse`] and [`Config::apply`], and the loop that reads the
//! options. Each option is in `options.rs`.
//!
//! It accepts exactly the strings that PyTorch 2.15 accepts, with the same values; `tests/config.rs` compares
//! several hundred strings. One difference is intended: a rejected string changes nothing. PyTorch
//! applies the part before the error, and does not reset the options that the string would have reset.
//!
//! Note [Two passes]: PyTorch looks for `large_segment_size_mb` among all words, even inside values, then
//! parses the string once for the options of every accelerator and once for those of CUDA. Each pass skips
//! the other's values unparsed. The two passes can split an odd string differently,
//! and then the second rejects what the first accepted; so we parse twice as well.

use std::collections::BTreeSet;

use super::definition::Config;
use super::error::ConfigError;
use super::keys;
use super::parser::Parser;
use super::reader::{Named, Reader};
use super::warning::{ConfigWarning, NotApplicable, WarningKind};

/// A parsed configuration string.
///
/// ```
/// # use plimsoll_alloc::Config;
/// let parsed = Config::parse("max_split_size_mb:40MB,pinned_num_register_threads:8")?;
/// assert_eq!(parsed.config.max_split_bytes(), Some(40 << 20));
/// assert_eq!(parsed.warnings[0].slip().to_string(), "read as 40; the rest is ignored");
/// assert_eq!(parsed.not_applicable[0].option(), "pinned_num_register_threads");
/// # Ok::<(), plimsoll_alloc::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// The options.
    pub config: Config,
    /// Likely mistakes, in the order of the string.
    pub warnings: Vec<ConfigWarning>,
    /// The options that have no effect here, in the order of the string.
    pub not_applicable: Vec<NotApplicable>,
}

/// When a string is parsed: this decides which backend names are valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Start,
    RunTime,
}

impl Config {
    /// Parses `text` as PyTorch 2.15 parses `PYTORCH_ALLOC_CONF` when a process starts.
    ///
    /// ```
    /// # use plimsoll_alloc::Config;
    /// let parsed = Config::parse("max_split_size_mb:128, roundup_power2_divisions:[256:1,>:4]")?;
    /// assert_eq!(parsed.config.max_split_bytes(), Some(128 << 20));
    /// assert_eq!(parsed.config.roundup_power2_divisions()[8..10], [1, 4]);
    /// # Ok::<(), plimsoll_alloc::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError`] where PyTorch rejects it.
    pub fn parse(text: &str) -> Result<Parsed, ConfigError> {
        Self::default().read(text, Moment::Start)
    }

    /// The options after `text` is applied at run time.
    ///
    /// These options are reset to their defaults unless `text` sets them: `max_split_size_mb`,
    /// `max_non_split_rounding_mb` (to the size of a large segment), `garbage_collection_threshold`,
    /// `roundup_power2_divisions`. The others keep their values. As PyTorch: `setAllocatorSettings`.
    ///
    /// ```
    /// # use plimsoll_alloc::Config;
    /// let config = Config::parse("max_split_size_mb:128,expandable_segments:True")?.config;
    /// assert_eq!(config.apply("")?.config.to_string(), "expandable_segments:True");
    /// # Ok::<(), plimsoll_alloc::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError`] where PyTorch rejects it. Nothing changes then; in PyTorch the part before the
    /// error is applied.
    pub fn apply(&self, text: &str) -> Result<Parsed, ConfigError> {
        self.clone().read(text, Moment::RunTime)
    }

    fn read(self, text: &str, moment: Moment) -> Result<Parsed, ConfigError> {
        let fresh = Self::default();
        let config = Self {
            max_split_bytes: fresh.max_split_bytes,
            garbage_collection_threshold: fresh.garbage_collection_threshold,
            roundup_power2_divisions: fresh.roundup_power2_divisions,
            max_non_split_rounding_bytes: self.large_segment_bytes,
            ..self
        };
        let backend = (moment == Moment::RunTime).then(|| keys::NATIVE.to_owned());
        let mut parser = Parser { reader: Reader::new(text), config, not_applicable: Vec::new(), backend };
        parser.large_segment()?;
        let names = parser.reading(Parser::common)?;
        parser.reading(Parser::of_cuda)?;
        parser.look_at_names(&names);
        let Parser { reader, config, mut not_applicable, .. } = parser;
        not_applicable.sort_by_key(NotApplicable::offset); // of two passes
        Ok(Parsed { config, warnings: reader.into_warnings(), not_applicable })
    }
}

/// Parses a string: Note [Two passes].
impl Parser {
    /// The size of a large segment bounds other options, so it is read first; the last one counts.
    fn large_segment(&mut self) -> Result<(), ConfigError> {
        for at in 0..self.reader.len() {
            if self.reader.word(at) == Some(keys::LARGE_SEGMENT) {
                let option = Named { at };
                let value_at = self.reader.value_at(option, at)?;
                let bytes = self.reader.mebibytes(option, value_at)?;
                self.set(option, |config| config.with_large_segment_bytes(bytes))?;
            }
        }
        Ok(())
    }

    /// One pass: `read` parses an option and returns where its value ends. Returns the positions of the options.
    fn reading(
        &mut self,
        read: impl Fn(&mut Self, Named) -> Result<usize, ConfigError>,
    ) -> Result<Vec<Named>, ConfigError> {
        let (mut at, mut names) = (0, Vec::new());
        while at < self.reader.len() {
            let option = Named { at };
            names.push(option);
            let end = read(self, option)?;
            at = self.reader.after(end);
        }
        Ok(names)
    }

    /// Warns about options that are set twice, or inside another option's value.
    fn look_at_names(&mut self, names: &[Named]) {
        let mut seen = BTreeSet::new();
        let again = |option: &&Named| !seen.insert(self.reader.word(option.at));
        let repeated: Vec<Named> = names.iter().filter(again).copied().collect();
        for option in repeated {
            self.reader.warn(option.at, WarningKind::SetAgain);
        }
        for at in 0..self.reader.len() {
            let is_name = || names.binary_search_by_key(&at, |option| option.at).is_ok();
            if self.reader.word(at) == Some(keys::LARGE_SEGMENT) && !is_name() {
                self.reader.warn(at, WarningKind::HeededInsideAValue);
            }
        }
    }
}
