//! Damaged or forged recordings are rejected or differ; nothing panics, hangs or takes unlimited memory.

use std::path::Path;

use plimsoll_trace::conformance;

use crate::bodies::is_read_or_refused;

/// Pseudo-random numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// Values at the limits of a field.
const EDGES: [&str; 12] = [
    "",
    "0",
    "-1",
    "1",
    "511",
    "2097152",
    "ffffffffffffffff",
    "18446744073709551615",
    "9223372036854775807",
    "1152921504606846975",
    "7f0000000000",
    "nan",
];

/// Damages a recording a few times: changes fields of lines, and repeats, swaps or removes lines.
fn damaged(lines: &[&str], separator: char, dice: &mut Dice) -> String {
    let mut lines: Vec<String> = lines.iter().map(|&line| line.to_owned()).collect();
    for _ in 0..1 + dice.below(3) {
        let at = dice.below(lines.len());
        match dice.below(6) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(at, lines[dice.below(lines.len())].clone()),
            2 => {
                let other = dice.below(lines.len());
                lines.swap(at, other);
            }
            _ => {
                let mut fields: Vec<&str> = lines[at].split(separator).collect();
                let field = dice.below(fields.len());
                fields[field] = EDGES[dice.below(EDGES.len())];
                lines[at] = fields.join(&separator.to_string());
            }
        }
        if lines.is_empty() {
            break;
        }
    }
    lines.join("\n")
}

fn corpus(name: &str) -> String {
    conformance::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name)).expect("text")
}

#[test]
fn a_damaged_stream_is_refused_or_differs() {
    let mut dice = Dice(1);
    for name in [
        "native-small-2.csv.gz",
        "expandable-streams-2.csv.gz",
        "maxsplit-oom-2.csv.gz",
        "gc-fraction-2.csv.gz",
    ] {
        let text = corpus(name);
        let lines: Vec<&str> = text.lines().take(60).collect();
        (0..2000).for_each(|_| is_read_or_refused(&damaged(&lines, ',', &mut dice)));
    }
}

#[test]
fn a_damaged_program_is_refused_or_differs() {
    let mut dice = Dice(2);
    let text = corpus("programs.jsonl.gz");
    let lines: Vec<&str> = text.lines().collect();
    for nth in 0..3000 {
        is_read_or_refused(&damaged(&lines[nth % lines.len()..][..1], ',', &mut dice));
    }
}
