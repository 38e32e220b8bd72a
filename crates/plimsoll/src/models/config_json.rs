//! Reading a `config.json` of `transformers`: [`Fields`], with which `from_json` of a model's configuration reads it.
//!
//! A state dict has names and shapes only: an activation or a scale that is not the model's would give other numbers without a
//! word. So what a configuration asks for and the model has not is an error here, with its name.

use plimsoll_tensor::{Activation, Error, Result};
use serde_json::{Map, Value};

/// A configuration's fields, with the defaults of `transformers` for those that are not there.
pub(super) struct Fields<'a> {
    model: &'static str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// Those of a configuration for one of these kinds of models.
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

    /// A field that is there, and is not null.
    pub(super) fn given(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Whether a field is there, and is null.
    pub(super) fn is_null(&self, name: &str) -> bool {
        self.map.get(name) == Some(&Value::Null)
    }

    /// The error of a field that needs another value.
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

    /// A field that this model has one value for.
    pub(super) fn only(&self, name: &str, value: impl Into<Value>) -> Result<()> {
        let value = value.into();
        match self.given(name) {
            // A number may be written with a fraction or without.
            Some(given) if *given != value && given.as_f64().is_none_or(|it| value.as_f64() != Some(it)) => {
                self.wrong(name, &format!("{value}: this model has nothing else"))
            }
            _ => Ok(()),
        }
    }

    /// A number that this model has one of for several fields.
    pub(super) fn same(&self, names: &[&str], default: f64) -> Result<f64> {
        let first = self.number(names[0], default)?;
        for name in &names[1..] {
            if self.number(name, default)? != first {
                return self
                    .wrong(name, &format!("{first}, as `{}`: this model has one number for both", names[0]));
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
