//! What every verb prints, word for word: the texts in `golden/`, the README and the guide.
//!
//! A console block holds a command and what it prints (stdout and stderr together), `? CODE` where it fails, `...` for
//! lines and `[..]` for characters that may be anything. Commands run beside the kept snapshots. After a change of
//! wording, `TRYCMD=overwrite cargo test -p plimsoll-cli --test golden` writes the new texts; read the diff.

use std::path::Path;

#[test]
fn every_verb_prints_its_golden_text() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let snapshots = here.join("../plimsoll-trace/tests/snapshots");
    std::env::set_current_dir(snapshots).expect("the kept snapshots");
    trycmd::TestCases::new()
        .env("NO_COLOR", "1")
        .env("COLUMNS", "100")
        .case(here.join("tests/golden/*.trycmd"))
        .case(here.join("../../README.md"))
        .case(here.join("../../docs/guide/*.md"));
}
