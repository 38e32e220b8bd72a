//! Lines of at most 100 columns.

use std::fmt::Write;

/// Columns of a line.
pub(super) const WIDTH: usize = 100;

/// Adds a line, in several if it is long.
pub(super) fn line(out: &mut String, text: &str) {
    let _ = writeln!(out, "{}", wrapped(text, WIDTH));
}

/// Wraps text to this many columns. Lines after the first are indented by two more columns; a longer word
/// stays whole.
pub(super) fn wrapped(text: &str, width: usize) -> String {
    let indent = text.chars().take_while(|char| *char == ' ').count();
    let (mut out, mut column) = (" ".repeat(indent), indent);
    let mut is_first = true;
    // The blanks of a table stay.
    for word in text[indent..].split_inclusive(' ') {
        let length = word.trim_end().chars().count();
        if !is_first && column + length > width {
            out.truncate(out.trim_end().len());
            out.push('\n');
            out.push_str(&" ".repeat(indent + 2));
            column = indent + 2;
            if length == 0 {
                continue;
            }
        }
        out.push_str(word);
        column += word.chars().count();
        is_first = false;
    }
    out.truncate(out.trim_end().len());
    out
}

/// The line, cut to its columns.
pub(super) fn cut(text: &str) -> String {
    if text.chars().count() <= WIDTH {
        return text.trim_end().to_owned();
    }
    let kept: String = text.chars().take(WIDTH - 1).collect();
    format!("{}…", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_wrapped_at_blanks_and_long_words_stay() {
        assert_eq!(wrapped("one two three", 8), "one two\n  three");
        assert_eq!(wrapped("  one two three", 9), "  one two\n    three");
        assert_eq!(wrapped("one two", 7), "one two");
        assert_eq!(wrapped("a-word-that-is-long and", 8), "a-word-that-is-long\n  and");
        assert_eq!(wrapped("a   b", 80), "a   b");
    }

    #[test]
    fn a_row_that_is_too_long_is_cut() {
        assert_eq!(cut(&"x".repeat(WIDTH)), "x".repeat(WIDTH));
        let long = cut(&"x".repeat(WIDTH + 1));
        assert!(long.chars().count() == WIDTH && long.ends_with('…'), "{long}");
    }
}
