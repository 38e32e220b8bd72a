//! Reads a traceback line by line: [`Tracing`]. It records the error that ended the traceback, to decide whether
//! a following message belongs to it, and the error that came after the last message: [`Ended`].

use super::frames::{Frame, Traceback, in_box};

/// The maximum number of frames in a traceback; Python's own recursion limit is 1,000.
const MOST_FRAMES: usize = 4096;
/// A message more than this many lines below a truncated traceback does not belong to it. Only lines that are not
/// indented count.
const MOST_BETWEEN: usize = 12;
/// A message more than this many lines below the first line of another error is not part of that error.
const MOST_OF_ERROR: usize = 4;
/// If more lines than this follow an error, the error did not end the program.
const MOST_BELOW: usize = 40;

/// IPython shows at most this many lines ahead of a line, and behind it.
const MOST_AROUND: u32 = 9;

/// The text that begins a traceback.
const HEADER: &str = "Traceback (most recent call last)";

/// The text that begins the traceback of a worker (DataParallel, DataLoader) inside its parent's.
const ORIGINAL: &str = "Original Traceback (most recent call last)";

/// The error that ended a program after it had caught the out-of-memory error.
///
/// ```
/// use plimsoll_trace::message::{Pasted, read};
///
/// let text = "oom, retrying: CUDA out of memory. Tried to allocate 2.00 GiB.\n\
///             Traceback (most recent call last):\n  File \"a.py\", line 3, in f\n    d['x']\nKeyError: 'x'\n";
/// let Some(Pasted::Log(log)) = read(text.as_bytes())? else { panic!("a message") };
/// let ended = log.failed[0].ended_with.as_ref().expect("an error");
/// assert_eq!((ended.error.as_str(), ended.traceback.frames[0].line), ("KeyError", 3));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The exception, without its module: `KeyError`.
    pub error: String,
    /// The lines that were running.
    pub traceback: Traceback,
}

/// A traceback that is not complete yet, and the state before it.
#[derive(Default)]
pub(super) struct Tracing {
    traceback: Traceback,
    /// The prefix that launchers and loggers write before each line: its length in bytes, and the number of blanks at
    /// its start.
    prefix: (usize, usize),
    /// Whether the previous line was a frame, so that the next line is the frame's source.
    after_frame: bool,
    /// The kind of error that ended the traceback; `None` if the traceback has not ended.
    end: Option<Kind>,
    /// The number of lines since the traceback's last frame or its end, without indented and empty lines.
    lines_since: usize,
    /// The information in a line before the traceback.
    mark: Option<Mark>,
    /// Whether the last traceback ended with an out-of-memory error, or with an error that followed from an
    /// out-of-memory error.
    is_of_memory: bool,
    /// The error that came after the last message.
    ended: Option<Ended>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    Other,
}

/// A line that Python writes before a traceback.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// The next error was caused by the previous error, or raised while the previous error was being handled.
    Chained,
    /// The next error did not end the program.
    Aside,
}

/// Whether a line belongs to a traceback, not to the message that is being read.
pub(super) fn is_of_traceback(line: &str) -> bool {
    line.contains(HEADER) || mark(line).is_some()
}

impl Tracing {
    /// Reads the next line, which is not part of a message. `frame` is the frame that the line contains.
    pub(super) fn take(&mut self, line: &str, frame: Option<Frame>) {
        if line.contains(ORIGINAL) {
            // The error of a worker follows below the lines of the parent that was waiting for the worker.
            (self.end, self.lines_since, self.after_frame) = (None, 0, false);
        } else if let Some(at) = line.find(HEADER) {
            let ahead = &line[..at];
            // In IPython, the line has the error's name on the left, and the other lines have no prefix.
            self.prefix =
                if ahead.ends_with("  ") && !ahead.trim().is_empty() { (0, 0) } else { (at, blanks(ahead)) };
            self.begin();
        } else if let Some(mark) = mark(line) {
            self.mark = Some(mark);
        } else if let Some(frame) = frame {
            if self.end == Some(Kind::Other) {
                self.begin();
            }
            // Without the traceback's header, as at the start of a truncated log, the first frame shows the prefix.
            if let Some(at) = line.find("  File \"").filter(|_| self.prefix == (0, 0)) {
                self.prefix = (at, blanks(&line[..at]));
            }
            if self.traceback.frames.len() < MOST_FRAMES {
                self.traceback.frames.push(frame);
            }
            (self.end, self.lines_since, self.after_frame) = (None, 0, true);
        } else {
            self.take_other(line);
        }
    }

    fn begin(&mut self) {
        self.traceback.frames.clear();
        (self.end, self.lines_since, self.after_frame) = (None, 0, false);
    }

    fn take_other(&mut self, line: &str) {
        let bare = self.bare(line);
        if let Some(text) = in_box(line) {
            // `❱ 88 │ loss.backward()`, shown with the lines around it.
            let (frame, marked) = (self.traceback.frames.last_mut(), text.strip_prefix('❱'));
            if let Some((frame, (_, text))) = frame.zip(marked.and_then(|text| text.split_once('│'))) {
                frame.source = text.trim().to_owned();
            }
            return;
        }
        let is_source = std::mem::take(&mut self.after_frame);
        let error = self.error(line).filter(|_| self.end.is_none());
        let Some(frame) = self.traceback.frames.last_mut() else { return };
        if let Some(name) = error {
            return self.close(name, line);
        }
        // IPython shows the lines around it, each with its number.
        let near = numbered(bare).filter(|(number, _)| number.abs_diff(frame.line) <= MOST_AROUND);
        if let Some((number, text)) = near {
            if number == frame.line {
                frame.source = text.trim().to_owned();
            }
            return;
        }
        if is_source {
            frame.source = source(bare).to_owned();
            return;
        }
        self.lines_since +=
            usize::from(!self.bare(line).starts_with([' ', '\t', '-']) && !line.trim().is_empty());
    }

    /// Ends the traceback with an error.
    fn close(&mut self, name: &str, line: &str) {
        let is_memory = MEMORY.iter().any(|words| line.contains(words));
        (self.end, self.lines_since) = (Some(if is_memory { Kind::Memory } else { Kind::Other }), 0);
        let mark = self.mark.take();
        if mark == Some(Mark::Aside) || OF_OTHERS.iter().any(|words| line.contains(words)) {
            return;
        }
        self.is_of_memory = is_memory || self.is_of_memory && mark == Some(Mark::Chained);
        let ended = || Ended { error: name.to_owned(), traceback: self.traceback.clone() };
        self.ended = (!self.is_of_memory).then(ended);
    }

    /// The traceback of a message that begins in this line. It has no frames if the traceback belongs to another
    /// error, or if there is none.
    pub(super) fn of_message(&mut self, line: &str) -> Traceback {
        let is_its = match self.end {
            None | Some(Kind::Memory) => self.lines_since <= MOST_BETWEEN,
            // The error has several lines, and this line is one of them.
            Some(Kind::Other) => {
                let goes_on = self.error(line).is_some() || line.contains("Cuda failure");
                goes_on && self.lines_since <= MOST_OF_ERROR
            }
        };
        let traceback = std::mem::take(&mut self.traceback);
        self.begin();
        (self.is_of_memory, self.mark, self.ended) = (true, None, None);
        if is_its { traceback } else { Traceback::default() }
    }

    /// The traceback below the last message, if it belongs to the message: reports on the web put the message first.
    pub(super) fn below(&mut self) -> Option<Traceback> {
        let is_its = self.end != Some(Kind::Other) && !self.traceback.frames.is_empty();
        is_its.then(|| std::mem::take(&mut self.traceback))
    }

    /// The error after the last message that ended the program.
    pub(super) fn ended(&mut self) -> Option<Ended> {
        // If the text ends with an incomplete traceback, the error of that traceback may have ended the program.
        self.ended.take().filter(|_| self.end.is_some() && self.lines_since <= MOST_BELOW)
    }

    /// The exception, without its module, if this line is the first line of an error.
    fn error<'a>(&self, line: &'a str) -> Option<&'a str> {
        let is_next = self.lines_since == 0;
        error(line, is_next).or_else(|| error(self.bare(line), is_next))
    }

    /// A line without the prefix of a launcher or a logger.
    fn bare<'a>(&self, line: &'a str) -> &'a str {
        let (bytes, indent) = self.prefix;
        if blanks(line) > indent { line } else { line.get(bytes..).unwrap_or(line) }
    }
}

fn blanks(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

fn mark(line: &str) -> Option<Mark> {
    let chained = ["During handling of the above exception", "The above exception was the direct cause"];
    let aside = ["Exception ignored in", "Exception in thread", "Exception ignored on"];
    let has = |words: &str| line.contains(words);
    let is_aside = || aside.into_iter().any(has).then_some(Mark::Aside);
    chained.into_iter().any(has).then_some(Mark::Chained).or_else(is_aside)
}

/// The name in `KeyError: 'loss'`, `torch.OutOfMemoryError: …`, `KeyboardInterrupt`,
/// `ray.exceptions.RayTaskError(OutOfMemoryError): …`. A name without a usual ending counts only in the line right
/// after the traceback.
fn error(line: &str, is_next: bool) -> Option<&str> {
    let is_part = |char: char| char.is_alphanumeric() || char == '_' || char == '.';
    let (path, rest) = line.split_at(line.find(|char| !is_part(char)).unwrap_or(line.len()));
    let name = path.rsplit('.').next().unwrap_or(path);
    let is_class = name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase);
    let is_known = path.contains('.') || ENDS.iter().any(|end| name.ends_with(end));
    let rest = match rest.strip_prefix('(') {
        Some(inner) => inner.split_once(')')?.1,
        None => rest,
    };
    let is_head = match rest.trim_end() {
        "" => is_known,
        rest => rest == ":" || rest.starts_with(": "),
    };
    (is_class && is_head && (is_known || is_next)).then_some(name)
}

/// The usual endings of exception names.
const ENDS: [&str; 10] = [
    "Error",
    "Exception",
    "Exit",
    "Expired",
    "Failed",
    "Group",
    "Interrupt",
    "Iteration",
    "Timeout",
    "Warning",
];

/// Words that occur in errors about memory.
const MEMORY: [&str; 6] =
    ["OutOfMemory", "MemoryError", "out of memory", "Out of memory", "ALLOC_FAILED", "allocate memory"];

/// Words that occur in errors reporting that another process ended: from launchers, pools, and ranks that lost a
/// peer.
const OF_OTHERS: [&str; 11] = [
    "BrokenProcessPool",
    "CalledProcessError",
    "ChildFailedError",
    "Connection",
    "DataLoader worker",
    "NCCL",
    "ProcessExitedException",
    "ProcessRaisedException",
    "RayTaskError",
    "distributed.Dist",
    "gloo",
];

/// The number and the text of a line of source as IPython shows it: `----> 9     out = model(x)`, `     10 x`.
fn numbered(line: &str) -> Option<(u32, &str)> {
    let line = line.trim_start();
    let arrow = line.trim_start_matches('-').strip_prefix("> ").filter(|_| line.starts_with('-'));
    super::text::number(arrow.unwrap_or(line)).filter(|(_, rest)| rest.is_empty() || rest.starts_with(' '))
}

/// A line of source without the launcher's prefix.
pub(super) fn source(line: &str) -> &str {
    let line =
        line.split_once("]: ").filter(|(ahead, _)| ahead.starts_with('[')).map_or(line, |(_, rest)| rest);
    line.trim()
}

#[cfg(test)]
mod tests {
    use super::super::{Failed, Pasted, read};

    const MESSAGE: &str = "CUDA out of memory. Tried to allocate 8.00 GiB.";

    fn failed(text: &str) -> Failed {
        let Some(Pasted::Log(log)) = read(text.as_bytes()).expect("read") else { panic!("{text}") };
        let [failed] = log.failed.try_into().unwrap_or_else(|all| panic!("{all:?}"));
        failed
    }

    fn trace(line: u32, error: &str) -> String {
        format!(
            "Traceback (most recent call last):\n  File \"t.py\", line {line}, in <module>\n    y = f()\n{error}\n"
        )
    }

    #[test]
    fn a_traceback_belongs_to_a_message_only_if_that_is_its_error() {
        let key = trace(3, "KeyError: 'loss'");
        for (text, line) in [
            (format!("oom, retrying: {MESSAGE}\nepoch 1 ok\n{key}"), None),
            (format!("{key}skipping a batch\noom, retrying: {MESSAGE}\n"), None),
            (format!("{}oom: {MESSAGE}\n", trace(3, "Oops: x")), None),
            (format!("{}oom: {MESSAGE}\n", key.replace("    y = f()\n", "")), None),
            (trace(3, &format!("RuntimeError: {MESSAGE}")), Some(3)),
            (trace(3, "mine.CompileFailed: backend raised:") + "RuntimeError: " + MESSAGE, Some(3)),
            (
                trace(3, "dist.DistBackendError: NCCL error\nLast error:\nCuda failure 2 'out of memory'"),
                Some(3),
            ),
            (format!("{MESSAGE}\n\n{}", trace(3, "torch.OutOfMemoryError: Allocation on device")), Some(3)),
            (format!("{MESSAGE}\n\n{}", trace(3, "")), Some(3)),
        ] {
            let found = failed(&text).traceback;
            assert_eq!(found.place().map(|it| it.line), line, "{text}");
        }
    }

    #[test]
    fn the_traceback_of_a_replica_begins_with_its_parents() {
        let found = failed(&format!(
            "Traceback (most recent call last):\n  File \"/w/train.py\", line 9, in <module>\n    out = model(x)\n  File \
             \"/p/site-packages/torch/_utils.py\", line 8, in reraise\n    raise exception\ntorch.OutOfMemoryError: Caught OutOfMemoryError in \
             replica 1 on device 1.\nOriginal Traceback (most recent call last):\n  File \"/w/net2.py\", line 5, in forward\n    return x @ \
             w\ntorch.OutOfMemoryError: {MESSAGE}\n"
        ));
        assert_eq!(found.traceback.program(), Some("/w/train.py"));
        assert_eq!(found.traceback.place().map(|it| it.line), Some(5));
    }

    #[test]
    fn a_traceback_in_a_box_has_frames_and_their_source() {
        let rows = [
            "/w/train.py:9 in <module>",
            "",
            "   8 │   model = Net()",
            "❱  9 │   loss.backward()",
            "  10 │",
            "",
            "/p/site-packages/torch/_tensor.py:487 in backward",
            "❱ 487 │   torch.autograd.backward(",
        ];
        let rows: String = rows.iter().map(|row| format!("│ {row:<60} │\n")).collect();
        let text = format!(
            "╭─── Traceback (most recent call last) ───╮\n{rows}╰───╯\nOutOfMemoryError: {MESSAGE}\n"
        );
        let found = failed(&text).traceback;
        assert_eq!((found.program(), found.frames.len()), (Some("/w/train.py"), 2), "{text}");
        assert_eq!(found.place().map(|it| it.source.as_str()), Some("loss.backward()"), "{text}");
    }

    #[test]
    fn a_prefix_of_each_line_is_not_source() {
        for prefix in
            ["(RayTrainWorker pid=12, ip=10.0.0.1) ", "trainer-1  | 2026-01-01T00:00:00Z ", "[rank0]: "]
        {
            let text = trace(3, &format!("RuntimeError: {MESSAGE}"));
            let text: String = text.lines().map(|line| format!("{prefix}{line}\n")).collect();
            let found = failed(&text).traceback;
            assert_eq!(found.place().map(|it| it.source.as_str()), Some("y = f()"), "{text}");
        }
    }

    #[test]
    fn a_prefix_without_the_header_of_the_traceback_is_not_source() {
        let text = format!(
            "worker-1: [rank9]:   File \"run.py\", line 77, in <module>\nworker-1: [rank9]:     engine.step()\nworker-1: \
             [rank9]: RuntimeError: {MESSAGE}\n"
        );
        let found = failed(&text).traceback;
        assert_eq!(found.place().map(|it| it.source.as_str()), Some("engine.step()"), "{text}");
    }

    #[test]
    fn of_the_lines_that_ipython_shows_the_one_with_the_number_is_the_source() {
        let text = format!(
            "Cell In[14], line 9\n      7 for x, y in loader:\n      8     x = x.to(device)\n----> 9     out = model(x)\n     10     \
             loss = f(out)\n\nFile /p/site-packages/torch/nn/modules/module.py:1501, in Module._call_impl(self)\n   1499     \
             if x:\n-> 1501     return f(x)\n\nOutOfMemoryError: {MESSAGE}\n"
        );
        let found = failed(&text).traceback;
        let sources: Vec<_> = found.frames.iter().map(|it| it.source.as_str()).collect();
        assert_eq!(sources, ["out = model(x)", "return f(x)"], "{text}");
    }

    #[test]
    fn the_error_that_came_after_a_message_ended_the_program() {
        let caught = format!("oom, retrying: {MESSAGE}\nepoch 1 ok\n");
        let key = trace(3, "KeyError: 'loss'");
        let ranked = |text: &str| text.lines().map(|line| format!("[rank1]: {line}\n")).collect::<String>();
        let chained = "\nDuring handling of the above exception, another exception occurred:\n\n";
        for (text, error) in [
            (caught.clone() + &key, Some("KeyError")),
            (
                caught.clone() + &key + "srun: error: node1: task 0: Exited with exit code 1\n",
                Some("KeyError"),
            ),
            (ranked(&(caught.clone() + &key)), Some("KeyError")),
            (caught.clone() + &trace(3, "KeyboardInterrupt"), Some("KeyboardInterrupt")),
            (caught.clone() + &key + chained + &trace(5, "mine.LoaderError: x"), Some("LoaderError")),
            // These errors do not count: one chained to the memory error, one far above the end, one from a thread,
            // one from a launcher, and one about memory.
            (format!("RuntimeError: {MESSAGE}\n{chained}{key}"), None),
            (caught.clone() + &key + &"step\n".repeat(99), None),
            (caught.clone() + "Exception in thread Thread-3:\n" + &key, None),
            (caught.clone() + &trace(3, "a.b.ChildFailedError: "), None),
            (caught + &trace(3, "MemoryError"), None),
        ] {
            assert_eq!(failed(&text).ended_with.map(|it| it.error).as_deref(), error, "{text}");
        }
    }
}
