//! A trace function for Python's `PyEval_SetTrace`. It records which lines of a Python program ran, in how many of its steps, and
//! which of them called CUDA.
//!
//! It is not written in Python, because the interpreter would copy the variables of a frame for a trace function in
//! Python, which would keep tensors alive. `plimsoll predict`'s code in the process starts it, counts the steps, and
//! reads the lines. After each line that called CUDA, it calls a listener, which examines the memory. It traces only
//! one thread.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::sync::Mutex;

use crate::call;
use crate::lock::locked;

/// Python's type of a trace function. Its arguments are an object of ours, the frame, the event, and the event's argument.
type Trace = extern "C" fn(*mut c_void, *mut c_void, c_int, *mut c_void) -> c_int;

/// The events: a function begins, a line is about to run, a function ends.
const CALL: c_int = 0;
const LINE: c_int = 2;
const RETURN: c_int = 3;

/// A listener, which is called after a line has called CUDA. `line` is the line of the current Python frame that made the calls.
/// It is 0 if the frame belongs to a library or the line is unknown, and [`NEW`] if the frame has not run a line yet, so that a
/// line of its caller made the calls.
type Listener = extern "C" fn(line: c_int);

/// The line of a frame that has not run a line yet, for a [`Listener`].
const NEW: c_int = -1;

/// The address of a function, as `dlsym` returns it.
type Found = *mut c_void;
type SetTrace = unsafe extern "C" fn(Option<Trace>, *mut c_void);
type ObjectOf = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type NumberOf = unsafe extern "C" fn(*mut c_void) -> c_int;
type Attribute = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type TextOf = unsafe extern "C" fn(*mut c_void) -> *const c_char;
type Release = unsafe extern "C" fn(*mut c_void);
type Clear = unsafe extern "C" fn();

/// The functions of Python's C API that the tracer calls.
#[derive(Clone, Copy)]
struct Python {
    set_trace: SetTrace,
    code_of: ObjectOf,
    line_of: NumberOf,
    attribute: Attribute,
    text: TextOf,
    release: Release,
    clear_error: Clear,
}

impl Python {
    /// Finds the functions in this process. `None` if it is not a Python process, or if this Python does not export them.
    fn here() -> Option<Python> {
        let find = |name: &CStr| {
            // SAFETY: `name` is a zero-terminated string.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        // SAFETY: these are the signatures of the functions in Python's C API, since 3.9.
        unsafe {
            Some(Python {
                set_trace: transmute::<Found, SetTrace>(find(c"PyEval_SetTrace")?),
                code_of: transmute::<Found, ObjectOf>(find(c"PyFrame_GetCode")?),
                line_of: transmute::<Found, NumberOf>(find(c"PyFrame_GetLineNumber")?),
                attribute: transmute::<Found, Attribute>(find(c"PyObject_GetAttrString")?),
                text: transmute::<Found, TextOf>(find(c"PyUnicode_AsUTF8")?),
                release: transmute::<Found, Release>(find(c"Py_DecRef")?),
                clear_error: transmute::<Found, Clear>(find(c"PyErr_Clear")?),
            })
        }
    }

    /// The file of a code object; empty if it has none. The caller holds the GIL.
    fn file(self, code: *mut c_void) -> String {
        // SAFETY: `code` is a Python object that the caller keeps alive. This function owns `name`, and the text lives as long as
        // `name`.
        unsafe {
            let name = (self.attribute)(code, c"co_filename".as_ptr());
            let text = if name.is_null() { std::ptr::null() } else { (self.text)(name) };
            let file = if text.is_null() {
                (self.clear_error)();
                String::new()
            } else {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            };
            if !name.is_null() {
                (self.release)(name);
            }
            file
        }
    }
}

/// The steps in which a line ran.
#[derive(Clone, Copy, Default)]
struct Ran {
    /// The number of steps in which it ran.
    steps: u32,
    /// The last step in which it ran.
    last: u32,
}

/// The state of the tracer. It keeps a reference to each code object that ran, so that addresses are not reused.
struct Lines {
    python: Python,
    /// Path fragments that mark library files, as opposed to the program's own.
    libraries: Vec<String>,
    /// The lines that ran, by the address of the code object; `None` for the code of a library.
    codes: HashMap<usize, Option<BTreeMap<u32, Ran>>>,
    /// Whether lines are recorded.
    records: bool,
    step: u32,
    /// Whether any line ran in this step.
    has_run: bool,
    listener: Option<Listener>,
    /// The number of CUDA calls when the listener was last called.
    calls: u64,
    /// The line that each of the program's frames is running, by the frame's address; 0 before the first line.
    frames: HashMap<usize, c_int>,
}

impl Lines {
    fn new(python: Python) -> Lines {
        Lines {
            python,
            libraries: Vec::new(),
            codes: HashMap::new(),
            records: false,
            step: 0,
            has_run: false,
            listener: None,
            calls: 0,
            frames: HashMap::new(),
        }
    }

    /// The lines of a frame's code; `None` for a library's code. The caller holds the GIL.
    fn of_frame(&mut self, frame: *mut c_void) -> Option<&mut BTreeMap<u32, Ran>> {
        let Lines { python, libraries, codes, .. } = self;
        // SAFETY: Python passes a frame, and the result is a new reference to its code object, which we own.
        let code = unsafe { (python.code_of)(frame) };
        let lines = match codes.entry(code as usize) {
            Entry::Occupied(known) => {
                // SAFETY: the map holds another reference, so this one is not the last.
                unsafe { (python.release)(code) };
                known.into_mut()
            }
            Entry::Vacant(new) => {
                let file = python.file(code);
                let is_library = file.is_empty() || libraries.iter().any(|part| file.contains(part.as_str()));
                new.insert((!is_library).then(BTreeMap::new))
            }
        };
        lines.as_mut()
    }

    /// Records an event in a frame. Returns the listener and its argument, if it must be called.
    fn note(&mut self, frame: *mut c_void, what: c_int) -> Option<(Listener, c_int)> {
        let (records, step) = (self.records && what == LINE, self.step);
        self.has_run |= what == LINE;
        let python = self.python;
        let is_watched = self.listener.is_some();
        if !records && !is_watched {
            return None;
        }
        let mut before = 0;
        if let Some(lines) = self.of_frame(frame) {
            // SAFETY: Python passed the frame.
            let line = if what == LINE { unsafe { (python.line_of)(frame) } } else { 0 };
            if records {
                let ran = lines.entry(u32::try_from(line).unwrap_or(0)).or_default();
                if ran.steps == 0 || ran.last != step {
                    *ran = Ran { steps: ran.steps + 1, last: step };
                }
            }
            if is_watched {
                let known = match what {
                    RETURN => self.frames.remove(&(frame as usize)),
                    _ => self.frames.insert(frame as usize, line),
                };
                before = match (what, known) {
                    (CALL, _) | (LINE, Some(0)) => NEW,
                    (_, Some(line)) => line,
                    (_, None) => 0,
                };
            }
        }
        let calls = call::count();
        (calls != self.calls).then_some(())?;
        self.calls = calls;
        Some((self.listener?, before))
    }
}

static LINES: Mutex<Option<Lines>> = Mutex::new(None);

/// A line that ran, in the layout in which `predict`'s Python code reads it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Row {
    code: u64,
    line: u32,
    steps: u32,
    last: u32,
    _padding: u32,
}

/// Starts recording the lines that run on this thread. `libraries` lists path fragments, one per line; files whose path contains
/// one are libraries, not the program's. Null stops the recording. The caller holds the GIL. Returns 1 if lines are recorded.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_trace(libraries: *const c_char) -> c_int {
    start(libraries, |lines, is_on| {
        lines.records = is_on;
        (lines.step, lines.has_run) = (0, false);
        if is_on {
            lines.codes.values_mut().flatten().for_each(BTreeMap::clear);
        }
    })
}

/// Calls a listener after each line of this thread that called CUDA. `libraries` is as for [`plimsoll_standin_trace`]; null
/// removes the listener. The caller holds the GIL, and the GIL is held when the listener is called. Returns 1 if there is a
/// listener.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_watch(libraries: *const c_char, listener: Option<Listener>) -> c_int {
    start(libraries, |lines, is_on| {
        lines.listener = listener.filter(|_| is_on);
        lines.frames.clear();
    })
}

/// Applies `change` to the tracer, then starts or stops tracing this thread as needed. Returns 1 if `libraries` is not null.
fn start(libraries: *const c_char, change: impl FnOnce(&mut Lines, bool)) -> c_int {
    let Some(python) = Python::here() else { return 0 };
    let is_on = !libraries.is_null();
    let is_traced = {
        let mut all = locked(&LINES);
        let lines = all.get_or_insert_with(|| Lines::new(python));
        if is_on {
            // SAFETY: the caller passes a zero-terminated string.
            let libraries = unsafe { CStr::from_ptr(libraries) }.to_string_lossy();
            lines.libraries = libraries.lines().map(str::to_owned).collect();
        }
        change(lines, is_on);
        lines.records || lines.listener.is_some()
    };
    let tracer: Option<Trace> = if is_traced { Some(traced) } else { None };
    // SAFETY: the caller holds the GIL, and `traced` is a trace function that needs no object.
    unsafe { (python.set_trace)(tracer, std::ptr::null_mut()) };
    c_int::from(is_on)
}

/// Begins a step: lines that run from now on count for `step`. Returns 1 if any line ran in the previous step,
/// including lines of libraries. If none ran, another tracer has replaced this one.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_step(step: u32) -> c_int {
    let mut lines = locked(&LINES);
    let Some(lines) = lines.as_mut() else { return 0 };
    lines.step = step;
    c_int::from(std::mem::take(&mut lines.has_run))
}

/// The number of steps in which a line ran, in the high 32 bits, and the last of these steps, in the low 32 bits.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_ran(code: u64, line: u32) -> u64 {
    let lines = locked(&LINES);
    let codes = lines.as_ref().map(|lines| &lines.codes);
    let code = usize::try_from(code).ok().and_then(|code| codes?.get(&code)?.as_ref());
    code.and_then(|lines| lines.get(&line)).map_or(0, |ran| u64::from(ran.steps) << 32 | u64::from(ran.last))
}

/// Copies the lines that ran so far to `rows`, as many as fit. Returns the number of all lines.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_lines(rows: *mut Row, room: usize) -> usize {
    let lines = locked(&LINES);
    let Some(lines) = lines.as_ref() else { return 0 };
    let codes = lines.codes.iter().filter_map(|(code, lines)| Some((*code, lines.as_ref()?)));
    let all = codes.flat_map(|(code, lines)| lines.iter().map(move |(line, ran)| (code, *line, *ran)));
    let mut count = 0;
    for (code, line, Ran { steps, last }) in all {
        if count < room {
            // SAFETY: the caller guarantees room for `room` rows.
            unsafe { rows.add(count).write(Row { code: code as u64, line, steps, last, _padding: 0 }) };
        }
        count += 1;
    }
    count
}

/// The trace function, which Python calls at each event while holding the GIL.
extern "C" fn traced(_: *mut c_void, frame: *mut c_void, what: c_int, _: *mut c_void) -> c_int {
    if !matches!(what, CALL | LINE | RETURN) {
        return 0;
    }
    // The lock is released before the listener runs.
    let called = locked(&LINES).as_mut().and_then(|lines| lines.note(frame, what));
    if let Some((listener, line)) = called {
        listener(line);
        // Calls that the listener made do not count.
        if let Some(lines) = locked(&LINES).as_mut() {
            lines.calls = call::count();
        }
    }
    0
}
