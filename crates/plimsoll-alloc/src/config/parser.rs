//! The state of the parser, for both passes: [`Parser`].

use super::definition::Config;
use super::error::{ConfigError, ConfigProblem, InvalidOption};
use super::keys;
use super::reader::{Named, Reader};
use super::warning::NotApplicable;

/// The state of the parser.
#[derive(Debug)]
pub(super) struct Parser {
    pub(super) reader: Reader,
    pub(super) config: Config,
    pub(super) not_applicable: Vec<NotApplicable>,
    /// The backend in use, once known.
    pub(super) backend: Option<String>,
}

impl Parser {
    /// Sets an option.
    pub(super) fn set(
        &mut self,
        option: Named,
        set: impl FnOnce(Config) -> Result<Config, InvalidOption>,
    ) -> Result<(), ConfigError> {
        let config = set(self.config.clone());
        self.config = config.map_err(|why| self.reader.invalid(option, option.at + 2, why))?;
        Ok(())
    }

    /// Skips a value of the other pass.
    pub(super) fn skip(&mut self, option: Named) -> Result<usize, ConfigError> {
        if !self.reader.word(option.at).is_some_and(keys::is_known) {
            let nearest = self.reader.word(option.at).and_then(keys::nearest);
            return Err(self.reader.fail(option, option.at, ConfigProblem::UnknownOption { nearest }));
        }
        let value_at = self.reader.value_at(option, option.at)?;
        if self.reader.word(value_at) != Some("[") {
            return Ok(value_at);
        }
        let end = (value_at..self.reader.len()).find(|&at| self.reader.word(at) == Some("]"));
        end.ok_or_else(|| self.reader.fail(option, value_at, ConfigProblem::ListNotClosed))
    }
}
