//! The field that anomaly mode adds to a record of the backward pass: `forward_frames`, the Python stack of the forward
//! operator.
//!
//! PyTorch writes it like `traceback.format_stack`: one text for each frame, the outermost first. A text is `  File
//! "model.py", line 41, in forward`, followed by the source line. The texts become a stack like any other, which is
//! linked to the record's own stack.

use super::objects::{List, Objects, ids_ran_out};
use super::value::{Value, wrong};
use crate::error::Why;
use crate::snapshot::{Frame, FrameId, Key, StackId, TextId};

impl Objects {
    /// The new stack of a record, if its `frames` or `forward_frames` is being set; `None` for other keys.
    pub(super) fn stack_field(
        &mut self,
        old: Option<StackId>,
        key: Key,
        value: Value,
    ) -> Result<Option<StackId>, Why> {
        let (stack, forward) = match key {
            Key::Frames => {
                let forward = old.and_then(|old| self.snapshot.stacks.forward(old));
                (self.stack(key, value)?, forward)
            }
            Key::ForwardFrames => (old.unwrap_or(StackId::EMPTY), self.forward_stack(value)?),
            _ => return Ok(None),
        };
        let Some(forward) = forward else { return Ok(Some(stack)) };
        let linked = self.snapshot.stacks.with_forward(stack, forward);
        linked.map(Some).ok_or_else(|| ids_ran_out("stacks"))
    }

    fn forward_stack(&mut self, value: Value) -> Result<Option<StackId>, Why> {
        const EXPECTED: &str = "a list of texts";
        let at = match value {
            Value::EmptyList(_) => return Ok(None),
            Value::List(at, _) => at as usize,
            _ => return Err(wrong(Key::ForwardFrames, EXPECTED, value)),
        };
        let texts = match &mut self.lists[at] {
            List::Forward(stack) => return Ok(*stack),
            List::Texts(texts) => std::mem::take(texts),
            _ => return Err(wrong(Key::ForwardFrames, EXPECTED, value)),
        };
        let mut frames = Vec::new();
        for text in texts.into_iter().rev() {
            frames.extend(self.forward_frame(text)?);
        }
        let stack = match frames.as_slice() {
            [] => None,
            frames => Some(self.snapshot.stacks.stack(frames).ok_or_else(|| ids_ran_out("stacks"))?),
        };
        self.lists[at] = List::Forward(stack);
        Ok(stack)
    }

    /// The frame that a text describes; `None` if the text has another form.
    fn forward_frame(&mut self, text: TextId) -> Result<Option<FrameId>, Why> {
        if let Some(&known) = self.forward_frames.get(&text) {
            return Ok(known);
        }
        let frame = match parse(self.snapshot.texts.get(text)) {
            Some((file, line, function)) => {
                let texts = [file.to_owned(), function.to_owned()];
                let [filename, name] = texts.map(|text| self.snapshot.texts.intern(&text));
                let name = filename.zip(name).ok_or_else(|| ids_ran_out("texts"))?;
                Some(self.frame(Frame { filename: name.0, name: name.1, line, fx: None })?)
            }
            None => None,
        };
        self.forward_frames.insert(text, frame);
        Ok(frame)
    }
}

/// Parses the file, line and function of a text such as `  File "model.py", line 41, in forward`.
fn parse(text: &str) -> Option<(&str, i64, &str)> {
    let first = text.lines().next()?.trim();
    let (file, rest) = first.strip_prefix("File \"")?.rsplit_once("\", line ")?;
    let (line, function) = rest.split_once(", in ")?;
    Some((file, line.parse().ok()?, function))
}

/// Formats the text of a frame, without its source line.
pub(super) fn text(file: &str, line: i64, function: &str) -> String {
    format!("  File \"{file}\", line {line}, in {function}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_traceback_names_file_line_and_function() {
        let of = |text: &'static str| parse(text);
        assert_eq!(
            of("  File \"a b/m.py\", line 41, in forward\n    x = y\n"),
            Some(("a b/m.py", 41, "forward"))
        );
        assert_eq!(of("  File \"<stdin>\", line 1, in <module>\n"), Some(("<stdin>", 1, "<module>")));
        assert_eq!(parse(&text("m.py", 7, "f")), Some(("m.py", 7, "f")));
        for other in ["", "Traceback:", "  File \"m.py\", line x, in f", "  File \"m.py\""] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
