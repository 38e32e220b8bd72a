//! Lines of a Python or IPython traceback: [`Frame`].

/// One line of a traceback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The file, as it is written in the traceback: a path, `<string>`, or a cell.
    pub file: String,
    /// The number of the line, from 1.
    pub line: u32,
    /// The function; empty if the traceback has none.
    pub function: String,
    /// The text of the line; empty if the traceback has none.
    pub source: String,
}

/// A traceback: the lines that were running, outermost first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Traceback {
    /// The frames, in the order of the text.
    pub frames: Vec<Frame>,
}

impl Frame {
    /// Whether the line is in the user's code, not in Python's own or a package's.
    pub fn is_own(&self) -> bool {
        let packages =
            ["site-packages", "dist-packages", "/lib/python3", "\\lib\\", "/torch/", "<frozen", "ipykernel/"];
        !packages.iter().any(|part| self.file.contains(part))
    }

    /// Parses the frame in a line of text, with the source code if it is on the same line.
    pub(super) fn parse(line: &str) -> Option<Frame> {
        python(line).or_else(|| boxed(line)).or_else(|| ipython(line))
    }
}

impl Traceback {
    /// The innermost line of the user's code; if there is none, the innermost line.
    pub fn place(&self) -> Option<&Frame> {
        self.frames.iter().rev().find(|frame| frame.is_own()).or(self.frames.last())
    }

    /// The program: the outermost file of the user's code.
    pub fn program(&self) -> Option<&str> {
        let is_program = |frame: &&Frame| frame.is_own() && frame.file.ends_with(".py");
        self.frames.iter().find(is_program).map(|frame| frame.file.as_str())
    }
}

/// The text of a line in a box, as `rich` draws tracebacks: `│ train.py:88 in <module>      │`.
pub(super) fn in_box(line: &str) -> Option<&str> {
    Some(line[line.find('│')?..].trim_end().strip_prefix('│')?.strip_suffix('│')?.trim())
}

fn boxed(line: &str) -> Option<Frame> {
    let (place, function) = in_box(line)?.split_once(" in ")?;
    let (file, number) = place.rsplit_once(':')?;
    let line = number.parse().ok().filter(|_| !file.is_empty())?;
    Some(Frame { file: file.to_owned(), line, function: function.trim().to_owned(), source: String::new() })
}

/// Parses `  File "train.py", line 88, in <module>`, with any text before it.
fn python(line: &str) -> Option<Frame> {
    let rest = &line[line.find("File \"")? + "File \"".len()..];
    let (file, rest) = rest.split_once("\", line ")?;
    let (number, rest) = super::text::number(rest)?;
    let function = rest.strip_prefix(", in ").unwrap_or("").trim_end();
    Some(Frame { file: file.to_owned(), line: number, function: function.to_owned(), source: String::new() })
}

/// Parses `Cell In[3], line 5`, `File ~/a.py:12, in forward(self, x)`, and `<ipython-input-3-0b> in <module>`. The
/// last form has no line number, but the arrow in the text below it does.
fn ipython(line: &str) -> Option<Frame> {
    let line = line.trim();
    if let Some(rest) =
        line.strip_prefix("Cell In").filter(|rest| rest.starts_with('[') || rest.starts_with(" ["))
    {
        let (cell, rest) = rest.split_once(']')?;
        let rest = rest.trim_start_matches(", ").trim_start().strip_prefix("line ")?;
        let (number, _) = super::text::number(rest)?;
        let file = format!("Cell In[{}]", cell.trim_start().trim_start_matches('['));
        return Some(Frame { file, line: number, function: String::new(), source: String::new() });
    }
    let rest = line.strip_prefix("File ")?;
    let (place, rest) = rest.split_once(", in ").unwrap_or((rest, ""));
    let (file, number) = place.rsplit_once(':')?;
    let function = rest.split('(').next().unwrap_or("").trim();
    let line = number.trim().parse().ok()?;
    Some(Frame { file: file.to_owned(), line, function: function.to_owned(), source: String::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_those_of_python_and_ipython() {
        for (line, file, number, function) in [
            ("  File \"/a/train.py\", line 88, in <module>", "/a/train.py", 88, "<module>"),
            ("[rank1]:   File \"/a/b c.py\", line 3, in f", "/a/b c.py", 3, "f"),
            ("Cell In[3], line 5", "Cell In[3]", 5, ""),
            ("Cell In [12], line 1", "Cell In[12]", 1, ""),
            ("File ~/net.py:12, in Net.forward(self, x)", "~/net.py", 12, "Net.forward"),
            ("│ /home/me/train.py:88 in <module>                   │", "/home/me/train.py", 88, "<module>"),
            ("  File \"<string>\", line 1", "<string>", 1, ""),
        ] {
            let frame = Frame::parse(line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!((frame.file.as_str(), frame.line, frame.function.as_str()), (file, number, function));
        }
        assert_eq!(Frame::parse("No File \"x\" here"), None);
    }
}
