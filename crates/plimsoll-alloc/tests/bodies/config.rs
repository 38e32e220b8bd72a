//! Fuzz targets of the configuration string. The ordinary tests are in `tests/config.rs`.

use plimsoll_alloc::{Config, RoundupRest, WarningKind};

/// Parsing `text` must not panic, its errors and warnings must display, and its options must survive a round trip
/// through a string.
pub(crate) fn reads_and_writes(text: &str) {
    match Config::parse(text) {
        Ok(parsed) => {
            let written = parsed.config.to_string();
            let again = Config::parse(&written).unwrap_or_else(|why| panic!("{why}"));
            assert_eq!(again.config, parsed.config, "{text:?} became {written:?}");
            assert_eq!(again.config.to_string(), written);
            assert!(
                again.warnings.iter().all(|w| *w.slip() == WarningKind::RoundsMoreThanItCaches),
                "{written}"
            );
            let shown: Vec<_> = parsed.warnings.iter().map(ToString::to_string).collect();
            assert!(shown.iter().all(|warning| warning.lines().count() == 3), "{shown:?}");
        }
        Err(why) => {
            assert!(text.is_char_boundary(why.offset()));
            assert_eq!(why.to_string().lines().count(), 3, "{why}");
        }
    }
}

/// Any table of divisions must survive a round trip through a string, under either rule for `>`.
pub(crate) fn writes_divisions(divisions: [u64; 16]) {
    for rest in [RoundupRest::AfterLast, RoundupRest::FromLast] {
        let config = Config::default().with_roundup_rest(rest);
        let config = config.with_roundup_power2_divisions(divisions).unwrap();
        let text = config.to_string();
        let again = Config::default().with_roundup_rest(rest).apply(&text).unwrap();
        assert_eq!((again.config, again.warnings), (config, vec![]), "{text:?}");
    }
}
