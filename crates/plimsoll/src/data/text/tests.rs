//! Texts of characters, bytes and tokens, good and bad, and the blocks that are made of them.

use std::sync::Arc;

use super::super::idx::tests::Scratch;
use super::super::{DataLoader, RandomSampler, TokenWidth};
use super::*;

fn batches(loader: &DataLoader, name: &str) -> Vec<Vec<i64>> {
    let values = |batch: super::super::HostBatch| batch.array(name).unwrap().as_slice().unwrap().to_vec();
    loader.epoch(0).map(|batch| values(batch.unwrap())).collect()
}

#[test]
fn the_vocabulary_is_the_sorted_set_of_characters() {
    let text = Text::new("naïve 漢字\nab").unwrap();
    assert_eq!(text.vocabulary().symbols().unwrap(), "\n abenvï字漢");
    let prompt = "ab 字";
    let tokens = text.vocabulary().encode(prompt).unwrap();
    assert_eq!(tokens, [2, 3, 1, 8]);
    assert_eq!(text.vocabulary().decode(&tokens).unwrap(), prompt);
    assert_eq!(&Vocabulary::of(&text.vocabulary().symbols().unwrap()), text.vocabulary());
}

#[test]
fn a_text_of_more_than_256_characters_is_kept_whole() {
    let all: String = ('一'..).take(1000).collect();
    let text = Text::new(&all).unwrap();
    let mut tokens = vec![0; 1000];
    text.tokens().read(0, &mut tokens).unwrap();
    assert_eq!(text.vocabulary().decode(&tokens).unwrap(), all);
    assert_eq!(text.tokens().resident_bytes(), 4000);
}

#[test]
fn what_is_not_in_the_vocabulary_is_named() {
    let text = Text::new("abc").unwrap();
    let error = text.vocabulary().encode("abd").unwrap_err().to_string();
    assert!(error.starts_with("character 2 is 'd', which is not among the 3 characters"), "{error}");
    for token in [3, -1] {
        let error = text.vocabulary().decode(&[0, token]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("token 1 is {token}, but the vocabulary has 3")), "{error}");
    }
}

#[test]
fn the_split_is_nine_to_one_and_the_successors_are_shifted_by_one() {
    let text: String = ('a'..='z').cycle().take(109).collect();
    let parts = Text::new(&text).unwrap().split(4).unwrap();
    // int(109 * 0.9) is 98.
    assert_eq!((parts.train.positions(), parts.validation.positions()), (98 - 4, 11 - 4));
    let loader = DataLoader::new(Arc::new(parts.validation.clone()), 2).unwrap();
    let (x, y) = (batches(&loader, "x"), batches(&loader, "y"));
    let first: i64 = 98 % 26;
    let expected: Vec<i64> = [0, 1, 2, 3, 1, 2, 3, 4].map(|i| (first + i) % 26).to_vec();
    assert_eq!(x[0], expected);
    assert_eq!(y[0], expected.iter().map(|token| (token + 1) % 26).collect::<Vec<_>>());
    // Without overlap, every token except the remainder occurs once.
    let blocks = DataLoader::new(Arc::new(parts.validation.sequential()), 8).unwrap();
    assert_eq!(batches(&blocks, "x"), [(0..8).map(|i| (first + i) % 26).collect::<Vec<_>>()]);
}

#[test]
fn blocks_at_random_positions_depend_on_the_seed_alone() {
    let blocks = Text::sentences(1, 5_000).unwrap().split(16).unwrap().train;
    let loader = |seed, workers| {
        let sampler = RandomSampler::new(blocks.positions(), seed).with_replacement(40);
        DataLoader::new(Arc::new(blocks.clone()), 8).unwrap().sampler(sampler).workers(workers)
    };
    let drawn = batches(&loader(1, 0), "x");
    assert_eq!((drawn.len(), drawn[0].len()), (5, 8 * 16));
    assert_eq!(batches(&loader(1, 3), "x"), drawn);
    assert_ne!(batches(&loader(2, 0), "x"), drawn);
    let shapes = loader(1, 0).shapes_only();
    let batch = shapes.epoch(0).next().unwrap().unwrap();
    assert_eq!((batch.array("y").unwrap().shape.clone(), shapes.len()), (vec![8, 16], 5));
}

#[test]
fn a_text_shorter_than_the_context_is_an_error_with_both_numbers() {
    let text = Text::new(&"ab".repeat(50)).unwrap();
    let message = text.split(10).unwrap_err().to_string();
    assert_eq!(
        message,
        "a text of 100 tokens is too short for a context of 10: its validation part has 10, 11 are needed; \
         use a longer text or a shorter context"
    );
    assert!(text.split(9).is_ok());
    assert!(text.split(256).unwrap_err().to_string().contains("training part has 90, 257 are needed"));
    let blocks = Blocks::new(text.tokens().clone(), 100).unwrap_err().to_string();
    assert!(blocks.starts_with("100 tokens are too few for a context of 100: 101 are needed"), "{blocks}");
    assert_eq!(Blocks::new(text.tokens().clone(), 99).unwrap().sequential().positions(), 1);
    assert!(text.split(0).unwrap_err().to_string().contains("context is 0"));
    assert!(text.split(usize::MAX).is_err());
}

#[test]
fn a_file_that_is_not_utf_8_is_an_error_but_can_be_read_as_bytes() {
    let scratch = Scratch::folder("not-utf-8");
    let path = scratch.put("latin1.txt", b"caf\xe9 au lait, s'il vous pla\xeet");
    let message = Text::read(&path).unwrap_err().to_string();
    assert!(message.contains("latin1.txt is not UTF-8: byte 0xe9 at offset 3; convert it"), "{message}");
    let text = Text::read_bytes(&path).unwrap();
    assert_eq!(text.vocabulary().len(), 256);
    let mut tokens = vec![0; 4];
    text.tokens().read(0, &mut tokens).unwrap();
    assert_eq!(text.vocabulary().decode_bytes(&tokens).unwrap(), b"caf\xe9");
    assert_eq!(text.vocabulary().decode(&tokens).unwrap(), "caf\u{fffd}");
}

#[test]
fn an_empty_or_missing_file_is_an_error() {
    let scratch = Scratch::folder("empty-text");
    let path = scratch.put("empty.txt", b"");
    type Read = fn(&Path) -> Result<Text, DataError>;
    let reads: [Read; 2] = [Text::read, Text::read_bytes];
    for read in reads {
        assert!(read(&path).unwrap_err().to_string().contains("empty.txt is empty"));
        assert!(read(&scratch.0.join("none")).unwrap_err().to_string().starts_with("cannot read"));
    }
    assert!(Tokens::open(&path, TokenWidth::U16).unwrap_err().to_string().contains("empty.txt is empty"));
    assert!(Text::sentences(1, 0).is_err());
}

#[test]
fn a_token_file_reads_as_its_numbers_in_either_width() {
    let scratch = Scratch::folder("tokens");
    let numbers: Vec<u32> = (0..5000).map(|i| i * 13 % 50_257).collect();
    let two: Vec<u8> = numbers.iter().flat_map(|&n| (n as u16).to_le_bytes()).collect();
    let four: Vec<u8> = numbers.iter().flat_map(|&n| (n + 100_000).to_le_bytes()).collect();
    for (bytes, width, offset) in [(two, TokenWidth::U16, 0), (four, TokenWidth::U32, 100_000)] {
        let tokens = Tokens::open(&scratch.put("train.bin", &bytes), width).unwrap();
        let mut read = vec![0; 4990];
        tokens.range(5..5000).unwrap().read(5, &mut read).unwrap();
        let expected: Vec<i64> = numbers[10..].iter().map(|&n| i64::from(n + offset)).collect();
        assert_eq!((read, tokens.resident_bytes()), (expected, 0));
        assert!(tokens.read(4999, &mut [0; 2]).is_err());
    }
}

#[test]
fn a_damaged_token_file_is_an_error_that_names_it() {
    let scratch = Scratch::folder("bad-tokens");
    let odd = scratch.put("odd.bin", &[0; 7]);
    let message = Tokens::open(&odd, TokenWidth::U16).unwrap_err().to_string();
    assert!(message.contains("odd.bin has 7 bytes, which is not a multiple of 2"), "{message}");
    assert!(Tokens::open(&scratch.0, TokenWidth::U16).unwrap_err().to_string().starts_with("cannot open"));

    let path = scratch.put("long.bin", &[1; 4000]);
    let tokens = Tokens::open(&path, TokenWidth::U16).unwrap();
    let loader = DataLoader::new(Arc::new(Blocks::new(tokens.clone(), 100).unwrap()), 4).unwrap();
    scratch.put("long.bin", &[1; 20]);
    let message = loader.epoch(0).next().unwrap().unwrap_err().to_string();
    assert!(message.contains("batch 0, sample 0: cannot read") && message.contains("long.bin"), "{message}");

    scratch.put("long.bin", &[1; 4000]);
    let message = tokens.vocabulary(257).read(3, &mut [0; 5]).unwrap_err().to_string();
    assert!(message.starts_with("token 3 is 257, but the vocabulary has 257 tokens"), "{message}");
}

#[test]
fn the_sentences_of_a_seed_never_change() {
    let text = grammar::sentences(1, 300);
    assert_eq!(text, grammar::sentences(1, 10_000)[..text.len() - 1].to_owned() + "\n");
    assert_ne!(text, grammar::sentences(2, 300));
    assert!(text.len() >= 300 && text.ends_with(".\n"), "{text}");
    let vocabulary = Vocabulary::of(&grammar::sentences(1, 100_000));
    assert!((30..60).contains(&vocabulary.len()), "{:?}", vocabulary.symbols());
    assert!(
        text.starts_with(
            "The kind engineers sing behind the house. Then they follow some children under a tree."
        ),
        "{text}"
    );
}

/// Tiny Shakespeare, if it lies next to the checkout (it is not in the repository).
#[test]
fn tiny_shakespeare_has_the_vocabulary_that_nanogpt_prints() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/tinyshakespeare/input.txt");
    if !path.is_file() {
        eprintln!("skipped: no {}", path.display());
        return;
    }
    let text = Text::read(&path).unwrap();
    let symbols = text.vocabulary().symbols().unwrap();
    assert_eq!(symbols, "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz");
    let parts = text.split(256).unwrap();
    // train has 1,003,854 tokens, val has 111,540 tokens (nanoGPT's readme).
    assert_eq!((parts.train.positions(), parts.validation.positions()), (1_003_854 - 256, 111_540 - 256));
}
