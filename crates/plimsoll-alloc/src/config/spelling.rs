//! The option that a misspelt word probably means: [`nearest`].

/// The closest of these names.
pub(super) fn nearest(word: &str, names: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    const AT_MOST: usize = 4; // `max_split_size` lacks `_mb`; more is a different word
    if word.len() > 64 {
        return None;
    }
    let distances = names.map(|name| (distance(word.as_bytes(), name.as_bytes()), name));
    distances.filter(|&(distance, name)| distance <= AT_MOST.min(name.len() / 3)).min().map(|(_, name)| name)
}

/// The edit distance of two words.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in b.iter().enumerate() {
            let changed = diagonal + usize::from(letter != other);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_option_is_recognised() {
        let nearest =
            |word| nearest(word, ["max_split_size_mb", "expandable_segments", "backend"].into_iter());
        assert_eq!(nearest("max_split_size"), Some("max_split_size_mb"));
        assert_eq!(nearest("expandable_segment"), Some("expandable_segments"));
        assert_eq!(nearest("Backend"), Some("backend"));
        assert_eq!(nearest("foo"), None);
        assert_eq!(nearest(":"), None);
    }
}
