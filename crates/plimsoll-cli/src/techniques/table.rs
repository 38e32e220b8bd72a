//! The rows of all techniques, in the order of the help, and the methods of [`Technique`] that read them.

use super::row::{Row, Value};
use super::technique::Technique;
use super::{
    accumulate, adam_8bit, bf16, bf16_weights, checkpoint, checkpoint_nested, checkpoint_segments,
    chunked_loss, compile, expandable, free_grads, freeze, fsdp, fused, half, host_outputs, lora,
    memory_budget, no_compile, no_foreach, no_grad, offload, offload_disk, offload_optimizer,
    offload_weights, split, step_in_backward, tensor_parallel,
};

/// The rows of all techniques.
static ROWS: [Row; 28] = [
    expandable::ROW,
    free_grads::ROW,
    step_in_backward::ROW,
    checkpoint::ROW,
    checkpoint_nested::ROW,
    offload::ROW,
    offload_optimizer::ROW,
    chunked_loss::ROW,
    no_foreach::ROW,
    fused::ROW,
    accumulate::ROW,
    split::ROW,
    compile::ROW,
    memory_budget::ROW,
    no_compile::ROW,
    fsdp::ROW,
    adam_8bit::ROW,
    bf16::ROW,
    checkpoint_segments::ROW,
    no_grad::ROW,
    host_outputs::ROW,
    offload_weights::ROW,
    half::ROW,
    bf16_weights::ROW,
    freeze::ROW,
    lora::ROW,
    tensor_parallel::ROW,
    offload_disk::ROW,
];

impl Technique {
    /// All techniques, in the order of the help.
    pub(crate) fn all() -> impl DoubleEndedIterator<Item = Technique> {
        ROWS.iter().map(|row| row.technique)
    }

    /// The technique with this name.
    pub(crate) fn named(name: &str) -> Option<Technique> {
        Technique::all().find(|it| it.name() == name)
    }

    /// The facts about this technique.
    pub(crate) fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Its name in `--with`.
    pub(crate) fn name(self) -> &'static str {
        self.row().name
    }

    /// The reason why this technique cannot be combined with another one.
    pub(crate) fn excluded_by(self, other: Technique) -> Option<&'static str> {
        let stated = |one: Technique, other| {
            one.row().excludes.iter().find(|(it, _)| *it == other).map(|&(_, why)| why)
        };
        stated(self, other).or_else(|| stated(other, self))
    }
}

/// The list for a help text.
pub(crate) fn help() -> String {
    let width = ROWS.iter().map(|it| it.name.len()).max().unwrap_or(0);
    let line = |it: &Row| {
        let value = if it.value == Value::Parts { "=N" } else { "" };
        format!(
            "  {:<width$}  {:<9}  {}\n",
            format!("{}{value}", it.name),
            it.numbers.name(),
            it.about,
            width = width + 2
        )
    };
    ROWS.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::row::{Alone, Joins};
    use super::super::technique::Numbers;
    use super::*;

    #[test]
    fn a_technique_is_at_its_place_in_the_table() {
        for (place, row) in ROWS.iter().enumerate() {
            assert_eq!(row.technique as usize, place, "{}", row.name);
            assert_eq!(Technique::named(row.name), Some(row.technique));
        }
    }

    #[test]
    fn two_techniques_exclude_each_other_or_neither_does() {
        for one in Technique::all() {
            assert_eq!(one.excluded_by(one), None, "{}", one.name());
            for other in Technique::all() {
                assert_eq!(one.excluded_by(other), other.excluded_by(one), "{one:?}, {other:?}");
                let states = |one: Technique, other| one.row().excludes.iter().any(|(it, _)| *it == other);
                assert!(!(states(one, other) && states(other, one)), "{one:?} and {other:?} state it twice");
            }
        }
    }

    #[test]
    fn what_replaces_another_technique_changes_the_numbers_as_much_or_more() {
        for one in Technique::all() {
            assert!(one.row().replaces.iter().all(|it| it.row().numbers <= one.row().numbers), "{one:?}");
        }
    }

    #[test]
    fn what_joins_sets_by_itself_keeps_their_numbers() {
        for row in &ROWS {
            let most = match row.joins {
                Joins::Free | Joins::Identical => Numbers::Identical,
                Joins::Rounding => Numbers::Rounding,
                Joins::Changed | Joins::Own => Numbers::Changed,
            };
            assert!(row.numbers <= most, "{}", row.name);
            assert!(row.joins == Joins::Own || row.alone != Alone::Never, "{}: never tried alone", row.name);
        }
    }

    #[test]
    fn the_guide_names_every_technique_with_what_it_does_to_the_numbers() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/make-it-fit.md");
        let guide = std::fs::read_to_string(path).unwrap();
        for row in &ROWS {
            let names = ["`", "[", "="].map(|end| format!("`{}{end}", row.name));
            let is_row = |line: &&str| {
                let first = line.strip_prefix("| ").and_then(|it| it.split(" | ").next());
                first.is_some_and(|first| names.iter().any(|it| first.contains(it)))
            };
            let line = guide.lines().find(is_row);
            let line =
                line.unwrap_or_else(|| panic!("docs/guide/make-it-fit.md has no row for {}", row.name));
            assert!(line.contains(&format!("| {} |", row.numbers.name())), "{line}");
        }
    }
}
