//! A set in the form that the Python package reads.

use serde_json::{Map, Value, json};

use super::set::Set;

impl Set {
    /// Names and values, as JSON.
    pub(crate) fn json(&self) -> String {
        Value::Object(self.map()).to_string()
    }

    /// The same JSON with a request to count the operators of a step.
    pub(crate) fn counted(&self) -> String {
        let mut map = self.map();
        map.insert("count".to_owned(), json!(null));
        Value::Object(map).to_string()
    }

    /// The same JSON with a request for a different batch size: `rows` rows instead of `of`. With 0 rows, the
    /// batch is only reported.
    pub(crate) fn batched(&self, rows: u64, of: u64, way: &str) -> String {
        let mut map = self.map();
        map.insert("batch".to_owned(), json!({ "rows": rows, "of": of, "way": way }));
        Value::Object(map).to_string()
    }

    /// The same JSON for a program whose source has a smaller batch: the optimizer's step has an effect in every `parts`th
    /// iteration, and the batch is reported.
    pub(crate) fn accumulated(&self, parts: u64) -> String {
        let mut map = self.map();
        map.insert("batch".to_owned(), json!({ "rows": 0, "of": 0, "way": "tensors" }));
        map.insert("micro-batch".to_owned(), json!(parts));
        Value::Object(map).to_string()
    }

    fn map(&self) -> Map<String, Value> {
        let entries = self.entries().iter();
        entries.map(|(technique, value)| (technique.name().to_owned(), json!(value))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_reads_names_and_values() {
        assert_eq!(
            Set::parse("checkpoint=4,expandable").unwrap().json(),
            r#"{"checkpoint":4,"expandable":null}"#
        );
    }
}
