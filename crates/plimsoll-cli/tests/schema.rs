//! Checks JSON against its schema: one file of `docs/schema` for each `schema` field. Here every key must be
//! described, although a newer version may add keys for others. Only the schema keywords that those files use are
//! supported. A full JSON Schema validator would bring in thirty crates, and a feature of serde_json that changes how
//! the program reads numbers.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use serde_json::{Value, json};

/// The schemas by file name.
static SCHEMAS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema");
    let entries = fs::read_dir(&folder).expect("docs/schema").map(|entry| entry.expect("an entry").path());
    let schema = |path: &Path| {
        let text = fs::read_to_string(path).expect("a schema");
        serde_json::from_str(&text).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
    };
    let name = |path: &Path| path.file_name().expect("a file").to_string_lossy().into_owned();
    entries.map(|path| (name(&path), schema(&path))).collect()
});

/// Checks that an answer matches its schema: every key is described, and has the stated type.
#[track_caller]
pub(crate) fn check(answer: &Value) {
    let name = answer["schema"].as_str().expect("an answer names its schema");
    let version = name.strip_prefix("plimsoll.").and_then(|name| name.split_once('/'));
    let version = version.expect("plimsoll.VERB/VERSION");
    let file = format!("{}.json", version.0);
    let schema = SCHEMAS.get(&file).unwrap_or_else(|| panic!("no docs/schema/{file}"));
    let mut faults = Vec::new();
    Checker { file: file.clone(), faults: &mut faults }.check(answer, schema, "");
    assert!(faults.is_empty(), "docs/schema/{file}:\n{}", faults.join("\n"));
}

struct Checker<'a> {
    /// The file of the schema.
    file: String,
    faults: &'a mut Vec<String>,
}

impl Checker<'_> {
    fn check(&mut self, value: &Value, schema: &Value, at: &str) {
        for (keyword, said) in
            schema.as_object().unwrap_or_else(|| panic!("{}: a schema is an object", self.file))
        {
            let is_as_said = match keyword.as_str() {
                "$schema"
                | "$id"
                | "$defs"
                | "title"
                | "description"
                | "required"
                | "additionalProperties" => true,
                "$ref" => {
                    self.follow(value, said.as_str().expect("a reference"), at);
                    true
                }
                "anyOf" => said.as_array().expect("schemas").iter().any(|schema| {
                    let mut faults = Vec::new();
                    Checker { file: self.file.clone(), faults: &mut faults }.check(value, schema, at);
                    faults.is_empty()
                }),
                "type" => types(said).any(|name| is_of(value, name)),
                "const" => value == said,
                "enum" => said.as_array().expect("values").contains(value),
                "properties" => {
                    let described = said.as_object().expect("properties");
                    for (key, value) in value.as_object().into_iter().flatten() {
                        let at = format!("{at}/{key}");
                        match described.get(key).or(schema.get("additionalProperties")) {
                            Some(schema) => self.check(value, schema, &at),
                            None => self.faults.push(format!("{at} is not described")),
                        }
                    }
                    true
                }
                "items" => {
                    for (nth, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(item, said, &format!("{at}/{nth}"));
                    }
                    true
                }
                other => panic!("{}: the keyword {other} is not known here", self.file),
            };
            if !is_as_said {
                self.faults.push(format!("{at} is {value}, not {said}"));
            }
        }
        for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if value.is_object() && value.get(key).is_none() {
                self.faults.push(format!("{at}/{key} is missing"));
            }
        }
    }

    /// Checks against `FILE#/POINTER`; the default is the current file.
    fn follow(&mut self, value: &Value, reference: &str, at: &str) {
        let (file, pointer) = reference.split_once('#').expect("FILE#/POINTER");
        let file = if file.is_empty() { self.file.clone() } else { file.to_owned() };
        let schema = SCHEMAS.get(&file).and_then(|schema| schema.pointer(pointer));
        let schema = schema.unwrap_or_else(|| panic!("no {reference} in docs/schema"));
        Checker { file, faults: self.faults }.check(value, schema, at);
    }
}

fn types(said: &Value) -> impl Iterator<Item = &str> {
    said.as_array().map_or(std::slice::from_ref(said), Vec::as_slice).iter().filter_map(Value::as_str)
}

fn is_of(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other} is not a type"),
    }
}

#[test]
fn an_unknown_key_a_missing_one_and_another_type_are_faults() {
    let schema = json!({
        "type": "object",
        "properties": { "a": { "type": ["integer", "null"] }, "b": { "items": { "enum": ["x", "y"] } } },
        "required": ["a"],
    });
    let faults = |value: Value| {
        let mut faults = Vec::new();
        Checker { file: String::new(), faults: &mut faults }.check(&value, &schema, "");
        faults
    };
    assert_eq!(faults(json!({ "a": null, "b": ["x", "y"] })), [""; 0]);
    assert_eq!(faults(json!({ "b": ["z"], "c": 1 })).len(), 3);
    assert_eq!(faults(json!({ "a": "1" })), [r#"/a is "1", not ["integer","null"]"#]);
}
