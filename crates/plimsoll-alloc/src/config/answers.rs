//! A test that compares our parser of the configuration string with PyTorch's. `tests/config/make.py` recorded
//! PyTorch's results in `answers.json` there. Each row of the table of options is compared with the result that has
//! the same name.

use serde_json::{Value, json};

use super::options::{Config, OPTIONS};
use super::setting::Setting;
use super::value::{MIB, Reserve};

/// PyTorch's value of an option, converted to our representation.
fn expected(option: &str, value: &Value, config: &Config) -> Option<Setting> {
    let bytes = |bytes: u64| Some(Setting::Integer(bytes.cast_signed()));
    match (option, value) {
        // If the value equals the size of a large segment, our snapshot shows it as no limit.
        ("max_non_split_rounding_mb", value) if *value == json!(config.large_segment_bytes()) => {
            bytes(u64::MAX)
        }
        // PyTorch does not bound the number of MiB in a pinned reserve. Only the number of bytes has an effect, and
        // it wraps around.
        ("pinned_reserve_segment_size_mb", value) => bytes(value.as_u64()?.wrapping_mul(MIB)),
        ("expandable_segments_reserve", Value::Array(reserve)) => {
            let number = reserve[1].as_str()?.parse().ok()?;
            let reserve =
                if reserve[0] == "fraction" { Reserve::Fraction(number) } else { Reserve::Gibibytes(number) };
            Some(Setting::Text(reserve.to_string()))
        }
        (_, Value::Bool(on)) => Some(Setting::Switch(*on)),
        (_, Value::Number(number)) => bytes(number.as_u64()?),
        // Floating-point numbers are strings.
        (_, Value::String(real)) => Some(Setting::Real(real.parse().ok()?)),
        (_, Value::Array(by_size)) => {
            let entries = (0..).zip(by_size).map(|(index, divisions)| {
                ((1u64 << index).to_string(), divisions.as_u64().map_or(0, u64::cast_signed))
            });
            Some(Setting::BySize(entries.collect()))
        }
        _ => None,
    }
}

/// Compares one of PyTorch's results, which lists only the options that differ from their defaults.
fn compare(ours: Option<&Config>, defaults: &Value, theirs: &Value, text: &str) {
    assert_eq!(ours.is_some(), theirs.is_object(), "accepted, for {text:?}");
    let (Some(ours), Some(changed)) = (ours, theirs.as_object()) else { return };
    for (option, default) in defaults.as_object().expect("options") {
        let row = OPTIONS.iter().find(|row| row.name == option).expect("a row");
        let value = changed.get(option).unwrap_or(default);
        assert_eq!(row.setting(ours), expected(option, value, ours), "{option}, for {text:?}");
    }
}

#[test]
fn every_string_is_parsed_as_in_pytorch() {
    let answers = include_str!("../../tests/config/answers.json");
    let answers: Value = serde_json::from_str(answers).expect("answers");
    let (defaults, cases) = (&answers["defaults"], answers["cases"].as_array().expect("cases"));
    assert!(cases.len() >= 500);
    for case in cases {
        let mut config = Config::default();
        for (text, theirs) in
            case[1].as_array().expect("strings").iter().zip(case[2].as_array().expect("answers"))
        {
            let text = text.as_str().expect("a string");
            let parsed = if case[0] == "start" { Config::parse(text) } else { config.apply(text) };
            compare(parsed.as_ref().ok().map(|parsed| &parsed.config), defaults, theirs, text);
            config = parsed.map_or(config, |parsed| parsed.config);
        }
    }
}

/// The recorded results have every option that has a value, and no others.
#[test]
fn every_option_with_a_value_is_compared() {
    let answers = include_str!("../../tests/config/answers.json");
    let answers: Value = serde_json::from_str(answers).expect("answers");
    for row in OPTIONS {
        let has_value =
            row.setting(&Config::default()).is_some() || row.name == "expandable_segments_reserve";
        assert_eq!(answers["defaults"].get(row.name).is_some(), has_value, "{}", row.name);
    }
}
