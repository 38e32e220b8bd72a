//! Reading a `config.json` of `transformers`: each model's `from_json` uses [`Fields`].
//!
//! A state dict contains only names and shapes, so a model with a different activation or scale would silently compute
//! different numbers. Therefore a setting that the model does not support is an error here, which names it.

use plimsoll_tensor::{Activation, Error, Result};
use serde_json::{Map, Value};

/// A configuration's fields, with the defaults of `transformers` for missing ones.
pub(super) struct Fields<'a> {
    model: &'static str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The fields of a configuration, whose model type must be one of `kinds`.
    pub(super) fn of(model: &'static str, kinds: &[&str], value: &'a Value) -> Result<Fields<'a>> {
        let Some(map) = value.as_object() else {
            return Err(error(model, "config.json: needs an object `{…}`"));
        };
        let fields = Fields { model, map };
        match fields.text("model_type")? {
            Some(kind) if !kinds.contains(&kind) => {
                let of =
                    format!("config.json is of model_type `{kind}`; this model reads {}", kinds.join(", "));
                Err(error(model, of))
            }
            _ => Ok(fields),
        }
    }

    /// Returns a field that is present and not null.
    pub(super) fn given(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Whether a field is present and null.
    pub(super) fn is_null(&self, name: &str) -> bool {
        self.map.get(name) == Some(&Value::Null)
    }

    /// Returns the error for a field with an unsupported value.
    pub(super) fn wrong<T>(&self, name: &str, needs: &str) -> Result<T> {
        let found = self.map.get(name).map_or("is not given".to_owned(), |value| format!("is {value}"));
        Err(error(self.model, format!("config.json: `{name}` {found}; needs {needs}")))
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>> {
        let text = |value: &'a Value| value.as_str().map_or_else(|| self.wrong(name, "a text"), Ok);
        self.given(name).map(text).transpose()
    }

    pub(super) fn count_if_given(&self, name: &str) -> Result<Option<usize>> {
        let count = |value: &Value| value.as_u64().and_then(|count| usize::try_from(count).ok());
        self.given(name)
            .map(|value| count(value).map_or_else(|| self.wrong(name, "a whole number"), Ok))
            .transpose()
    }

    pub(super) fn count(&self, name: &str, default: usize) -> Result<usize> {
        Ok(self.count_if_given(name)?.unwrap_or(default))
    }

    pub(super) fn number_if_given(&self, name: &str) -> Result<Option<f64>> {
        self.given(name)
            .map(|value| value.as_f64().map_or_else(|| self.wrong(name, "a number"), Ok))
            .transpose()
    }

    pub(super) fn number(&self, name: &str, default: f64) -> Result<f64> {
        Ok(self.number_if_given(name)?.unwrap_or(default))
    }

    pub(super) fn numbers(&self, name: &str) -> Result<Vec<f64>> {
        let numbers = self.given(name).and_then(Value::as_array);
        let numbers = numbers.and_then(|numbers| numbers.iter().map(Value::as_f64).collect());
        numbers.map_or_else(|| self.wrong(name, "a list of numbers"), Ok)
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        let flag = |value: &Value| value.as_bool().map_or_else(|| self.wrong(name, "true or false"), Ok);
        self.given(name).map_or(Ok(default), flag)
    }

    pub(super) fn activation(&self, name: &str, default: Activation) -> Result<Activation> {
        Ok(match self.text(name)? {
            None => default,
            Some("relu") => Activation::Relu,
            Some("gelu" | "gelu_python") => Activation::Gelu,
            Some("gelu_new" | "gelu_fast" | "gelu_pytorch_tanh") => Activation::GeluTanh,
            Some("silu" | "swish") => Activation::Silu,
            Some(_) => return self.wrong(name, "relu, gelu, gelu_new or silu: this model has no other"),
        })
    }

    /// Checks a field for which this model supports only one value.
    pub(super) fn only(&self, name: &str, value: impl Into<Value>) -> Result<()> {
        let value = value.into();
        match self.given(name) {
            // A number may be written with or without a decimal point.
            Some(given) if *given != value && given.as_f64().is_none_or(|it| value.as_f64() != Some(it)) => {
                self.wrong(name, &format!("{value}: no other value is supported"))
            }
            _ => Ok(()),
        }
    }

    /// Reads a number for which the file has several fields and this model only one.
    pub(super) fn same(&self, names: &[&str], default: f64) -> Result<f64> {
        let first = self.number(names[0], default)?;
        for name in &names[1..] {
            if self.number(name, default)? != first {
                return self.wrong(
                    name,
                    &format!(
                        "{first}, the same value as `{}`: this model uses one value for both fields",
                        names[0]
                    ),
                );
            }
        }
        Ok(first)
    }
}

fn error(op: &'static str, message: impl Into<String>) -> Error {
    Error::Argument { op, message: message.into() }
}

pub(super) fn parsed(model: &'static str, text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|why| error(model, format!("config.json: {why}")))
}
