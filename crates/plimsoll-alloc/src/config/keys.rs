//! The option names of PyTorch 2.15.
//!
//! PyTorch parses a string twice: first for the options of every accelerator, then for those of CUDA; each
//! time it skips the other options' values. The two passes can disagree on where a value ends, so parse.rs
//! parses twice too.

pub(super) const LARGE_SEGMENT: &str = "large_segment_size_mb";
pub(super) const MAX_SPLIT: &str = "max_split_size_mb";
pub(super) const MAX_NON_SPLIT_ROUNDING: &str = "max_non_split_rounding_mb";
pub(super) const GARBAGE_COLLECTION: &str = "garbage_collection_threshold";
pub(super) const ROUNDUP: &str = "roundup_power2_divisions";
pub(super) const EXPANDABLE: &str = "expandable_segments";
pub(super) const PINNED_BACKGROUND: &str = "pinned_use_background_threads";
pub(super) const PINNED_ROUND_THRESHOLD: &str = "pinned_max_round_threshold_mb";
pub(super) const PINNED_CACHED: &str = "pinned_max_cached_size_mb";

pub(super) const BACKEND: &str = "backend";
pub(super) const RELEASE_LOCK: &str = "release_lock_on_cudamalloc";
pub(super) const RELEASE_LOCK_HIP: &str = "release_lock_on_hipmalloc";
pub(super) const CAPTURE_REUSE: &str = "graph_capture_record_stream_reuse";
pub(super) const FRACTION: &str = "per_process_memory_fraction";
pub(super) const THROW: &str = "throw_on_cudamalloc_oom";
pub(super) const RESERVE: &str = "expandable_segments_reserve";
pub(super) const RESERVE_BY_CLASS: &str = "expandable_segments_reserve_by_class";
pub(super) const PINNED_REGISTER: &str = "pinned_use_cuda_host_register";
pub(super) const PINNED_REGISTER_HIP: &str = "pinned_use_hip_host_register";
pub(super) const PINNED_THREADS: &str = "pinned_num_register_threads";
pub(super) const PINNED_RESERVE: &str = "pinned_reserve_segment_size_mb";
pub(super) const PINNED_CATCH_ALL: &str = "pinned_free_catch_all";

/// The values of `backend`.
pub(super) const NATIVE: &str = "native";
pub(super) const CUDA_MALLOC_ASYNC: &str = "cudaMallocAsync";

const ALL: [&str; 22] = [
    LARGE_SEGMENT,
    MAX_SPLIT,
    MAX_NON_SPLIT_ROUNDING,
    GARBAGE_COLLECTION,
    ROUNDUP,
    EXPANDABLE,
    PINNED_BACKGROUND,
    PINNED_ROUND_THRESHOLD,
    PINNED_CACHED,
    BACKEND,
    RELEASE_LOCK,
    RELEASE_LOCK_HIP,
    CAPTURE_REUSE,
    FRACTION,
    THROW,
    RESERVE,
    RESERVE_BY_CLASS,
    PINNED_REGISTER,
    PINNED_REGISTER_HIP,
    PINNED_THREADS,
    PINNED_RESERVE,
    PINNED_CATCH_ALL,
];

/// Whether PyTorch has an option of this name.
pub(super) fn is_known(key: &str) -> bool {
    ALL.contains(&key)
}

/// The closest option name.
pub(super) fn nearest(key: &str) -> Option<&'static str> {
    const AT_MOST: usize = 4; // `max_split_size` lacks `_mb`; more is a different word
    if key.len() > 64 {
        return None;
    }
    let distances = ALL.iter().map(|name| (distance(key.as_bytes(), name.as_bytes()), *name));
    distances.filter(|&(distance, name)| distance <= AT_MOST.min(name.len() / 3)).min().map(|(_, name)| name)
}

/// The edit distance of two words.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in b.iter().enumerate() {
            let changed = diagonal + usize::from(letter != other);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_option_is_recognised() {
        assert_eq!(nearest("max_split_size"), Some(MAX_SPLIT));
        assert_eq!(nearest("expandable_segment"), Some(EXPANDABLE));
        assert_eq!(nearest("Backend"), Some(BACKEND));
        assert_eq!(nearest("foo"), None);
        assert_eq!(nearest(":"), None);
    }
}
