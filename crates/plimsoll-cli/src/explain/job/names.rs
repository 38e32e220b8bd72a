//! Finds the rank of each file from the files' names; files with the same name belong to the same rank.
//!
//! A name contains numbers with words before them. Some numbers identify the process that wrote the file (`rank3`,
//! `tp0-pp1`, `gpu2`), some identify the time (`step200`), and most neither. Text after the rank (`memory-rank1-oom`)
//! does not make it a different rank.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::files::{name_of, pieces};

/// Words before a number that identify the writer.
const WHO: [&str; 19] = [
    "gpu", "cuda", "device", "dev", "worker", "process", "proc", "tp", "pp", "dp", "cp", "ep", "sp", "mp",
    "node", "host", "stage", "shard", "replica",
];
/// Words before a number that is a time or a process ID; they never name a rank.
const WHEN: [&str; 9] = ["step", "iter", "iteration", "epoch", "batch", "time", "pid", "attempt", "version"];
/// Words before `rank` that make it a rank within a part of the job: `local_rank`, `tp_rank`.
const WITHIN: [&str; 10] = ["local", "tp", "pp", "dp", "cp", "ep", "sp", "mp", "node", "group"];

/// A number with the word before it: `rank` 3.
type Coordinate = (String, u64);

/// The names of the ranks: the number after `rank`; otherwise other identifying words; otherwise the only number in
/// which the names differ; otherwise the file names.
pub(super) fn names(paths: &[PathBuf]) -> Vec<String> {
    let files: Vec<String> = paths.iter().map(|path| name_of(path)).collect();
    let whole: Vec<String> = paths.iter().map(|path| with_folder(path)).collect();
    let who: Vec<BTreeMap<String, u64>> =
        whole.iter().map(|name| coordinates(name).into_iter().collect()).collect();
    let as_files = || match distinct(files.iter().map(|file| Some(file.as_str()))) {
        Some(_) => files.clone(),
        None => paths.iter().map(|path| path.display().to_string()).collect(),
    };
    let named = by_rank(&who, &as_files).or_else(|| by_words(&who));
    named.or_else(|| by_number(&files)).or_else(|| by_number(&whole)).unwrap_or_else(as_files)
}

/// A file's name with its folder, which may contain the rank: `rank3/memory.pickle`.
fn with_folder(path: &Path) -> String {
    let folder = path.parent().and_then(Path::file_name).map(|folder| folder.to_string_lossy().into_owned());
    folder.map_or_else(|| name_of(path), |folder| format!("{folder}/{}", name_of(path)))
}

/// The last word of a text, in lower case, with the word before it.
fn last_words(text: &str) -> (String, String) {
    let text = text.to_ascii_lowercase();
    let text = text.trim_end_matches(['-', '_', '.', '=', ' ']);
    let mut words = text.rsplit(|char: char| !char.is_alphabetic()).map(str::to_owned);
    let last = words.next().unwrap_or_default();
    (words.next().unwrap_or_default(), last)
}

/// The identifying numbers in a name; if a word is repeated, its last number counts.
fn coordinates(name: &str) -> Vec<Coordinate> {
    let found = pieces(name).into_iter().filter_map(|(text, digits)| {
        let number = digits.parse().ok()?;
        let (before, word) = last_words(&text);
        let word = match word.strip_suffix("rank") {
            Some("") if WITHIN.contains(&before.as_str()) => format!("{before} rank"),
            Some(within) if WITHIN.contains(&within) => format!("{within} rank"),
            Some(_) => "rank".to_owned(),
            None if WHO.contains(&word.as_str()) => word,
            None => return None,
        };
        Some((word, number))
    });
    found.collect()
}

/// Names by the number after `rank`, and by other identifying words if files of one rank differ in them. A file without
/// a rank keeps its own name if the other files have ranks.
fn by_rank(who: &[BTreeMap<String, u64>], as_files: &dyn Fn() -> Vec<String>) -> Option<Vec<String>> {
    let rank = |coordinates: &BTreeMap<String, u64>| coordinates.get("rank").copied();
    if !who.iter().any(|coordinates| rank(coordinates).is_some()) {
        return None;
    }
    let words = varying(who, |a, b| rank(a).is_some() && rank(a) == rank(b));
    let files = as_files();
    let named = who.iter().zip(files).map(|(coordinates, file)| match rank(coordinates) {
        Some(number) => called(coordinates, &words, format!("rank {number}")),
        None => file,
    });
    Some(named.collect())
}

/// Names by the identifying words in which files differ, if every file has the same words.
fn by_words(who: &[BTreeMap<String, u64>]) -> Option<Vec<String>> {
    let first = who.first()?;
    if first.is_empty() || who.iter().any(|coordinates| !coordinates.keys().eq(first.keys())) {
        return None;
    }
    let words = varying(who, |_, _| true);
    let names = who.iter().map(|coordinates| called(coordinates, &words, String::new()));
    (!words.is_empty()).then(|| names.collect())
}

/// The words whose numbers differ between files that need different names.
fn varying(
    who: &[BTreeMap<String, u64>],
    apart: impl Fn(&BTreeMap<String, u64>, &BTreeMap<String, u64>) -> bool,
) -> Vec<String> {
    let mut words: Vec<&String> =
        who.iter().flat_map(BTreeMap::keys).filter(|word| *word != "rank").collect();
    words.sort_unstable();
    words.dedup();
    let differs = |word: &String| {
        let mut seen: Vec<(&BTreeMap<String, u64>, u64)> = Vec::new();
        let with_word = who.iter().filter_map(|one| Some((one, *one.get(word)?)));
        with_word.into_iter().any(|(one, number)| {
            let is_other = seen.iter().any(|&(other, value)| value != number && apart(one, other));
            if seen.iter().all(|&(other, value)| value != number || !apart(one, other)) {
                seen.push((one, number));
            }
            is_other
        })
    };
    words.into_iter().filter(|word| differs(word)).cloned().collect()
}

/// A name with this beginning and the numbers of these words.
fn called(coordinates: &BTreeMap<String, u64>, words: &[String], begin: String) -> String {
    let more = words.iter().filter_map(|word| Some(format!("{word} {}", coordinates.get(word)?)));
    let all: Vec<String> = (!begin.is_empty()).then_some(begin).into_iter().chain(more).collect();
    all.join(" ")
}

/// Names by the only number in which the files' names differ. Names with equal numbers but different words
/// (`snapshot1`, `snapshot1-oom`) belong to the same rank.
fn by_number(names: &[String]) -> Option<Vec<String>> {
    let split: Vec<Vec<(String, String)>> = names.iter().map(|name| pieces(name)).collect();
    let places = 0..split.iter().map(Vec::len).min().unwrap_or(0);
    let is_when = |pieces: &Vec<(String, String)>, place: usize| {
        WHEN.contains(&last_words(&pieces[place].0).1.as_str())
    };
    let digits = |pieces: &[(String, String)]| -> Vec<String> {
        pieces.iter().map(|(_, digits)| digits.clone()).filter(|digits| !digits.is_empty()).collect()
    };
    let mut kinds: Vec<Vec<String>> = split.iter().map(|pieces| digits(pieces)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for place in places {
        if split.iter().any(|pieces| is_when(pieces, place)) {
            continue;
        }
        let numbers: Vec<&str> = split.iter().map(|pieces| pieces[place].1.as_str()).collect();
        let mut different = numbers.clone();
        different.sort_unstable();
        different.dedup();
        if different.len() == kinds.len() && different.len() > 1 && !different.contains(&"") {
            return Some(numbers.into_iter().map(|number| format!("rank {number}")).collect());
        }
    }
    None
}

/// The texts, if every file has a text and no two texts are equal.
fn distinct<'a>(texts: impl Iterator<Item = Option<&'a str>>) -> Option<Vec<&'a str>> {
    let texts: Vec<&str> = texts.collect::<Option<_>>()?;
    let mut sorted = texts.clone();
    sorted.sort_unstable();
    let all = sorted.windows(2).all(|pair| pair[0] != pair[1]) && !sorted.contains(&"");
    all.then_some(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[&str], expected: &[&str]) {
        let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
        assert_eq!(names(&files), expected);
    }

    #[test]
    fn ranks_are_called_by_the_number_behind_rank_or_the_one_that_differs() {
        check(&["a/memory-rank0.pickle", "a/memory-rank11.pickle"], &["rank 0", "rank 11"]);
        check(&["step10_Rank_3.pkl", "step20_Rank_4.pkl"], &["rank 3", "rank 4"]);
        check(&["v2-0.pickle", "v2-1.pickle"], &["rank 0", "rank 1"]);
        check(
            &["rank0.200.memory_snapshot.pickle", "rank1.200.memory_snapshot.pickle"],
            &["rank 0", "rank 1"],
        );
        check(&["iteration_10/rank007_memory_snapshot.pickle"], &["rank 7"]);
        check(&["rank0/memory.pickle", "rank1/memory.pickle"], &["rank 0", "rank 1"]);
        check(&["0/memory.pickle", "1/memory.pickle"], &["rank 0", "rank 1"]);
    }

    #[test]
    fn what_follows_the_rank_makes_no_rank_of_its_own() {
        let both = ["memory-rank0.pickle", "memory-rank1-oom.pickle", "memory-rank1.pickle"];
        check(&both, &["rank 0", "rank 1", "rank 1"]);
        check(&["rank0-12.pickle", "rank0-34.pickle", "rank1.pickle"], &["rank 0", "rank 0", "rank 1"]);
        check(&["snap_0.pickle", "snap_0_oom.pickle", "snap_1.pickle"], &["rank 0", "rank 0", "rank 1"]);
        check(&["it10/rank0.pickle", "it20/rank0.pickle"], &["rank 0", "rank 0"]);
    }

    #[test]
    fn ranks_of_less_than_the_job_need_the_rest_of_the_name() {
        check(&["node0_rank1.pickle", "node1_rank1.pickle"], &["rank 1 node 0", "rank 1 node 1"]);
        check(&["node0_rank1.pickle", "node1_rank9.pickle"], &["rank 1", "rank 9"]);
        check(&["1-TP-0-DP-0.pickle", "1-TP-1-DP-0.pickle"], &["tp 0", "tp 1"]);
        check(&["tp_rank0_pp_rank0.pt.pickle", "tp_rank0_pp_rank1.pt.pickle"], &["pp rank 0", "pp rank 1"]);
        check(&["local_rank3.pickle", "local_rank4.pickle"], &["local rank 3", "local rank 4"]);
        check(&["process7.pickle", "process8.pickle"], &["process 7", "process 8"]);
        check(
            &["rank0-process7.pickle", "rank0-process8.pickle", "rank1.pickle"],
            &["rank 0 process 7", "rank 0 process 8", "rank 1"],
        );
    }

    #[test]
    fn files_without_a_rank_are_called_as_they_are() {
        check(&["a/x.pickle", "b/x.pickle"], &["a/x.pickle", "b/x.pickle"]);
        check(&["step100.pickle", "step200.pickle"], &["step100.pickle", "step200.pickle"]);
        check(&["rank0.pickle", "rank1.pickle", "all.pickle"], &["rank 0", "rank 1", "all.pickle"]);
        check(&["before.pickle", "after.pickle"], &["before.pickle", "after.pickle"]);
    }
}
