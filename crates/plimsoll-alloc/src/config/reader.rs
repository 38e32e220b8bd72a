//! Typed values from the words of a configuration string, with errors and warnings.
//! The type of each option is in `options.rs`.

use std::sync::Arc;

use super::error::{ConfigError, ConfigProblem, InvalidOption};
use super::numbers::{self, NoNumber};
use super::place::Place;
use super::tokens::{Token, tokens};
use super::value::{MIB, Reserve};
use super::warning::{ConfigWarning, NotApplicable, WarningKind};

/// The largest number of MiB whose bytes fit in 64 bits.
const MOST_MEBIBYTES: u64 = u64::MAX / MIB;

/// The name of the backend that this allocator implements.
pub(super) const NATIVE: &str = "native";

/// An option in the string: the position of its name. Its value is two words after the name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named {
    pub(super) at: usize,
}

/// The words of the string, and the findings so far.
#[derive(Debug)]
pub(super) struct Reader {
    text: Arc<str>,
    tokens: Vec<Token>,
    warnings: Vec<ConfigWarning>,
    not_applicable: Vec<NotApplicable>,
    /// The backend in use, once known.
    backend: Option<String>,
}

impl Reader {
    pub(super) fn new(text: &str, backend: Option<String>) -> Self {
        let tokens = tokens(text);
        let mut reader =
            Self { text: text.into(), tokens, warnings: Vec::new(), not_applicable: Vec::new(), backend };
        for at in 0..reader.tokens.len() {
            if reader.tokens[at].is_spaced() {
                reader.warn(at, WarningKind::SpaceInside);
            }
        }
        reader
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The word at `at`, if any.
    pub(super) fn word(&self, at: usize) -> Option<&str> {
        self.tokens.get(at).map(|token| token.text.as_str())
    }

    pub(super) fn warn(&mut self, at: usize, slip: WarningKind) {
        let place = Place { text: self.text.clone(), range: self.tokens[at].range.clone() };
        self.warnings.push(ConfigWarning { place, slip });
    }

    /// Records that the option has no effect here.
    pub(super) fn no_effect(&mut self, option: Named, because: &'static str) {
        let Token { text, range, .. } = &self.tokens[option.at];
        self.not_applicable.push(NotApplicable { option: text.clone(), offset: range.start, because });
    }

    /// The warnings without duplicates, and the options that have no effect, in the order of the string.
    pub(super) fn into_findings(mut self) -> (Vec<ConfigWarning>, Vec<NotApplicable>) {
        let key = |warning: &ConfigWarning| (warning.place.range.start, warning.slip.clone());
        self.warnings.sort_by_cached_key(key);
        self.warnings.dedup();
        self.not_applicable.sort_by_key(NotApplicable::offset);
        (self.warnings, self.not_applicable)
    }

    /// An error about `option`, at the word `at` or at the end.
    pub(super) fn fail(&self, option: Named, at: usize, problem: ConfigProblem) -> ConfigError {
        let end = self.text.len();
        let range = self.tokens.get(at).map_or(end..end, |token| token.range.clone());
        let place = Place { text: self.text.clone(), range };
        ConfigError { place, option: self.tokens[option.at].text.clone(), problem }
    }

    pub(super) fn invalid(&self, option: Named, at: usize, why: InvalidOption) -> ConfigError {
        self.fail(option, at, ConfigProblem::Invalid(why))
    }

    /// The word at `at`; an error about `option` if there is none.
    pub(super) fn needed(&self, option: Named, at: usize) -> Result<&str, ConfigError> {
        self.word(at).ok_or_else(|| self.fail(option, at, ConfigProblem::NoValue))
    }

    /// The position of the value whose name is at `name_at`. PyTorch does not check the word in between.
    pub(super) fn value_at(&mut self, option: Named, name_at: usize) -> Result<usize, ConfigError> {
        if self.needed(option, name_at + 1)? != ":" {
            self.warn(name_at + 1, WarningKind::NotAColon);
        }
        self.needed(option, name_at + 2)?;
        Ok(name_at + 2)
    }

    /// The position of the next name or value after the value that ends at `at`. PyTorch does not check the word in
    /// between.
    pub(super) fn after(&mut self, at: usize) -> usize {
        if self.word(at + 1).is_some_and(|word| word != ",") {
            self.warn(at + 1, WarningKind::NotAComma);
        }
        at + 2
    }

    pub(super) fn switch(&mut self, option: Named, at: usize) -> Result<bool, ConfigError> {
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
            self.warn(at, WarningKind::Wrapped { value });
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
            self.warn(at, WarningKind::Capped { value: MOST_MEBIBYTES });
        }
        Ok(mebibytes.min(MOST_MEBIBYTES) * MIB)
    }

    /// A reserve; None for a value that PyTorch ignores.
    pub(super) fn reserve(&mut self, option: Named, at: usize) -> Result<Option<Reserve>, ConfigError> {
        let word = self.needed(option, at)?;
        let reserve = match word.strip_suffix(['G', 'g']) {
            Some(gibibytes) => numbers::all_of(gibibytes).map(Reserve::Gibibytes),
            None => numbers::all_of(word).map(Reserve::Fraction),
        };
        let reserve = reserve.filter(|reserve| reserve.is_valid());
        if reserve.is_none() {
            self.warn(at, WarningKind::ReserveIgnored);
        }
        Ok(reserve)
    }

    /// `[class:reserve,…]`; neither the brackets nor the separators are checked. Returns where it ends.
    pub(super) fn reserve_by_class(&mut self, option: Named) -> Result<usize, ConfigError> {
        let mut at = self.value_at(option, option.at)? + 1;
        while self.needed(option, at)? != "]" {
            let value_at = self.value_at(option, at)?;
            self.reserve(option, value_at)?;
            at = value_at + 1;
            if self.needed(option, at)? == "," {
                at += 1;
            }
        }
        Ok(at)
    }

    /// The backend cannot change after startup, and a string must not name two. Returns where it ends.
    pub(super) fn backend(&mut self, option: Named) -> Result<usize, ConfigError> {
        let at = self.value_at(option, option.at)?;
        let named = self.needed(option, at)?.to_owned();
        if ![NATIVE, "cudaMallocAsync"].contains(&named.as_str()) {
            return Err(self.fail(option, at, ConfigProblem::UnknownBackend));
        }
        if *self.backend.get_or_insert_with(|| named.clone()) != named {
            return Err(self.fail(option, at, ConfigProblem::BackendChanged));
        }
        if named != NATIVE {
            self.no_effect(option, "this is the native allocator");
        }
        Ok(at)
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
            self.warn(at, WarningKind::RestIgnored { read: number });
        }
        Ok(read.value)
    }
}
