//! Writing options: as a string that [`Config::parse`] parses to the same options, without those at
//! their defaults, and as the `allocator_settings` of a PyTorch snapshot.

use std::fmt::{self, Display};

use super::definition::Config;
use super::value::{MIB, Shortest};
use super::{keys, roundup};

impl Display for Config {
    /// The configuration string, without options at their defaults. [`Config::tie_order`],
    /// [`Config::roundup_rest`], [`Config::capture_test`] and [`Config::search_again_after_release`] are
    /// not part of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for (key, value) in self.changed() {
            write!(f, "{comma}{key}:{value}")?;
            comma = ",";
        }
        Ok(())
    }
}

impl Config {
    /// The options that differ from their defaults, and their values.
    fn changed(&self) -> Vec<(&'static str, String)> {
        let (fresh, pinned, fresh_pinned) = (Self::default(), &self.pinned, Self::default().pinned);
        let bytes = |bytes: u64| (bytes / MIB).to_string();
        let large =
            (self.large_segment_bytes != fresh.large_segment_bytes).then(|| bytes(self.large_segment_bytes));
        let rounding = (self.max_non_split_rounding_bytes != self.large_segment_bytes)
            .then(|| bytes(self.max_non_split_rounding_bytes));
        let threshold = self.garbage_collection_threshold;
        let fraction = self.per_process_memory_fraction;
        let reserve_bytes = pinned.reserve_segment_bytes();
        let threads = pinned.num_register_threads();
        let all = [
            (keys::LARGE_SEGMENT, large),
            (keys::MAX_SPLIT, self.max_split_bytes.map(bytes)),
            (keys::MAX_NON_SPLIT_ROUNDING, rounding),
            (keys::ROUNDUP, roundup::write(&self.roundup_power2_divisions, self.roundup_rest)),
            (keys::GARBAGE_COLLECTION, (threshold != 0.0).then(|| number(threshold))),
            (keys::EXPANDABLE, switch(self.expandable_segments)),
            (keys::RESERVE, self.expandable_segments_reserve.map(|reserve| reserve.to_string())),
            (keys::FRACTION, (fraction != fresh.per_process_memory_fraction).then(|| number(fraction))),
            (keys::THROW, switch(self.throw_on_cudamalloc_oom)),
            (keys::RELEASE_LOCK, switch(self.release_lock_on_cudamalloc)),
            (keys::CAPTURE_REUSE, switch(self.graph_capture_record_stream_reuse)),
            (keys::PINNED_RESERVE, (reserve_bytes != 0).then(|| bytes(reserve_bytes))),
            (keys::PINNED_ROUND_THRESHOLD, pinned.max_round_threshold_bytes().map(bytes)),
            (keys::PINNED_CACHED, pinned.max_cached_bytes().map(bytes)),
            (keys::PINNED_BACKGROUND, switch(pinned.use_background_threads())),
            (keys::PINNED_REGISTER, switch(pinned.use_cuda_host_register())),
            (
                keys::PINNED_THREADS,
                (threads != fresh_pinned.num_register_threads()).then(|| threads.to_string()),
            ),
            (keys::PINNED_CATCH_ALL, switch(pinned.free_catch_all())),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }

    /// The options as the `allocator_settings` of a PyTorch snapshot, in its order. `text` is the string that
    /// was last applied. Unlimited sizes are -1.
    ///
    /// ```
    /// # use plimsoll_alloc::{Config, Setting};
    /// let settings = Config::default().allocator_settings("");
    /// assert_eq!(settings[0], ("PYTORCH_CUDA_ALLOC_CONF", Setting::Text(String::new())));
    /// assert_eq!(settings[1], ("max_split_size", Setting::Integer(-1)));
    /// ```
    pub fn allocator_settings(&self, text: &str) -> Vec<(&'static str, Setting)> {
        // PyTorch converts unsigned sizes to signed ones.
        let bytes = |bytes: Option<u64>| Setting::Integer(bytes.unwrap_or(u64::MAX).cast_signed());
        let sizes = (0..).map(|index| (1u64 << index).to_string());
        let divisions = self.roundup_power2_divisions.map(u64::cast_signed);
        vec![
            ("PYTORCH_CUDA_ALLOC_CONF", Setting::Text(text.to_owned())),
            ("max_split_size", bytes(self.max_split_bytes)),
            (keys::GARBAGE_COLLECTION, Setting::Real(self.garbage_collection_threshold)),
            (keys::EXPANDABLE, Setting::Switch(self.expandable_segments)),
            (keys::PINNED_THREADS, bytes(Some(self.pinned.num_register_threads()))),
            (keys::RELEASE_LOCK, Setting::Switch(self.release_lock_on_cudamalloc)),
            (keys::PINNED_REGISTER, Setting::Switch(self.pinned.use_cuda_host_register())),
            (keys::CAPTURE_REUSE, Setting::Switch(self.graph_capture_record_stream_reuse)),
            ("max_round_threshold", bytes(self.pinned.max_round_threshold_bytes())),
            ("max_cached_size", bytes(self.pinned.max_cached_bytes())),
            (keys::ROUNDUP, Setting::BySize(sizes.zip(divisions).collect())),
        ]
    }
}

/// A value of [`Config::allocator_settings`].
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
    /// Integers by size, which is MiB as a string.
    BySize(Vec<(String, i64)>),
}

fn switch(on: bool) -> Option<String> {
    on.then(|| "True".to_owned())
}

/// C's `stod` rejects the smallest numbers in decimal if they are not exact, but accepts them in hexadecimal.
fn number(value: f64) -> String {
    if value >= f64::MIN_POSITIVE {
        Shortest(value).to_string()
    } else {
        format!("0x{:x}p-1074", value.to_bits())
    }
}
