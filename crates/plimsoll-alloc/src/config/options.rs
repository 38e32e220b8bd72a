//! Each option of the configuration string: its type, its bounds, its setter.
//!
//! Two tables, for the two passes that Note [Two passes] in `parse.rs` explains. A one-word value
//! is two words after the option's name.

use super::definition::Config;
use super::error::{ConfigError, ConfigProblem, InvalidOption};
use super::parser::Parser;
use super::pinned::PinnedConfig;
use super::reader::Named;
use super::value::MIB;
use super::warning::{NotApplicable, WarningKind};
use super::{keys, roundup};

/// The options by name. Each returns where its value ends.
impl Parser {
    /// The options of every accelerator.
    pub(super) fn common(&mut self, option: Named) -> Result<usize, ConfigError> {
        let at = option.at + 2;
        match self.reader.word(option.at).unwrap_or_default() {
            keys::MAX_SPLIT => {
                let bytes = self.mebibytes(option)?;
                self.set(option, |config| config.with_max_split_bytes(Some(bytes)))?;
            }
            keys::MAX_NON_SPLIT_ROUNDING => {
                let bytes = self.mebibytes(option)?;
                self.set(option, |config| config.with_max_non_split_rounding_bytes(bytes))?;
            }
            keys::GARBAGE_COLLECTION => {
                let threshold = self.real(option)?;
                if threshold == 0.0 {
                    let why = InvalidOption::ThresholdOutOfRange { threshold };
                    return Err(self.reader.invalid(option, at, why)); // to switch it off, leave it out
                }
                self.set(option, |config| config.with_garbage_collection_threshold(threshold))?;
            }
            keys::ROUNDUP => {
                self.reader.value_at(option, option.at)?;
                let (rest, table) = (self.config.roundup_rest, &mut self.config.roundup_power2_divisions);
                return roundup::read(&mut self.reader, option, rest, table);
            }
            keys::EXPANDABLE => self.config.expandable_segments = self.switch(option)?,
            keys::PINNED_BACKGROUND => {
                let on = self.switch(option)?;
                self.set_pinned(option, |pinned| Ok(pinned.with_use_background_threads(on)))?;
                self.no_effect(option, "no background thread polls for events");
            }
            keys::PINNED_ROUND_THRESHOLD => {
                let bytes = self.mebibytes(option)?;
                self.set_pinned(option, |pinned| pinned.with_max_round_threshold_bytes(Some(bytes)))?;
                self.look_at_pinned(option);
            }
            keys::PINNED_CACHED => {
                let bytes = self.mebibytes(option)?;
                self.set_pinned(option, |pinned| pinned.with_max_cached_bytes(Some(bytes)))?;
                self.look_at_pinned(option);
            }
            _ => return self.skip(option),
        }
        Ok(at)
    }

    /// The options of CUDA.
    pub(super) fn of_cuda(&mut self, option: Named) -> Result<usize, ConfigError> {
        let at = option.at + 2;
        match self.reader.word(option.at).unwrap_or_default() {
            keys::BACKEND => self.backend(option)?,
            keys::RELEASE_LOCK | keys::RELEASE_LOCK_HIP => {
                self.config.release_lock_on_cudamalloc = self.switch(option)?;
            }
            keys::CAPTURE_REUSE => self.config.graph_capture_record_stream_reuse = self.switch(option)?,
            keys::THROW => self.config.throw_on_cudamalloc_oom = self.switch(option)?,
            keys::FRACTION => {
                let fraction = self.real(option)?;
                self.set(option, |config| config.with_per_process_memory_fraction(fraction))?;
            }
            keys::RESERVE => {
                self.reader.value_at(option, option.at)?;
                let reserve = self.reader.reserve(option, at)?;
                self.config.expandable_segments_reserve = reserve.or(self.config.expandable_segments_reserve);
            }
            keys::RESERVE_BY_CLASS => return self.reserve_by_class(option),
            keys::PINNED_REGISTER | keys::PINNED_REGISTER_HIP => {
                let on = self.switch(option)?;
                self.set_pinned(option, |pinned| Ok(pinned.with_use_cuda_host_register(on)))?;
                self.no_effect(option, "the driver decides how host memory is pinned");
            }
            keys::PINNED_THREADS => {
                let threads = self.whole(option)?;
                self.set_pinned(option, |pinned| pinned.with_num_register_threads(threads))?;
                self.no_effect(option, "the driver decides how host memory is pinned");
            }
            keys::PINNED_RESERVE => self.pinned_reserve(option)?,
            keys::PINNED_CATCH_ALL => {
                let on = self.switch(option)?;
                self.set_pinned(option, |pinned| Ok(pinned.with_free_catch_all(on)))?;
                self.no_effect(option, "an error while freeing is always returned");
            }
            _ => return self.skip(option),
        }
        Ok(at)
    }
}

/// The options with their own syntax or rules.
impl Parser {
    /// The backend cannot change after startup; a string must not name two.
    fn backend(&mut self, option: Named) -> Result<(), ConfigError> {
        let at = self.reader.value_at(option, option.at)?;
        let named = self.reader.needed(option, at)?.to_owned();
        if named != keys::NATIVE && named != keys::CUDA_MALLOC_ASYNC {
            return Err(self.reader.fail(option, at, ConfigProblem::UnknownBackend));
        }
        if *self.backend.get_or_insert_with(|| named.clone()) != named {
            return Err(self.reader.fail(option, at, ConfigProblem::BackendChanged));
        }
        if named != keys::NATIVE {
            self.no_effect(option, "this is the native allocator");
        }
        Ok(())
    }

    /// PyTorch does not check this size: the number of bytes wraps around, and may become 0.
    fn pinned_reserve(&mut self, option: Named) -> Result<(), ConfigError> {
        let mebibytes = self.whole(option)?;
        if mebibytes == 0 {
            return Err(self.reader.fail(option, option.at + 2, ConfigProblem::Zero));
        }
        let bytes = mebibytes.wrapping_mul(MIB);
        if mebibytes.checked_mul(MIB).is_none() {
            self.reader.warn(option.at + 2, WarningKind::Wrapped { value: bytes / MIB });
        }
        self.set_pinned(option, |pinned| pinned.with_reserve_segment_bytes(bytes))
    }

    /// `[class:reserve,…]`; neither the brackets nor the separators are checked.
    fn reserve_by_class(&mut self, option: Named) -> Result<usize, ConfigError> {
        self.no_effect(option, "streams have no classes here");
        let mut at = self.reader.value_at(option, option.at)? + 1;
        while self.reader.needed(option, at)? != "]" {
            let value_at = self.reader.value_at(option, at)?;
            self.reader.reserve(option, value_at)?;
            at = value_at + 1;
            if self.reader.needed(option, at)? == "," {
                at += 1;
            }
        }
        Ok(at)
    }

    /// PyTorch says this, too.
    fn look_at_pinned(&mut self, option: Named) {
        let pinned = &self.config.pinned;
        if let (Some(rounded), Some(cached)) = (pinned.max_round_threshold_bytes(), pinned.max_cached_bytes())
            && rounded > cached
        {
            self.reader.warn(option.at + 2, WarningKind::RoundsMoreThanItCaches);
        }
    }
}

/// A one-word value and its setter.
impl Parser {
    fn switch(&mut self, option: Named) -> Result<bool, ConfigError> {
        let at = self.reader.value_at(option, option.at)?;
        self.reader.switch(option, at)
    }

    fn whole(&mut self, option: Named) -> Result<u64, ConfigError> {
        let at = self.reader.value_at(option, option.at)?;
        self.reader.whole(option, at)
    }

    fn mebibytes(&mut self, option: Named) -> Result<u64, ConfigError> {
        let at = self.reader.value_at(option, option.at)?;
        self.reader.mebibytes(option, at)
    }

    fn real(&mut self, option: Named) -> Result<f64, ConfigError> {
        let at = self.reader.value_at(option, option.at)?;
        self.reader.real(option, at)
    }

    fn set_pinned(
        &mut self,
        option: Named,
        set: impl FnOnce(PinnedConfig) -> Result<PinnedConfig, InvalidOption>,
    ) -> Result<(), ConfigError> {
        self.set(option, |config| Ok(Config { pinned: set(config.pinned)?, ..config }))
    }

    /// Records that the option has no effect here.
    fn no_effect(&mut self, option: Named, because: &'static str) {
        let (name, offset) =
            (self.reader.word(option.at).unwrap_or_default().to_owned(), self.reader.offset(option.at));
        self.not_applicable.push(NotApplicable { option: name, offset, because });
    }
}
