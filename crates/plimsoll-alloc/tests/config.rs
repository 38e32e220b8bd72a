//! The configuration string, beyond what is compared with PyTorch (`src/config/answers.rs`): the place of an error,
//! warnings, writing options as a string, and that no string makes the parser panic.

use plimsoll_alloc::{
    Config, ConfigProblem, InvalidOption, PinnedConfig, Reserve, RoundupRest, Setting, TieOrder, WarningKind,
};
use serde_json::Value;

use crate::bodies::config::{reads_and_writes, writes_divisions};

const MIB: u64 = 1 << 20;

fn answers() -> Value {
    serde_json::from_str(include_str!("config/answers.json")).unwrap()
}

#[test]
fn startup_and_run_time_differ_only_in_the_backend() {
    for case in answers()["cases"].as_array().unwrap() {
        let text = case[1][0].as_str().unwrap();
        if !text.contains("MallocAsync") {
            let (start, run_time) = (Config::parse(text), Config::default().apply(text));
            assert_eq!(format!("{start:?}"), format!("{run_time:?}"), "{text:?}"); // as text, because NaN is not equal to itself
        }
    }
    assert!(Config::parse("backend:cudaMallocAsync").is_ok());
    let why = Config::default().apply("backend:cudaMallocAsync").unwrap_err();
    assert_eq!((why.offset(), why.problem()), (8, ConfigProblem::BackendChanged));
}

/// Pseudo-random numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

#[test]
fn no_string_makes_it_panic() {
    let (answers, mut dice) = (answers(), Dice(1));
    let cases = answers["cases"].as_array().unwrap();
    let texts = cases.iter().flat_map(|case| case[1].as_array().unwrap());
    texts.for_each(|text| reads_and_writes(text.as_str().unwrap()));
    let letters: Vec<char> = ",:[]>-+.0123eExpGT \t\u{0}é\u{3000}".chars().collect();
    for _ in 0..30_000 {
        let mut text: Vec<char> = Vec::new();
        for _ in 0..=dice.below(2) {
            text.extend(cases[dice.below(cases.len())][1][0].as_str().unwrap().chars());
            text.push(',');
        }
        for _ in 0..dice.below(4) {
            let at = dice.below(text.len());
            match dice.below(3) {
                0 => text[at] = letters[dice.below(letters.len())],
                1 => text.insert(at, letters[dice.below(letters.len())]),
                _ => text.truncate(at + 1),
            }
        }
        reads_and_writes(&String::from_iter(text));
    }
}

#[test]
fn every_table_of_divisions_can_be_written() {
    let mut dice = Dice(2);
    for _ in 0..20_000 {
        let (mut divisions, mut now) = ([0; 16], 0);
        for entry in &mut divisions {
            if dice.below(3) == 0 {
                now = [0, 1, 2, 4, 1 << 63][dice.below(5)];
            }
            *entry = now;
        }
        writes_divisions(divisions);
    }
}

#[test]
fn a_config_is_written_in_its_shortest_form() {
    let check = |text: &str, expected: &str| {
        assert_eq!(Config::parse(text).unwrap().config.to_string(), expected, "{text}");
    };
    check(" max_non_split_rounding_mb: 20, backend:native, per_process_memory_fraction:1 ", "");
    check("garbage_collection_threshold:0x.8", "garbage_collection_threshold:0.5");
    check("per_process_memory_fraction:0x1p-1074", "per_process_memory_fraction:0x1p-1074");
    check("expandable_segments_reserve:1e20g", "expandable_segments_reserve:1e20G");
    check("pinned_max_cached_size_mb:-1", "pinned_max_cached_size_mb:17592186044415");
    check("roundup_power2_divisions:[1:4,2:4,>:4]", "roundup_power2_divisions:4");
    check("roundup_power2_divisions:[1:1,2:1,4:2,8:4,>:8]", "roundup_power2_divisions:[2:1,4:2,8:4,>:8]");
    check("roundup_power2_divisions:[1:0,2:4,>:4]", "roundup_power2_divisions:[>:4]");
    check(
        "roundup_power2_divisions:[1:0,2:0,64:2,16384:4,32768:4]",
        "roundup_power2_divisions:[1:0,64:2,8192:0,>:4]",
    );
    check("roundup_power2_divisions:[]", "");
}

#[test]
fn a_mistake_is_pointed_at() {
    let check = |text: &str, offset: usize, problem: ConfigProblem| {
        let why = Config::parse(text).unwrap_err();
        assert_eq!((why.offset(), why.problem()), (offset, problem), "{text}");
    };
    let unknown = |nearest| ConfigProblem::UnknownOption { nearest };
    check("max_split_size:40", 0, unknown(Some("max_split_size_mb")));
    check("expandable_segments:True,, foo:1", 25, unknown(None));
    check("expandable_segments : true", 22, ConfigProblem::NotASwitch);
    check("expandable_segments:", 20, ConfigProblem::NoValue);
    check("max_split_size_mb:mb40", 18, ConfigProblem::NotANumber);
    check("max_split_size_mb:18446744073709551616", 18, ConfigProblem::NumberOutOfRange);
    check("pinned_reserve_segment_size_mb:0", 31, ConfigProblem::Zero);
    check("roundup_power2_divisions:[1:2,", 30, ConfigProblem::ListNotClosed);
    check("expandable_segments_reserve_by_class:[a:1", 37, ConfigProblem::ListNotClosed);
    check("backend:hipMallocAsync", 8, ConfigProblem::UnknownBackend);
    check("backend:native,backend:cudaMallocAsync", 23, ConfigProblem::BackendChanged);
    let interval = InvalidOption::NotAPowerOfTwo { value: 3 };
    check("roundup_power2_divisions:[3:2]", 26, ConfigProblem::Invalid(interval));
    check("roundup_power2_divisions:[2:3]", 28, ConfigProblem::Invalid(interval));
    let threads = InvalidOption::RegisterThreads { threads: 256 };
    check("pinned_num_register_threads:256", 28, ConfigProblem::Invalid(threads));
}

#[test]
fn the_marker_is_under_the_error() {
    let why = Config::parse("é:\n1").unwrap_err();
    assert_eq!(why.to_string(), "é is not an option of the allocator\n  é: 1\n  ^");
    let why = Config::parse("backend:").unwrap_err();
    assert_eq!(why.to_string(), "backend needs a value, but the string ends here\n  backend:\n          ^");
}

#[test]
fn likely_mistakes_are_warned_about() {
    let check = |text: &str, expected: &[(usize, WarningKind)]| {
        let parsed = Config::parse(text).unwrap();
        let said: Vec<_> = parsed.warnings.iter().map(|w| (w.offset(), w.slip().clone())).collect();
        assert_eq!(said, expected, "{text}");
    };
    check(" max_split_size_mb : 40 , expandable_segments:True,", &[]);
    check(
        "max_split_size_mb:-1",
        &[(18, WarningKind::Wrapped { value: u64::MAX }), (18, WarningKind::Capped { value: (1 << 44) - 1 })],
    );
    check("large_segment_size_mb:12abc", &[(22, WarningKind::RestIgnored { read: "12".into() })]);
    check("garbage_collection_threshold:0.5%", &[(29, WarningKind::RestIgnored { read: "0.5".into() })]);
    check("max_split_size_mb:99999999999999", &[(18, WarningKind::Capped { value: (1 << 44) - 1 })]);
    check(
        "max_split_size_mb,40]expandable_segments:True",
        &[(17, WarningKind::NotAColon), (20, WarningKind::NotAComma)],
    );
    check(
        "roundup_power2_divisions:[1,2:65536:4]",
        &[
            (27, WarningKind::NotAColon),
            (29, WarningKind::NotAComma),
            (30, WarningKind::Capped { value: 1 << 15 }),
        ],
    );
    check("expandable_segments:True,expandable_segments:False", &[(25, WarningKind::SetAgain)]);
    check("expandable_segments_reserve:40GB", &[(28, WarningKind::ReserveIgnored)]);
    check(
        "pinned_max_round_threshold_mb:2,pinned_max_cached_size_mb:1",
        &[(58, WarningKind::RoundsMoreThanItCaches)],
    );
    check(
        "expandable_segments_reserve_by_class:[large_segment_size_mb:64]",
        &[(38, WarningKind::HeededInsideAValue)],
    );
    check("pinned_reserve_segment_size_mb:17592186044417", &[(31, WarningKind::Wrapped { value: 1 })]);
}

#[test]
fn options_without_effect_are_listed() {
    let text = "pinned_num_register_threads:2,expandable_segments:True,expandable_segments_reserve_by_class:[a:1],\
                pinned_use_hip_host_register:True,backend:native";
    let parsed = Config::parse(text).unwrap();
    let named: Vec<_> =
        parsed.not_applicable.iter().map(|option| (option.offset(), option.option())).collect();
    assert_eq!(
        named,
        [
            (0, "pinned_num_register_threads"),
            (55, "expandable_segments_reserve_by_class"),
            (98, "pinned_use_hip_host_register")
        ]
    );
}

#[test]
fn a_refused_string_changes_nothing() {
    let config = Config::parse("max_split_size_mb:40").unwrap().config;
    assert!(config.apply("max_split_size_mb:80,foo:1").is_err());
    assert_eq!(config.max_split_bytes(), Some(40 * MIB)); // PyTorch's value is 80 MiB then
}

#[test]
fn options_outside_the_string_do_not_change() {
    let config = Config::default().with_tie_order(TieOrder::Address).with_search_again_after_release(true);
    assert_eq!(config.to_string(), "");
    assert_eq!(config.apply("").unwrap().config, config);
}

#[test]
fn older_pytorch_lets_the_rest_overwrite_the_entry_before() {
    let older = Config::default().with_roundup_rest(RoundupRest::FromLast);
    let check = |text: &str, expected: [u64; 3]| {
        let config = older.apply(&format!("roundup_power2_divisions:{text}")).unwrap().config;
        assert_eq!(config.roundup_power2_divisions()[..3], expected, "{text}");
    };
    check("[1:1,2:2,>:4]", [1, 4, 4]);
    check("[>:4]", [4, 4, 4]);
    check("[1:1,2:2,4:8,>:4,2:1]", [1, 1, 4]);
}

#[test]
fn a_large_segment_must_hold_every_block_that_is_cut_from_one() {
    let set = |bytes| Config::default().with_large_segment_bytes(bytes);
    assert_eq!(set(10 * MIB), Err(InvalidOption::LargeSegmentTooSmall { bytes: 10 * MIB }));
    assert_eq!(set(20 * MIB + 1), Err(InvalidOption::NotWholeMebibytes { bytes: 20 * MIB + 1 }));
    assert_eq!(set(11 * MIB).map(|config| config.large_segment_bytes()), Ok(11 * MIB));
}

#[test]
fn setters_keep_a_config_valid() {
    let config = Config::default();
    let fraction = |fraction| config.clone().with_per_process_memory_fraction(fraction).is_ok();
    assert_eq!([-0.1, 0.0, 1.0, 1.1, f64::NAN].map(fraction), [false, true, true, false, false]);
    let threshold = |threshold| config.clone().with_garbage_collection_threshold(threshold).is_ok();
    assert_eq!([-0.1, 0.0, 0.5, 1.0, f64::NAN].map(threshold), [false, true, true, false, false]);
    let split = config.clone().with_max_split_bytes(Some(40 * MIB)).unwrap();
    let below = InvalidOption::BelowLargeSegment { bytes: 40 * MIB, at_least_bytes: 41 * MIB };
    assert_eq!(split.with_large_segment_bytes(41 * MIB), Err(below));
    let reserve =
        |value| config.clone().with_expandable_segments_reserve(Some(Reserve::Fraction(value))).is_ok();
    assert_eq!([0.0, 0.5, f64::INFINITY].map(reserve), [false, true, false]);
    let pinned = PinnedConfig::default();
    assert!(pinned.with_num_register_threads(3).is_err() && pinned.with_max_cached_bytes(Some(1)).is_err());
}

#[test]
fn a_reserve_is_capped_at_nine_eighths_of_the_device() {
    let gibibyte = 1 << 30;
    assert_eq!(Reserve::Fraction(0.25).bytes(gibibyte), gibibyte / 4);
    assert_eq!(Reserve::Gibibytes(0.5).bytes(gibibyte), gibibyte / 2);
    assert_eq!(Reserve::Gibibytes(1e20).bytes(gibibyte), gibibyte / 8 * 9);
}

#[test]
fn the_settings_are_those_of_a_snapshot() {
    let text = "max_split_size_mb:40,pinned_max_round_threshold_mb:-1,pinned_max_cached_size_mb:5,\
                roundup_power2_divisions:[1:9223372036854775808,2:2]";
    let settings = Config::parse(text).unwrap().config.allocator_settings(text);
    let by_size =
        (0..16).map(|index| ((1u64 << index).to_string(), [i64::MIN, 2, 0][index.min(2)])).collect();
    assert_eq!(
        settings, // as PyTorch 2.15 returns them
        [
            ("PYTORCH_CUDA_ALLOC_CONF", Setting::Text(text.into())),
            ("max_split_size", Setting::Integer(41_943_040)),
            ("garbage_collection_threshold", Setting::Real(0.0)),
            ("expandable_segments", Setting::Switch(false)),
            ("pinned_num_register_threads", Setting::Integer(1)),
            ("release_lock_on_cudamalloc", Setting::Switch(false)),
            ("pinned_use_cuda_host_register", Setting::Switch(false)),
            ("graph_capture_record_stream_reuse", Setting::Switch(false)),
            ("max_round_threshold", Setting::Integer(-1_048_576)),
            ("max_cached_size", Setting::Integer(5_242_880)),
            ("roundup_power2_divisions", Setting::BySize(by_size)),
        ]
    );
}
