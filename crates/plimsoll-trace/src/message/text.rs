//! Splits a log into lines of plain text: without colours, with a line break at each carriage return of a progress bar,
//! and with JSON escapes resolved. Also finds the rank that wrote a line.

use std::borrow::Cow;
use std::io::{self, BufRead, Read};

/// The maximum number of bytes in a line; longer lines are split.
const MOST_BYTES: u64 = 64 << 10;

/// The prefix that a launcher writes before a line, which may include a time, ends within this many bytes.
const MOST_PREFIX: usize = 80;

/// Whether the bytes begin like UTF-16, which PowerShell writes.
pub(super) fn is_wide(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff])
}

/// Decodes UTF-16; invalid parts are replaced.
pub(super) fn from_wide(bytes: &[u8]) -> String {
    let from = if bytes.first() == Some(&0xff) { u16::from_le_bytes } else { u16::from_be_bytes };
    let units: Vec<u16> = bytes.chunks_exact(2).skip(1).map(|pair| from([pair[0], pair[1]])).collect();
    String::from_utf16_lossy(&units)
}

/// Calls `take` with each line, the oldest first.
pub(super) fn each_line(mut input: impl BufRead, mut take: impl FnMut(&str)) -> io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        if input.by_ref().take(MOST_BYTES).read_until(b'\n', &mut bytes)? == 0 {
            return Ok(());
        }
        for line in String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).split('\r') {
            unescaped(&without_codes(line)).split(['\n', '\r']).for_each(&mut take);
        }
    }
}

/// Removes terminal codes and HTML tags.
fn without_codes(line: &str) -> Cow<'_, str> {
    let line = if line.contains('&') {
        Cow::Owned(
            line.replace("&gt;", ">").replace("&lt;", "<").replace("&quot;", "\"").replace("&#39;", "'"),
        )
    } else {
        Cow::Borrowed(line)
    };
    // Logs in JSON, and `cat -v`, contain the code as text.
    let line = if line.contains("\\u001b") || line.contains("\\x1b") || line.contains("^[[") {
        let line = line.replace("\\u001b", "\x1b").replace("\\x1b", "\x1b").replace("^[[", "\x1b[");
        Cow::Owned(line)
    } else {
        line
    };
    if !line.contains('\x1b') {
        return line;
    }
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars().peekable();
    while let Some(char) = chars.next() {
        if char != '\x1b' {
            out.push(char);
        } else if chars.next_if_eq(&'[').is_some() {
            // Skips to the letter that ends the terminal code.
            for char in chars.by_ref() {
                if ('@'..='~').contains(&char) {
                    break;
                }
            }
        }
    }
    Cow::Owned(out)
}

/// If a line quotes several lines, as in JSON or Python's `repr`, returns these lines.
fn unescaped(line: &str) -> Cow<'_, str> {
    let quotes = line.contains("\\n")
        && (line.contains("File ") || line.contains("emory") || line.contains("Traceback"));
    if !quotes && !line.contains("\\\"") {
        return Cow::Borrowed(line);
    }
    // Also unescapes a text that was escaped twice.
    Cow::Owned(
        line.replace("\\\\n", "\n").replace("\\n", "\n").replace("\\\\\\\"", "\"").replace("\\\"", "\""),
    )
}

/// The rank in a launcher's prefix of a line: `[rank3]:`, `[default3]:` (torchrun), `[1,3]<stderr>:` (mpirun), `3: `
/// (srun -l), `(RayWorker rank=3`.
pub(super) fn rank(line: &str) -> Option<u32> {
    let line = line.trim_start();
    let head = &line[..line.floor_char_boundary(MOST_PREFIX)];
    let after = |mark: &str| number(&head[head.find(mark)? + mark.len()..]).map(|(rank, _)| rank);
    if let Some(rest) = line.strip_prefix("[1,") {
        return number(rest).filter(|(_, rest)| rest.starts_with("]<")).map(|(rank, _)| rank);
    }
    if line.starts_with('(') {
        return after("rank=").filter(|_| line.contains(')'));
    }
    let words = || number(line.strip_prefix("Rank ").or(line.strip_prefix("rank "))?).map(|(rank, _)| rank);
    let numbered = || number(line).filter(|(_, rest)| rest.starts_with(": ")).map(|(rank, _)| rank);
    after("[rank").or_else(|| after("[default")).or_else(words).or_else(numbered)
}

/// The number at the beginning of a text, and the rest of the text.
pub(super) fn number(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_the_launchers() {
        for (line, expected) in [
            ("[rank3]: torch.OutOfMemoryError: CUDA out of memory.", Some(3)),
            ("[default12]:RuntimeError: CUDA out of memory.", Some(12)),
            ("[1,5]<stderr>:RuntimeError", Some(5)),
            ("7: RuntimeError: CUDA out of memory.", Some(7)),
            ("(TrainWorker rank=2, pid=77) torch.OutOfMemoryError", Some(2)),
            ("RuntimeError: CUDA out of memory.", None),
            ("2024-01-01 12:00:00 ERROR", None),
        ] {
            assert_eq!(rank(line), expected, "{line}");
        }
    }

    #[test]
    fn colours_returns_and_quoted_lines_are_plain_lines() {
        let text =
            "\x1b[31m 5%|#   |\r10%|##  |\x1b[0m\n{\"msg\": \"Traceback\\n  File \\\"a.py\\\", line 3\\nx\"}";
        let mut lines = Vec::new();
        each_line(text.as_bytes(), |line| lines.push(line.to_owned())).unwrap();
        assert_eq!(
            lines,
            [" 5%|#   |", "10%|##  |", "{\"msg\": \"Traceback", "  File \"a.py\", line 3", "x\"}"]
        );
    }

    #[test]
    fn powershell_writes_utf_16() {
        let bytes: Vec<u8> = "\u{feff}ab".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert!(is_wide(&bytes));
        assert_eq!(from_wide(&bytes), "ab");
    }
}
