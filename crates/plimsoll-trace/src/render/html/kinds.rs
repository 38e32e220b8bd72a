//! Kinds of memory, each with its own colour on the page: the built-in categories, blocks of unknown category, blocks
//! that wait for a stream, and the categories that the user defines.
//!
//! A kind is a number from 0 to 15. The number is also the name of a CSS class and the index of a band of the curve. 15
//! is reserved for the script, for boxes with several kinds.

use plimsoll_alloc::Category;

use crate::explain::{Origins, ShownCategory};
use crate::render::{Report, words};
use crate::snapshot::TextId;

/// Blocks of unknown category.
const UNKNOWN: usize = Category::ALL.len();
/// Blocks that wait for a stream; they are in no band of the curve.
pub(super) const WAITING: usize = UNKNOWN + 1;
const FIRST_CUSTOM: usize = WAITING + 1;
/// The number of kinds.
pub(super) const KINDS: usize = 15;

/// The user's categories without duplicates, in the order given.
fn custom(origins: &Origins) -> Vec<TextId> {
    let mut distinct: Vec<TextId> = Vec::new();
    for &name in origins.categories() {
        if !distinct.contains(&name) {
            distinct.push(name);
        }
    }
    distinct
}

/// The kind of a category. If the user defines more categories than there are colours, the last ones share a colour.
pub(super) fn kind(origins: &Origins, category: ShownCategory) -> usize {
    match category {
        ShownCategory::Purpose(purpose) => purpose.map_or(UNKNOWN, |purpose| purpose as usize),
        ShownCategory::Custom(name) => {
            let place = custom(origins).iter().position(|&one| one == name).unwrap_or(0);
            (FIRST_CUSTOM + place).min(KINDS - 1)
        }
    }
}

/// The names of the kinds, by number. Without user-defined categories, there are fewer than [`KINDS`].
pub(super) fn names(report: &Report<'_>) -> Vec<String> {
    let built_in = Category::ALL.iter().map(|category| category.plural());
    let mut names: Vec<String> =
        built_in.chain(["unknown", "waiting for a stream"]).map(str::to_owned).collect();
    let custom = custom(report.origins);
    let own = custom.iter().map(|&name| words::plain(report.snapshot.texts.get(name)).into_owned());
    names.extend(own.take(KINDS - FIRST_CUSTOM));
    if FIRST_CUSTOM + custom.len() > KINDS {
        names[KINDS - 1] = "other categories".to_owned();
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::CustomCategory;
    use crate::snapshot::Snapshot;

    #[test]
    fn a_users_category_has_a_kind_of_its_own_and_the_last_ones_share_one() {
        let mut snapshot = Snapshot::default();
        let names_given = ["kv", "logits", "kv", "c", "d", "e", "f"];
        let ids = names_given.map(|name| snapshot.texts.intern(name).expect("room"));
        let matches = |_: &str| false;
        let categories = ids.map(|name| CustomCategory { name, matches: &matches });
        let origins = Origins::of(&snapshot).with_categories(&snapshot, &categories);
        let kinds = ids.map(|name| kind(&origins, ShownCategory::Custom(name)));
        assert_eq!(kinds, [11, 12, 11, 13, 14, 14, 14]);
        let report = Report { file: "a", snapshot: &snapshot, origins: &origins, devices: &[] };
        assert_eq!(names(&report)[11..], ["kv", "logits", "c", "other categories"]);
        assert_eq!(kind(&origins, ShownCategory::Purpose(None)), 9);
    }
}
