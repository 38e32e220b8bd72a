//! Makes text from files and arguments harmless, so that it can neither control a terminal nor reorder a line.
//!
//! All text for people goes through [`shown`] (`output.rs` calls it). Our own colours are marks in a text, three
//! characters that Unicode reserves for internal use; only [`shown`] turns them into escape codes.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Starts bold text, if the stream supports it.
pub(crate) const BOLD: &str = "\u{fdd0}";
/// Starts bold red text, for the word that announces a failure.
pub(crate) const ERROR: &str = "\u{fdd1}";
/// Ends bold or colour.
pub(crate) const RESET: &str = "\u{fdd2}";

/// Whether a character could control a terminal or reorder the text around it: C0 and C1 except line feed and tab, DEL,
/// bidirectional controls, and line and paragraph separators.
fn is_harmful(char: char) -> bool {
    char.is_control() && char != '\n' && char != '\t'
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with harmful characters escaped as in JSON, so that a JSON answer keeps its meaning.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        if is_harmful(char) {
            // Writing to a `String` cannot fail. All harmful characters are below U+10000.
            let _ = write!(out, "\\u{:04x}", u32::from(char));
        } else {
            out.push(char);
        }
    }
    Cow::Owned(out)
}

/// The text for a terminal: escaped, with our colours as codes.
pub(crate) fn shown(text: &str) -> String {
    escaped(text).replace(BOLD, "\x1b[1m").replace(ERROR, "\x1b[1;31m").replace(RESET, "\x1b[0m")
}

/// A writer that escapes harmful characters, for output that is meant for other tools but goes to a terminal.
pub(crate) struct Escaping<W: Write> {
    out: W,
    /// The first bytes of a character whose remaining bytes have not arrived.
    rest: Vec<u8>,
}

impl<W: Write> Escaping<W> {
    pub(crate) fn new(out: W) -> Escaping<W> {
        Escaping { out, rest: Vec::new() }
    }
}

impl<W: Write> Write for Escaping<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.rest.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.rest) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.rest.len(),
        };
        let rest = self.rest.split_off(whole);
        let text = std::mem::replace(&mut self.rest, rest);
        self.out.write_all(escaped(&String::from_utf8_lossy(&text)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_commands_a_terminal_is_escaped_and_the_rest_stays() {
        for (text, expected) in [
            ("plain, tab\tand line\n", "plain, tab\tand line\n"),
            ("\x1b]0;title\x07 \x1b[2J", "\\u001b]0;title\\u0007 \\u001b[2J"),
            ("a\rb\x08\x7f", "a\\u000db\\u0008\\u007f"),
            ("\u{9b}31m \u{85}", "\\u009b31m \\u0085"),
            ("x\u{202e}gpj.exe\u{2066}\u{200f}\u{61c}", "x\\u202egpj.exe\\u2066\\u200f\\u061c"),
            ("größer 模型 🙂 שלום", "größer 模型 🙂 שלום"),
        ] {
            assert_eq!(escaped(text), expected);
        }
    }

    #[test]
    fn our_colours_are_codes_and_those_of_a_text_are_not() {
        assert_eq!(shown(&format!("{BOLD}a{RESET} \x1b[1mb")), "\x1b[1ma\x1b[0m \\u001b[1mb");
    }

    #[test]
    fn a_character_in_two_pieces_is_one_character() {
        let mut out = Escaping::new(Vec::new());
        for piece in ["é\u{9b}".as_bytes(), b"x"].concat().chunks(1) {
            out.write_all(piece).unwrap();
        }
        assert_eq!(out.out, "é\\u009bx".as_bytes());
        let mut broken = Escaping::new(Vec::new());
        broken.write_all(b"\x9b31m").unwrap();
        assert_eq!(String::from_utf8(broken.out).unwrap(), "\u{fffd}31m");
    }
}
