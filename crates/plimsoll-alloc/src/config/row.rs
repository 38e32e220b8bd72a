//! An option of the configuration string: [`Row`], with its type, [`Value`]. A row reads and writes its option's value, in a
//! string and in a snapshot; `options.rs` has the rows.

use super::error::{ConfigError, InvalidOption};
use super::reader::{Named, Reader};
use super::setting::Setting;
use super::value::{MIB, Shortest};
use super::warning::WarningKind;

/// When an option's value is read: Note [Two passes] in `parse.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// Before all others, even inside another option's value.
    First,
    /// With the options of every accelerator.
    Accelerator,
    /// Parsed with CUDA's options.
    Cuda,
}

/// The options with a value set, or why the value is invalid.
pub(super) type Checked<C> = Result<C, InvalidOption>;

/// The type of an option, and its getter and setter.
pub(super) enum Value<C> {
    /// `True` or `False`.
    Switch(fn(&C) -> bool, fn(C, bool) -> C),
    /// MiB in the string, bytes elsewhere. None means no limit, or PyTorch's behaviour when the option is not set.
    Size(fn(&C) -> Option<u64>, fn(C, Option<u64>) -> Checked<C>),
    /// A whole number.
    Count(fn(&C) -> u64, fn(C, u64) -> Checked<C>),
    /// A floating-point number.
    Real(fn(&C) -> f64, fn(C, f64) -> Checked<C>),
    /// A value that its own functions read and write.
    Own(Own<C>),
}

/// The functions that read and write such a value.
pub(super) struct Own<C> {
    /// Reads the option's value in a string, and returns where it ends.
    pub(super) read: fn(&mut Reader, &mut C, Named) -> Result<usize, ConfigError>,
    /// The value in a string; None for the default.
    pub(super) written: fn(&C) -> Option<String>,
    /// The value in a snapshot's form.
    pub(super) setting: fn(&C) -> Option<Setting>,
    /// Sets the value from a snapshot's.
    pub(super) with_setting: fn(C, &Setting) -> Checked<C>,
}

impl<C> Own<C> {
    /// A value that can be read from a string, but is never written, and is in no snapshot.
    pub(super) const fn new(read: fn(&mut Reader, &mut C, Named) -> Result<usize, ConfigError>) -> Own<C> {
        Own { read, written: |_| None, setting: |_| None, with_setting: |config, _| Ok(config) }
    }
}

/// An option of the configuration string.
pub(super) struct Row<C> {
    pub(super) name: &'static str,
    /// PyTorch's alternative name for it, from ROCm.
    pub(super) alias: Option<&'static str>,
    pub(super) pass: Pass,
    pub(super) value: Value<C>,
    /// Its position and its name in the settings of a snapshot.
    pub(super) in_snapshot: Option<(usize, &'static str)>,
    /// Why it has no effect on this allocator.
    pub(super) no_effect: Option<&'static str>,
    /// PyTorch's warning for the value that was set, if any.
    pub(super) warning: fn(&C) -> Option<WarningKind>,
}

impl<C> Row<C> {
    /// An option that has an effect on this allocator, but is in no snapshot.
    pub(super) const fn new(name: &'static str, pass: Pass, value: Value<C>) -> Row<C> {
        Row { name, alias: None, pass, value, in_snapshot: None, no_effect: None, warning: |_| None }
    }

    /// Its names.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> + use<C> {
        [self.name].into_iter().chain(self.alias)
    }

    /// The value in a string's form; None if it equals `default`'s.
    pub(super) fn written(&self, config: &C, default: &C) -> Option<String> {
        match &self.value {
            Value::Switch(get, _) => (get(config) != get(default)).then(|| switch(get(config)).to_owned()),
            Value::Size(get, _) => {
                let changed = get(config).filter(|&bytes| Some(bytes) != get(default));
                changed.map(|bytes| (bytes / MIB).to_string())
            }
            Value::Count(get, _) => (get(config) != get(default)).then(|| get(config).to_string()),
            Value::Real(get, _) => (get(config) != get(default)).then(|| number(get(config))),
            Value::Own(own) => (own.written)(config),
        }
    }

    /// The value in a snapshot's form, where unlimited sizes are -1. This exists even for options that are in no
    /// snapshot.
    pub(super) fn setting(&self, config: &C) -> Option<Setting> {
        Some(match &self.value {
            Value::Switch(get, _) => Setting::Switch(get(config)),
            // PyTorch converts unsigned sizes to signed ones.
            Value::Size(get, _) => Setting::Integer(get(config).unwrap_or(u64::MAX).cast_signed()),
            Value::Count(get, _) => Setting::Integer(get(config).cast_signed()),
            Value::Real(get, _) => Setting::Real(get(config)),
            Value::Own(own) => return (own.setting)(config),
        })
    }

    /// The options with this value from a snapshot. A value of a different type changes nothing.
    pub(super) fn with_setting(&self, config: C, setting: &Setting) -> Checked<C> {
        match (&self.value, setting) {
            (Value::Switch(_, set), &Setting::Switch(on)) => Ok(set(config, on)),
            (Value::Size(_, set), &Setting::Integer(bytes)) => set(config, u64::try_from(bytes).ok()),
            (Value::Count(_, set), &Setting::Integer(count)) => set(config, count.cast_unsigned()),
            (Value::Real(_, set), &Setting::Real(value)) => set(config, value),
            (Value::Own(own), setting) => (own.with_setting)(config, setting),
            _ => Ok(config),
        }
    }
}

impl<C: Clone> Row<C> {
    /// Reads the value of this option, and returns where it ends. A one-word value is two words after the option's name.
    pub(super) fn read(
        &self,
        reader: &mut Reader,
        config: &mut C,
        option: Named,
    ) -> Result<usize, ConfigError> {
        let end = match &self.value {
            Value::Switch(_, set) => {
                word(reader, config, option, Reader::switch, |config, on| Ok(set(config, on)))?
            }
            Value::Size(_, set) => {
                word(reader, config, option, Reader::mebibytes, |config, bytes| set(config, Some(bytes)))?
            }
            Value::Count(_, set) => word(reader, config, option, Reader::whole, set)?,
            Value::Real(_, set) => word(reader, config, option, Reader::real, set)?,
            Value::Own(own) => (own.read)(reader, config, option)?,
        };
        if let Some(because) = self.no_effect {
            reader.no_effect(option, because);
        }
        if let Some(slip) = (self.warning)(config) {
            reader.warn(option.at + 2, slip);
        }
        Ok(end)
    }
}

/// Reads the single word that is an option's value, sets the option, and returns where the word is.
fn word<C: Clone, T>(
    reader: &mut Reader,
    config: &mut C,
    option: Named,
    read: impl FnOnce(&mut Reader, Named, usize) -> Result<T, ConfigError>,
    set: impl FnOnce(C, T) -> Checked<C>,
) -> Result<usize, ConfigError> {
    let at = reader.value_at(option, option.at)?;
    let value = read(reader, option, at)?;
    *config = set(config.clone(), value).map_err(|why| reader.invalid(option, at, why))?;
    Ok(at)
}

fn switch(on: bool) -> &'static str {
    if on { "True" } else { "False" }
}

/// C's `stod` rejects the smallest numbers in decimal if they are not exact, but accepts them in hexadecimal.
fn number(value: f64) -> String {
    if value >= f64::MIN_POSITIVE {
        Shortest(value).to_string()
    } else {
        format!("0x{:x}p-1074", value.to_bits())
    }
}
