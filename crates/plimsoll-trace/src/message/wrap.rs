//! Joins the lines of a message that a terminal or a window wrapped at a column, even in the middle of a number or a
//! word.

use super::wording::OutOfMemory;

/// Adds the next line of a message. If the break is within a number or a word, joins its parts; otherwise adds a space.
pub(super) fn join(text: &mut String, line: &str) {
    let ends = text.split_whitespace().next_back().unwrap_or_default();
    let is_cut = is_cut(ends, line);
    text.truncate(text.trim_end().len());
    if !is_cut {
        text.push(' ');
    }
    text.push_str(line.trim_start());
}

/// Whether a message may begin at the end of a line that was wrapped before the message could be recognised.
pub(super) fn is_start(line: &str) -> bool {
    let line = line.trim_end();
    let end = &line[line.floor_char_boundary(line.len().saturating_sub(MOST_START))..];
    MAKERS.iter().any(|name| end.contains(name)) && OutOfMemory::begins(line).is_none()
}

/// Joins the beginning of a message at the end of a line with the next line. Returns the joined text if a message
/// begins in it.
pub(super) fn whole_start(mut start: String, line: &str) -> Option<String> {
    join(&mut start, line);
    OutOfMemory::begins(&start).is_some_and(|(at, ..)| at + line.len() < start.len()).then_some(start)
}

/// The first words of the allocator's messages: the kind of memory.
const MAKERS: [&str; 3] = ["CUDA", "HIP", "XPU"];
/// The length of `CUDA out of memory`.
const MOST_START: usize = 18;

/// Whether the last word of a line and the first word of the next are parts of the same word.
fn is_cut(ends: &str, line: &str) -> bool {
    let mut words = line.split_whitespace();
    let Some(begins) = words.next() else { return false };
    let is_number = |word: &str| word.chars().all(|char| char.is_ascii_digit() || char == '.');
    // A number in a message is followed by a unit. If there is no unit, the next line may not belong to the message.
    let counts = words.next().is_some_and(|word| UNITS.contains(&bare(word)));
    if is_number(ends.trim_start_matches('(')) && is_number(begins) {
        return counts && !ends.is_empty();
    }
    let whole = format!("{ends}{begins}");
    let are_words = is_word(ends) && is_word(begins);
    !are_words && (is_word(&whole) || whole.contains("expandable_segments"))
}

fn is_word(word: &str) -> bool {
    let word = bare(word);
    UNITS.contains(&word) || WORDS.contains(&word)
}

/// A word without the punctuation around it.
fn bare(word: &str) -> &str {
    word.trim_matches(|char: char| !char.is_ascii_alphanumeric())
}

/// The units of the numbers in a message, and the word `has`, which follows a process ID.
const UNITS: [&str; 9] = ["bytes", "KiB", "MiB", "GiB", "TiB", "KB", "MB", "GB", "has"];

/// The words that mark the values in a message.
const WORDS: [&str; 42] = [
    "CUDA",
    "GPU",
    "Including",
    "Of",
    "Process",
    "PyTorch",
    "Tried",
    "a",
    "allocate",
    "allocated",
    "allocations",
    "allowed",
    "already",
    "and",
    "but",
    "by",
    "cached",
    "capacity",
    "capacty",
    "free",
    "in",
    "is",
    "max",
    "memory",
    "non-PyTorch",
    "of",
    "other",
    "out",
    "pools",
    "private",
    "process",
    "reserved",
    "the",
    "this",
    "to",
    "total",
    "tried",
    "unallocated",
    "use",
    "which",
    "with",
    "you",
];

#[cfg(test)]
mod tests {
    use super::join;

    #[test]
    fn a_cut_number_or_word_is_whole_again_and_others_stay_apart() {
        for (first, second, expected) in [
            ("memory 22.", "00 GiB is allocated", "memory 22.00 GiB is allocated"),
            ("of the memory 2", "2.00 GiB", "of the memory 22.00 GiB"),
            ("(12", ".00 GiB total", "(12.00 GiB total"),
            ("Process 16", "368 has 1.00 GiB", "Process 16368 has 1.00 GiB"),
            ("22.00 G", "iB is", "22.00 GiB is"),
            ("is al", "located by", "is allocated by"),
            ("but un", "allocated. If", "but unallocated. If"),
            ("by PyTor", "ch, and", "by PyTorch, and"),
            ("22.00", "GiB is", "22.00 GiB is"),
            ("already", "allocated; 1", "already allocated; 1"),
            ("in total by", "PyTorch)", "in total by PyTorch)"),
            ("2.00 GiB. GPU 0", "100 steps", "2.00 GiB. GPU 0 100 steps"),
        ] {
            let mut text = first.to_owned();
            join(&mut text, second);
            assert_eq!(text, expected);
        }
    }
}
