//! `plimsoll whatif` as users run it.

use crate::program::{json, kept, plimsoll, stderr, text};

#[test]
fn the_simulated_baseline_is_the_recorded_outcome() {
    for file in ["gpt2_oom.pickle.gz", "leak_layer.pickle.gz"] {
        let output = plimsoll(&["whatif", &kept(file), "--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let answer = json(&output)["devices"][0]["what_if"].clone();
        assert_eq!(answer["rows"][0]["outcome"], answer["recorded"], "{file}");
        assert!(
            answer["packed_bytes"].as_u64() <= answer["recorded"]["peak_reserved_bytes"].as_u64(),
            "{file}"
        );
    }
}

#[test]
fn where_the_device_is_too_small_no_setting_helps() {
    let answer = text(&["whatif", &kept("gpt2_oom.pickle.gz")]);
    assert!(answer.starts_with("no setting tried would have served the failed request"), "{answer}");
    assert!(answer.contains("PYTORCH_ALLOC_CONF=expandable_segments:True"), "{answer}");
}

#[test]
fn a_setting_of_ones_own_is_tried_and_a_wrong_one_refused() {
    let file = kept("leak_layer.pickle.gz");
    let answer = text(&["whatif", &file, "large_segment_size_mb:32"]);
    assert!(answer.contains("PYTORCH_ALLOC_CONF=large_segment_size_mb:32"), "{answer}");
    let output = plimsoll(&["whatif", &file, "max_split_size_mb:no"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}
