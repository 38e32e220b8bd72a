//! Typed values out of the words of a configuration string, with what is wrong or odd about each.
//! Which option wants which type is in parse.rs.

use std::sync::Arc;

use super::numbers::{self, NoNumber};
use super::tokens::{Token, tokens};
use super::{ConfigError, ConfigProblem, ConfigWarning, InvalidOption, MIB, Place, Reserve, Slip};

/// The most MiB that fit in 64 bits of bytes.
const MOST_MEBIBYTES: u64 = u64::MAX / MIB;

/// An option in the string: where its name stands. A value's place is the next word but one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named {
    pub(super) at: usize,
}

/// The words, and what was odd so far.
#[derive(Debug)]
pub(super) struct Reader {
    text: Arc<str>,
    tokens: Vec<Token>,
    warnings: Vec<ConfigWarning>,
}

impl Reader {
    pub(super) fn new(text: &str) -> Self {
        let mut reader = Self { text: text.into(), tokens: tokens(text), warnings: Vec::new() };
        for at in 0..reader.tokens.len() {
            if reader.tokens[at].is_spaced() {
                reader.warn(at, Slip::SpaceInside);
            }
        }
        reader
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The word at `at`, if the string is so long.
    pub(super) fn word(&self, at: usize) -> Option<&str> {
        self.tokens.get(at).map(|token| token.text.as_str())
    }

    /// Where in the string the word at `at` begins, bytes.
    pub(super) fn offset(&self, at: usize) -> usize {
        self.tokens[at].range.start
    }

    pub(super) fn warn(&mut self, at: usize, slip: Slip) {
        let place = Place { text: self.text.clone(), range: self.tokens[at].range.clone() };
        self.warnings.push(ConfigWarning { place, slip });
    }

    /// All warnings, in the order of the string, each once.
    pub(super) fn into_warnings(mut self) -> Vec<ConfigWarning> {
        let key = |warning: &ConfigWarning| (warning.place.range.start, warning.slip.clone());
        self.warnings.sort_by_cached_key(key);
        self.warnings.dedup();
        self.warnings
    }

    /// `option` is wrong, as can be seen at the word `at`, or at the end.
    pub(super) fn fail(&self, option: Named, at: usize, problem: ConfigProblem) -> ConfigError {
        let end = self.text.len();
        let range = self.tokens.get(at).map_or(end..end, |token| token.range.clone());
        let place = Place { text: self.text.clone(), range };
        ConfigError { place, option: self.tokens[option.at].text.clone(), problem }
    }

    pub(super) fn invalid(&self, option: Named, at: usize, why: InvalidOption) -> ConfigError {
        self.fail(option, at, ConfigProblem::Invalid(why))
    }

    /// The word at `at`, which `option` needs.
    pub(super) fn needed(&self, option: Named, at: usize) -> Result<&str, ConfigError> {
        self.word(at).ok_or_else(|| self.fail(option, at, ConfigProblem::NoValue))
    }

    /// Where the value begins whose name stands at `name_at`. The word between can be any.
    pub(super) fn value_at(&mut self, option: Named, name_at: usize) -> Result<usize, ConfigError> {
        if self.needed(option, name_at + 1)? != ":" {
            self.warn(name_at + 1, Slip::NotAColon);
        }
        self.needed(option, name_at + 2)?;
        Ok(name_at + 2)
    }

    /// Where the next name or value begins after the one that ends at `at`. The word between can be any.
    pub(super) fn after(&mut self, at: usize) -> usize {
        if self.word(at + 1).is_some_and(|word| word != ",") {
            self.warn(at + 1, Slip::NotAComma);
        }
        at + 2
    }

    pub(super) fn switch(&self, option: Named, at: usize) -> Result<bool, ConfigError> {
        match self.needed(option, at)? {
            "True" => Ok(true),
            "False" => Ok(false),
            _ => Err(self.fail(option, at, ConfigProblem::NotASwitch)),
        }
    }

    pub(super) fn whole(&mut self, option: Named, at: usize) -> Result<u64, ConfigError> {
        let word = self.needed(option, at)?;
        let negative = word.starts_with('-');
        let read = numbers::whole(word);
        let value = self.number(option, at, read)?;
        if negative && value != 0 {
            self.warn(at, Slip::Wrapped { value });
        }
        Ok(value)
    }

    pub(super) fn real(&mut self, option: Named, at: usize) -> Result<f64, ConfigError> {
        let read = numbers::real(self.needed(option, at)?);
        self.number(option, at, read)
    }

    /// A size in MiB, as bytes.
    pub(super) fn mebibytes(&mut self, option: Named, at: usize) -> Result<u64, ConfigError> {
        let mebibytes = self.whole(option, at)?;
        if mebibytes > MOST_MEBIBYTES {
            self.warn(at, Slip::Capped { value: MOST_MEBIBYTES });
        }
        Ok(mebibytes.min(MOST_MEBIBYTES) * MIB)
    }

    /// None is a value that PyTorch ignores.
    pub(super) fn reserve(&mut self, option: Named, at: usize) -> Result<Option<Reserve>, ConfigError> {
        let word = self.needed(option, at)?;
        let reserve = match word.strip_suffix(['G', 'g']) {
            Some(gibibytes) => numbers::all_of(gibibytes).map(Reserve::Gibibytes),
            None => numbers::all_of(word).map(Reserve::Fraction),
        };
        let reserve = reserve.filter(|reserve| reserve.is_valid());
        if reserve.is_none() {
            self.warn(at, Slip::ReserveIgnored);
        }
        Ok(reserve)
    }

    fn number<T>(
        &mut self,
        option: Named,
        at: usize,
        read: Result<numbers::Read<T>, NoNumber>,
    ) -> Result<T, ConfigError> {
        let read = read.map_err(|why| match why {
            NoNumber::Absent => self.fail(option, at, ConfigProblem::NotANumber),
            NoNumber::OutOfRange => self.fail(option, at, ConfigProblem::NumberOutOfRange),
        })?;
        let word = &self.tokens[at].text;
        if read.used_bytes < word.len() {
            let number = word[..read.used_bytes].to_owned();
            self.warn(at, Slip::RestIgnored { read: number });
        }
        Ok(read.value)
    }
}
