//! A GPU's row as a file: what `calibrate` writes and `--gpu FILE.json` reads.
//!
//! The file has the properties that [`plimsoll_gpu::described`] reads, and the measured bytes under the
//! same names.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

use crate::exit::{Exit, Failure};

/// The schema of the file.
pub(crate) const SCHEMA: &str = "plimsoll.calibrate/1";

/// The size of the largest file that is read.
const MOST_BYTES: u64 = 1 << 20;

/// Whether the value of `--gpu` names a file.
pub(crate) fn is_file(text: &str) -> bool {
    text.trim().to_ascii_lowercase().ends_with(".json")
}

/// The description of the GPU in a file.
///
/// # Errors
/// If the file cannot be read, or is not a row.
pub(crate) fn read(path: &str) -> Result<String, Failure> {
    let unreadable = |why: String| Failure::new(Exit::Unreadable, format!("{path}: {why}"));
    let file = Path::new(path.trim());
    let stored = fs::metadata(file).map_err(|why| unreadable(why.to_string()))?;
    if !stored.is_file() {
        return Err(unreadable("not a file, but a folder, a pipe or a device".to_owned()));
    }
    if stored.len() > MOST_BYTES {
        return Err(unreadable("too large for a row of `plimsoll calibrate`".to_owned()));
    }
    let text = fs::read_to_string(file).map_err(|why| unreadable(why.to_string()))?;
    let value: Value = serde_json::from_str(&text).map_err(|why| unreadable(format!("not JSON: {why}")))?;
    described(&value).map_err(unreadable)
}

/// The description in the value of a file.
fn described(value: &Value) -> Result<String, String> {
    match value.get("schema").and_then(Value::as_str) {
        Some(SCHEMA) => {}
        Some(other) => {
            return Err(format!(
                "has the schema {other}, not {SCHEMA}: write it again with `plimsoll calibrate`"
            ));
        }
        None => return Err(format!("not a row of `plimsoll calibrate`, which has the schema {SCHEMA}")),
    }
    let parts = |key: &str| -> Result<Vec<String>, String> {
        let none = Map::new();
        let map = value.get(key).and_then(Value::as_object).unwrap_or(&none);
        map.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| part(key, value)).collect()
    };
    let (properties, known) = (parts("properties")?, parts("known")?);
    if properties.is_empty() {
        return Err("has no properties".to_owned());
    }
    let basis = if known.is_empty() { Vec::new() } else { vec!["basis=measured".to_owned()] };
    Ok(format!("custom:{}", [properties, basis, known].concat().join(",")))
}

fn part(key: &str, value: &Value) -> Result<String, String> {
    let text = match value {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        _ => return Err(format!("{key} is neither a number nor a string")),
    };
    if [key, &text].iter().any(|it| it.contains([',', '='])) {
        return Err(format!("{key} contains a comma or an equals sign"));
    }
    Ok(format!("{key}={text}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_is_a_description_with_measured_bytes() {
        let row = json!({ "schema": SCHEMA, "properties": { "like": "H100", "memory": 7_000_000_000_u64 },
            "known": { "context": 552_402_944, "nccl": null } });
        let text = described(&row).unwrap();
        assert_eq!(text, "custom:like=H100,memory=7000000000,basis=measured,context=552402944");
        let gpu = plimsoll_gpu::described(&text).unwrap().gpu;
        assert_eq!(gpu.known.context.map(|it| it.bytes), Some(552_402_944));
    }

    #[test]
    fn what_is_no_row_is_refused_with_the_reason() {
        for (row, why) in [
            (json!({}), "not a row"),
            (json!({ "schema": "plimsoll.calibrate/2" }), "has the schema plimsoll.calibrate/2"),
            (json!({ "schema": SCHEMA }), "has no properties"),
            (json!({ "schema": SCHEMA, "properties": { "name": "a,memory=1" } }), "contains a comma"),
            (json!({ "schema": SCHEMA, "properties": { "name": [] } }), "neither a number nor a string"),
        ] {
            let found = described(&row).unwrap_err();
            assert!(found.contains(why), "{found}");
        }
        assert!(read("/no/such/row.json").is_err_and(|why| why.exit == Exit::Unreadable));
        assert!(is_file("rows/H100.json") && is_file("A.JSON") && !is_file("H100"));
    }
}
