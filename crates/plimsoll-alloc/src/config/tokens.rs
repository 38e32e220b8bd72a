//! The words of a configuration string, with their byte ranges.
//!
//! Like PyTorch's `ConfigTokenizer`: each of `, : [ ]` is a separate word, and white space is dropped everywhere,
//! even inside a word. The grammar is in parse.rs.

use std::ops::Range;

/// A word, without the white space inside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) text: String,
    /// Its byte range in the string.
    pub(super) range: Range<usize>,
}

impl Token {
    /// Whether it had white space inside.
    pub(super) fn is_spaced(&self) -> bool {
        self.text.len() < self.range.len()
    }
}

/// Splits `source` into words.
pub(super) fn tokens(source: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    let mut in_word = false;
    for (at, char) in source.char_indices().filter(|&(_, char)| !is_dropped(char)) {
        let range = at..at + char.len_utf8();
        let separator = matches!(char, ',' | ':' | '[' | ']');
        match tokens.last_mut() {
            Some(word) if in_word && !separator => {
                word.text.push(char);
                word.range.end = range.end;
            }
            _ => tokens.push(Token { text: char.into(), range }),
        }
        in_word = !separator;
    }
    tokens
}

/// White space as in C's `isspace`, which includes the vertical tab; Rust's `is_ascii_whitespace` does not.
fn is_dropped(char: char) -> bool {
    matches!(char, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_is_dropped_and_separators_are_words() {
        let words: Vec<_> = tokens(" a b:[1,\t>:2 ]").into_iter().map(|t| (t.text, t.range)).collect();
        let expected =
            [("ab", 1..4), (":", 4..5), ("[", 5..6), ("1", 6..7), (",", 7..8), (">", 9..10), (":", 10..11)];
        assert_eq!(words[..7], expected.map(|(text, range)| (text.to_owned(), range)));
        assert_eq!(words[7..], [("2", 11..12), ("]", 13..14)].map(|(text, range)| (text.to_owned(), range)));
    }

    #[test]
    fn white_space_beyond_ascii_is_part_of_a_word() {
        assert_eq!(tokens("4\u{a0}0").len(), 1);
        assert_eq!(tokens(" \x0b\x0c"), []);
    }
}
