//! The configuration string: [`Config::parse`] and [`Config::apply`], and the loop that reads the options.
//! Each option is a row of `options.rs`.
//!
//! It accepts exactly the strings that PyTorch 2.15 accepts, with the same values; `answers.rs` compares
//! several hundred strings. One difference is intended: a rejected string changes nothing. PyTorch
//! applies the part before the error, and does not reset the options that the string would have reset.
//!
//! Note [Two passes]: PyTorch looks for `large_segment_size_mb` among all words, even inside values, then
//! parses the string once for the options of every accelerator and once for those of CUDA. Each pass skips
//! the other's values unparsed. The two passes can split an odd string differently,
//! and then the second rejects what the first accepted; so we parse twice as well.

use std::collections::BTreeSet;

use super::error::{ConfigError, ConfigProblem};
use super::options::{self, Config, OPTIONS};
use super::reader::{NATIVE, Named, Reader};
use super::row::{Pass, Row};
use super::spelling::nearest;
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
    /// `roundup_power2_divisions`. The others keep their values. In PyTorch: `setAllocatorSettings`.
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
        let backend = (moment == Moment::RunTime).then(|| NATIVE.to_owned());
        let (mut reader, mut config) = (Reader::new(text, backend), self.reset());
        read_first(&mut reader, &mut config)?;
        let names = read_pass(&mut reader, &mut config, Pass::Accelerator)?;
        read_pass(&mut reader, &mut config, Pass::Cuda)?;
        look_at_names(&mut reader, &names);
        let (warnings, not_applicable) = reader.into_findings();
        Ok(Parsed { config, warnings, not_applicable })
    }
}

/// The option whose name is the word at `at`.
fn option_at(reader: &Reader, at: usize) -> Option<&'static Row<Config>> {
    reader.word(at).and_then(options::named)
}

/// Like [`option_at`], but only if the option is read before all others.
fn first_at(reader: &Reader, at: usize) -> Option<&'static Row<Config>> {
    option_at(reader, at).filter(|row| row.pass == Pass::First)
}

/// The size of a large segment bounds other options, so it is read first; the last one counts.
fn read_first(reader: &mut Reader, config: &mut Config) -> Result<(), ConfigError> {
    for at in 0..reader.len() {
        if let Some(row) = first_at(reader, at) {
            row.read(reader, config, Named { at })?;
        }
    }
    Ok(())
}

/// Reads the options of one pass, and skips the others. Returns the positions of all.
fn read_pass(reader: &mut Reader, config: &mut Config, pass: Pass) -> Result<Vec<Named>, ConfigError> {
    let (mut at, mut names) = (0, Vec::new());
    while at < reader.len() {
        let option = Named { at };
        names.push(option);
        let end = match option_at(reader, at) {
            Some(row) if row.pass == pass => row.read(reader, config, option)?,
            Some(_) => skip(reader, option)?,
            None => {
                let names = OPTIONS.iter().flat_map(Row::names);
                let nearest = reader.word(at).and_then(|word| nearest(word, names));
                return Err(reader.fail(option, at, ConfigProblem::UnknownOption { nearest }));
            }
        };
        at = reader.after(end);
    }
    Ok(names)
}

/// Skips a value that belongs to another pass. Returns where it ends.
fn skip(reader: &mut Reader, option: Named) -> Result<usize, ConfigError> {
    let value_at = reader.value_at(option, option.at)?;
    if reader.word(value_at) != Some("[") {
        return Ok(value_at);
    }
    let end = (value_at..reader.len()).find(|&at| reader.word(at) == Some("]"));
    end.ok_or_else(|| reader.fail(option, value_at, ConfigProblem::ListNotClosed))
}

/// Warns about options that are set twice, or inside another option's value.
fn look_at_names(reader: &mut Reader, names: &[Named]) {
    let mut seen = BTreeSet::new();
    let again = |option: &&Named| !seen.insert(reader.word(option.at));
    let repeated: Vec<Named> = names.iter().filter(again).copied().collect();
    for option in repeated {
        reader.warn(option.at, WarningKind::SetAgain);
    }
    for at in 0..reader.len() {
        let is_name = || names.binary_search_by_key(&at, |option| option.at).is_ok();
        if first_at(reader, at).is_some() && !is_name() {
            reader.warn(at, WarningKind::HeededInsideAValue);
        }
    }
}
