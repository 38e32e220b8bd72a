//! Writes the options as a string that [`Config::parse`] parses to the same options, and as the `allocator_settings` of
//! a PyTorch snapshot. Also reads those settings.

use std::fmt::{self, Display};

use super::error::InvalidOption;
use super::options::{Config, OPTIONS};
use super::row::Row;
use super::setting::Setting;

impl Display for Config {
    /// The configuration string, without options at their defaults. [`Config::tie_order`],
    /// [`Config::roundup_rest`], [`Config::capture_test`] and [`Config::search_again_after_release`] are
    /// not part of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (default, mut comma) = (Self::default(), "");
        for row in OPTIONS {
            if let Some(value) = row.written(self, &default) {
                write!(f, "{comma}{}:{value}", row.name)?;
                comma = ",";
            }
        }
        Ok(())
    }
}

impl Config {
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
        let text = (0, "PYTORCH_CUDA_ALLOC_CONF", Setting::Text(text.to_owned()));
        let setting = |row: &Row<Config>| {
            let (place, name) = row.in_snapshot?;
            Some((place, name, row.setting(self)?))
        };
        let mut settings: Vec<_> = OPTIONS.iter().filter_map(setting).chain([text]).collect();
        settings.sort_by_key(|&(place, ..)| place);
        settings.into_iter().map(|(_, name, setting)| (name, setting)).collect()
    }

    /// Sets the option with this name in a snapshot's `allocator_settings`. An unknown name, or a value of another
    /// type, changes nothing.
    ///
    /// ```
    /// # use plimsoll_alloc::{Config, Setting};
    /// let config = Config::default().with_setting("max_split_size", &Setting::Integer(40 << 20))?;
    /// assert_eq!(config.max_split_bytes(), Some(40 << 20));
    /// # Ok::<(), plimsoll_alloc::InvalidOption>(())
    /// ```
    ///
    /// # Errors
    /// If the option's setter rejects the value.
    pub fn with_setting(self, name: &str, setting: &Setting) -> Result<Self, InvalidOption> {
        let row = OPTIONS.iter().find(|row| row.in_snapshot.is_some_and(|(_, its_name)| its_name == name));
        match row {
            Some(row) => row.with_setting(self, setting),
            None => Ok(self),
        }
    }
}
