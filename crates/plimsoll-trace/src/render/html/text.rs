//! Makes untrusted text safe for the page: [`Text`], [`Whole`] and [`Sentence`] for HTML, [`json`] for a script
//! element. Whatever the text contains, it cannot end the element that contains it.

use std::borrow::Cow;
use std::fmt;

use serde_json::Value;

/// The maximum number of characters of one text: names in a file may have any length.
const MOST_CHARS: usize = 240;

/// The maximum number of characters of a sentence: it may name several lines.
const MOST_OF_SENTENCE: usize = 1200;

/// A text as HTML, for use inside an element or between double quotes, shortened to a readable length.
pub(super) struct Text<T>(pub(super) T);

impl<T: AsRef<str>> fmt::Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escaped(f, &clipped(self.0.as_ref()))
    }
}

/// A text that comes from the user, unshortened.
pub(super) struct Whole<T>(pub(super) T);

impl<T: AsRef<str>> fmt::Display for Whole<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escaped(f, self.0.as_ref())
    }
}

/// A sentence of ours that includes names, as HTML. If it is too long, only its beginning is kept.
pub(super) struct Sentence<T>(pub(super) T);

impl<T: AsRef<str>> fmt::Display for Sentence<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.as_ref();
        match text.char_indices().nth(MOST_OF_SENTENCE) {
            Some((end, _)) => escaped(f, &text[..end]).and_then(|()| f.write_str("…")),
            None => escaped(f, text),
        }
    }
}

/// The sentence with its first letter capitalised, unless it begins with a path, a command or another name.
pub(super) fn capital(sentence: &str) -> Cow<'_, str> {
    let word = sentence.split_whitespace().next().unwrap_or_default();
    let is_word = |word: &str| !word.is_empty() && word.chars().all(|char| char.is_ascii_lowercase());
    if !is_word(word.trim_end_matches([',', ':', ';', '.'])) {
        return Cow::Borrowed(sentence);
    }
    let (first, rest) = sentence.split_at(1);
    Cow::Owned(first.to_ascii_uppercase() + rest)
}

fn escaped(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    for char in text.chars() {
        match char {
            '&' => f.write_str("&amp;")?,
            '<' => f.write_str("&lt;")?,
            '>' => f.write_str("&gt;")?,
            '"' => f.write_str("&quot;")?,
            '\'' => f.write_str("&#39;")?,
            // Bidirectional control characters could make a path look like another path.
            char if is_hidden(char) => f.write_str("\u{fffd}")?,
            char => fmt::Write::write_char(f, char)?,
        }
    }
    Ok(())
}

/// If a text is too long, keeps only its end, which is the most specific part of a path and of most names.
pub(super) fn clipped(text: &str) -> String {
    match text.char_indices().rev().nth(MOST_CHARS - 1) {
        Some((at, _)) if at > 0 => format!("…{}", &text[at..]),
        _ => text.to_owned(),
    }
}

/// JSON that can be put in a script element. It has no `<`, so it cannot contain a tag or a comment.
pub(super) fn json(value: &Value) -> String {
    let text = value.to_string();
    let mut safe = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                safe.push_str(&format!("\\u{:04x}", u32::from(char)));
            }
            char => safe.push(char),
        }
    }
    safe
}

fn is_hidden(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_text_ends_its_element_or_its_attribute() {
        let shown = Text(r#"</script><img src="x" onerror='y'>&"#).to_string();
        assert_eq!(shown, "&lt;/script&gt;&lt;img src=&quot;x&quot; onerror=&#39;y&#39;&gt;&amp;");
        assert_eq!(Text("a\u{202e}b\u{0}").to_string(), "a\u{fffd}b\u{fffd}");
    }

    #[test]
    fn json_holds_no_tag_and_means_the_same() {
        let value = json!({ "</script><!--": ["<b>", "\u{2028}&"] });
        let shown = json(&value);
        assert!(!shown.contains(['<', '>', '&']), "{shown}");
        assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), value);
    }

    #[test]
    fn sentences_begin_with_a_capital_and_names_stay() {
        for (text, expected) in [
            ("a list grows", "A list grows"),
            ("steady: 3 steps", "Steady: 3 steps"),
            ("src/model.py:41 forward: a list", "src/model.py:41 forward: a list"),
            ("train.py keeps", "train.py keeps"),
            ("expandable_segments:True would have", "expandable_segments:True would have"),
            ("1.00 MiB is", "1.00 MiB is"),
            ("", ""),
        ] {
            assert_eq!(capital(text), expected);
        }
    }

    #[test]
    fn long_texts_keep_their_ends() {
        let long = format!("{}model.py:41", "é/".repeat(4000));
        let shown = clipped(&long);
        assert_eq!((shown.chars().count(), shown.ends_with("/model.py:41")), (MOST_CHARS + 1, true));
        assert_eq!(clipped("short"), "short");
        let sentence = Sentence(format!("peak <{}", "x".repeat(4000))).to_string();
        assert!(sentence.starts_with("peak &lt;x") && sentence.ends_with("x…") && sentence.len() < 1300);
    }
}
