//! Assertions for GitHub Actions: an annotation for each one that does not hold, as a workflow command
//! (<https://docs.github.com/actions/reference/workflow-commands-for-github-actions>).

use super::assertion::{Assertion, Verdict};
use super::text;

/// The lines that a GitHub runner reads from stdout. Empty if all assertions hold.
pub(super) fn render(file: &str, assertions: &[Assertion]) -> String {
    let broken = assertions.iter().filter(|one| one.verdict != Verdict::Holds);
    let command = |one: &Assertion| {
        let title = value(&format!("plimsoll check {file}")).replace(':', "%3A").replace(',', "%2C");
        let message = value(format!("{}\n{}", one.message, text::lines(one)).trim_end());
        format!("::error title={title}::{message}\n")
    };
    broken.map(command).collect()
}

/// The text in the form that a command accepts: on one line.
fn value(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}
