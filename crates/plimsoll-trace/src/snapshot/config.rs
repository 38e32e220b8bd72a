//! The recorded allocator's options: [`Snapshot::config`].

use plimsoll_alloc::{Config, Setting as Value, TieOrder};

use super::{Key, Kind, Setting, Snapshot};

impl Snapshot {
    /// The options in force when the snapshot was taken, as far as the file contains them: the values of the settings,
    /// and for options without a setting (`large_segment_size_mb`, for example) the configuration string. Values that
    /// cannot be parsed are ignored. Equal blocks are tried by age if the file was written by PyTorch 2.13 or newer,
    /// otherwise by address.
    pub fn config(&self) -> Config {
        let text = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"].into_iter().find_map(|name| match self
            .setting(name)
        {
            Some(Setting::Text(text)) => Some(text.as_str()),
            _ => None,
        });
        let parsed = text.and_then(|text| Config::parse(text).ok());
        let mut config = parsed.map(|parsed| parsed.config).unwrap_or_default();
        for (name, setting) in &self.settings {
            let set = as_option(setting).map(|setting| config.clone().with_setting(name, &setting));
            config = set.and_then(Result::ok).unwrap_or(config);
        }
        let is_new = self.facts.seen(Kind::Snapshot).contains(Key::HostSegments);
        config.with_tie_order(if is_new { TieOrder::RegistrationCounter } else { TieOrder::Address })
    }
}

/// Converts a recorded setting to the allocator's type; None for a value that no option has in a snapshot.
fn as_option(setting: &Setting) -> Option<Value> {
    Some(match setting {
        Setting::Int(number) => Value::Integer(*number),
        Setting::Float(number) => Value::Real(*number),
        Setting::Bool(on) => Value::Switch(*on),
        Setting::Map(entries) => {
            let entry = |(key, value): &(String, Setting)| match value {
                Setting::Int(number) => Some((key.clone(), *number)),
                _ => None,
            };
            Value::BySize(entries.iter().filter_map(entry).collect())
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_and_what_is_only_in_the_string_become_options() {
        let text = |text: &str| Setting::Text(text.to_owned());
        let divisions = [("1", 0), ("256", 8)].map(|(at, n)| (at.to_owned(), Setting::Int(n)));
        let settings = [
            ("PYTORCH_CUDA_ALLOC_CONF", text("large_segment_size_mb:64")),
            ("max_split_size", Setting::Int(128 << 20)),
            ("garbage_collection_threshold", Setting::Float(0.5)),
            ("expandable_segments", Setting::Bool(true)),
            ("roundup_power2_divisions", Setting::Map(divisions.to_vec())),
            ("later", Setting::None),
        ];
        let settings = settings.map(|(name, setting)| (name.to_owned(), setting)).to_vec();
        let config = Snapshot { settings, ..Snapshot::default() }.config();
        assert_eq!((config.large_segment_bytes(), config.max_split_bytes()), (64 << 20, Some(128 << 20)));
        assert_eq!((config.garbage_collection_threshold(), config.expandable_segments()), (0.5, true));
        assert_eq!((config.roundup_power2_divisions()[8], config.tie_order()), (8, TieOrder::Address));
    }

    #[test]
    fn settings_that_make_no_sense_are_left_aside() {
        let settings =
            vec![("max_split_size".to_owned(), Setting::Int(7)), ("x".to_owned(), Setting::Int(1))];
        let config = Snapshot { settings, ..Snapshot::default() }.config();
        assert_eq!(config, Config::default().with_tie_order(TieOrder::Address));
    }
}
