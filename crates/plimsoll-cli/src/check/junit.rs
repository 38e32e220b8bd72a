//! Assertions for CI: JUnit XML, with a test case for each assertion.

use super::assertion::{Assertion, Verdict};
use super::text;

/// One test suite. An assertion that the recording cannot answer is an error, not a failure.
pub(super) fn render(file: &str, assertions: &[Assertion]) -> String {
    let count = |verdict| assertions.iter().filter(|one| one.verdict == verdict).count();
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"plimsoll check\" \
         tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"0\">\n",
        assertions.len(),
        count(Verdict::Fails),
        count(Verdict::Incomplete)
    );
    for one in assertions {
        let (name, device) = (one.want.name(), one.device);
        out += &format!("<testcase classname=\"{}\" name=\"{name} device {device}\" time=\"0\">", xml(file));
        let element = match one.verdict {
            Verdict::Holds => None,
            Verdict::Fails => Some("failure"),
            Verdict::Incomplete => Some("error"),
        };
        if let Some(element) = element {
            let (message, lines) = (xml(&one.message), xml(&text::lines(one)));
            out +=
                &format!("<{element} message=\"{message}\" type=\"{name}\">{message}\n{lines}</{element}>");
        }
        out += "</testcase>\n";
    }
    out += "</testsuite>\n</testsuites>\n";
    out
}

/// The text escaped for XML, in an attribute or between tags. Characters that XML does not allow become
/// U+FFFD.
fn xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\n' | '\t' => out.push(c),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::xml;

    #[test]
    fn names_of_any_kind_become_xml() {
        assert_eq!(xml("<listcomp> \"a\" & b\u{1b}"), "&lt;listcomp&gt; &quot;a&quot; &amp; b\u{fffd}");
    }
}
