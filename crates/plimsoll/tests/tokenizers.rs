//! Compares tokenizers with those of Hugging Face's Python library: tokens, texts, and damaged files.
//! `fixtures/make_tokenizers.py` makes `fixtures/tokenizers/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll::data::{Blocks, DataLoader, SpecialTokens, Text, Tokenizer};
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers").join(name)
}

fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::open(&fixture(&format!("{name}.json"))).unwrap()
}

/// A temporary file of this test, deleted when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Scratch {
        let path = std::env::temp_dir().join(format!("plimsoll-tokenizers-{}-{name}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn tokens_and_texts_are_those_of_the_python_library() {
    let expected: Value =
        serde_json::from_str(&fs::read_to_string(fixture("expected.json")).unwrap()).unwrap();
    for (name, expected) in expected.as_object().unwrap() {
        let tokenizer = tokenizer(name);
        assert_eq!(tokenizer.len() as u64, expected["size"].as_u64().unwrap(), "{name}");
        for case in expected["texts"].as_array().unwrap() {
            let text = case["in"].as_str().unwrap();
            let ids = |key: &str| serde_json::from_value::<Vec<i64>>(case[key].clone()).unwrap();
            let encode = |special| tokenizer.encode(text, special).unwrap();
            assert_eq!(encode(SpecialTokens::Without), ids("plain"), "{name}: {text:?}");
            assert_eq!(encode(SpecialTokens::With), ids("whole"), "{name}: {text:?}");
            let decode = |special| tokenizer.decode(&ids("whole"), special).unwrap();
            assert_eq!(decode(SpecialTokens::Without), case["decoded"]["text"], "{name}: {text:?}");
            assert_eq!(decode(SpecialTokens::With), case["decoded"]["with special"], "{name}: {text:?}");
        }
    }
}

#[test]
fn a_text_file_becomes_blocks_of_its_tokens() {
    let gpt2 = tokenizer("gpt2");
    let text = "the ship carries a line that says how far it may be loaded. ".repeat(40);
    let file = Scratch::new("book.txt", text.as_bytes());
    let tokens = gpt2.read(&file.0).unwrap();
    let mut all = vec![0; tokens.len()];
    tokens.read(0, &mut all).unwrap();
    assert_eq!(all, gpt2.encode(&text, SpecialTokens::Without).unwrap());
    assert_eq!(gpt2.decode(&all, SpecialTokens::With).unwrap(), text);
    let parts = Text::split_tokens(&tokens, 8).unwrap();
    let batch = DataLoader::new(Arc::new(parts.train), 4).unwrap().epoch(0).next().unwrap().unwrap();
    assert_eq!(batch.array("x").unwrap().as_slice::<i64>().unwrap()[..8], all[..8]);
    let message = Blocks::new(tokens, all.len()).unwrap_err().to_string();
    assert!(message.contains("are too few for a context of"), "{message}");
    assert_eq!(gpt2.token("<|endoftext|>"), Some(0));
    assert_eq!(gpt2.token("no such token"), None);
}

#[test]
fn what_is_not_a_tokenizer_or_not_a_text_is_an_error_that_names_it() {
    let whole = fs::read(fixture("bert.json")).unwrap();
    for length in (0..whole.len()).step_by(311) {
        let file = Scratch::new("cut.json", &whole[..length]);
        let message = Tokenizer::open(&file.0).unwrap_err().to_string();
        assert!(message.contains("cut.json is not a tokenizer: "), "{length}: {message}");
        assert!(message.contains("give a tokenizer.json of the `tokenizers` library"), "{message}");
    }
    let replaced = |from: &str, to: &str| {
        let text = String::from_utf8(whole.clone()).unwrap();
        assert!(text.contains(from), "{from}");
        let file = Scratch::new("changed.json", text.replacen(from, to, 1).as_bytes());
        Tokenizer::open(&file.0).map(|_| ()).unwrap_err().to_string()
    };
    assert!(replaced("\"BertPreTokenizer\"", "\"Unheard\"").contains("changed.json is not a tokenizer"));
    for other in [&b"{}"[..], b"[]", b"\x80\x02}", b"{\"vocab\": 3}"] {
        let file = Scratch::new("other.json", other);
        assert!(Tokenizer::open(&file.0).unwrap_err().to_string().contains("other.json is not a tokenizer"));
    }
    assert!(
        Tokenizer::open(Path::new("/no/such/tokenizer.json"))
            .unwrap_err()
            .to_string()
            .starts_with("cannot read")
    );

    let bert = tokenizer("bert");
    for token in [-1, 100_000, i64::MAX] {
        let message = bert.decode(&[3, token], SpecialTokens::With).unwrap_err().to_string();
        assert!(message.starts_with(&format!("token 1 is {token}, but the vocabulary has")), "{message}");
    }
    let read = |name: &str, bytes: &[u8]| bert.read(&Scratch::new(name, bytes).0).unwrap_err().to_string();
    assert!(read("empty.txt", b"").contains("is empty; give a file with text in it"));
    assert!(read("latin.txt", b"caf\xe9").contains("is not UTF-8: byte 0xe9 at offset 3"));
}
