//! Records which lines of a Python program ran, and in how many steps: a trace function for Python's `PyEval_SetTrace`.
//!
//! It is not written in Python, because Python copies the variables of a frame for a trace function written in Python,
//! which would keep tensors alive. The Python part of `plimsoll predict` in the process starts it, counts the steps,
//! and reads the lines. Only one thread is traced.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::sync::Mutex;

use crate::lock::locked;

/// Python's trace function: an object of ours, the frame, the event, its argument.
type Trace = extern "C" fn(*mut c_void, *mut c_void, c_int, *mut c_void) -> c_int;

/// The event: a line is about to run.
const LINE: c_int = 2;

/// A function's address, as the loader finds it.
type Found = *mut c_void;
type SetTrace = unsafe extern "C" fn(Option<Trace>, *mut c_void);
type ObjectOf = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type NumberOf = unsafe extern "C" fn(*mut c_void) -> c_int;
type Attribute = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type TextOf = unsafe extern "C" fn(*mut c_void) -> *const c_char;
type Release = unsafe extern "C" fn(*mut c_void);
type Clear = unsafe extern "C" fn();

/// The functions of Python's C interface that are needed.
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
    /// The functions in this process; `None` if it is not a Python process, or this Python does not export them.
    fn here() -> Option<Python> {
        let find = |name: &CStr| {
            // SAFETY: `name` is a zero-terminated string.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        // SAFETY: these are the signatures of the functions in Python's C interface, from 3.9 on.
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

    /// The file of a code object; empty if it has none. The caller holds Python's lock.
    fn file(self, code: *mut c_void) -> String {
        // SAFETY: `code` is a Python object that the caller keeps alive, and `name` one that this function owns; its text lives as
        // long as it does.
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

/// How often a line ran.
#[derive(Clone, Copy, Default)]
struct Ran {
    /// The steps in which it ran.
    steps: u32,
    /// The last step in which it ran.
    last: u32,
}

/// The lines that ran, by the address of their code object, to which a reference is held.
struct Lines {
    python: Python,
    /// Path fragments that mark library files, as opposed to the program's own.
    libraries: Vec<String>,
    /// `None` for the code of a library.
    codes: HashMap<usize, Option<BTreeMap<u32, Ran>>>,
    step: u32,
    /// Whether any line ran in it.
    has_run: bool,
}

static LINES: Mutex<Option<Lines>> = Mutex::new(None);

/// A line that ran, for the reader.
#[repr(C)]
#[derive(Clone, Copy)]
struct Row {
    code: u64,
    line: u32,
    steps: u32,
    last: u32,
    _padding: u32,
}

/// Starts to trace this thread. `libraries` has parts of paths, one per line; files whose path contains one do not
/// belong to the program. Null stops tracing. The caller holds Python's lock. Returns 1 if it traces.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_trace(libraries: *const c_char) -> c_int {
    let Some(python) = Python::here() else { return 0 };
    if libraries.is_null() {
        // SAFETY: the caller holds Python's lock.
        unsafe { (python.set_trace)(None, std::ptr::null_mut()) };
        return 0;
    }
    // SAFETY: the caller passes a zero-terminated string.
    let libraries = unsafe { CStr::from_ptr(libraries) }.to_string_lossy().into_owned();
    let libraries = libraries.lines().map(str::to_owned).collect();
    *locked(&LINES) = Some(Lines { python, libraries, codes: HashMap::new(), step: 0, has_run: false });
    // SAFETY: the caller holds Python's lock, and `traced` is a trace function that needs no object.
    unsafe { (python.set_trace)(Some(traced), std::ptr::null_mut()) };
    1
}

/// Counts the lines that run from now on for `step`. Returns 1 if any line ran in the previous step, even a library's.
/// If none did, another tracer has replaced this one.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_step(step: u32) -> c_int {
    let mut lines = locked(&LINES);
    let Some(lines) = lines.as_mut() else { return 0 };
    lines.step = step;
    c_int::from(std::mem::take(&mut lines.has_run))
}

/// The number of steps in which a line ran, and in the low 32 bits the last of them.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_ran(code: u64, line: u32) -> u64 {
    let lines = locked(&LINES);
    let codes = lines.as_ref().map(|lines| &lines.codes);
    let code = usize::try_from(code).ok().and_then(|code| codes?.get(&code)?.as_ref());
    code.and_then(|lines| lines.get(&line)).map_or(0, |ran| u64::from(ran.steps) << 32 | u64::from(ran.last))
}

/// Copies the lines that ran so far to `rows`, as many as fit. Returns the number of lines.
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

/// Python calls this before each line, with its lock held.
extern "C" fn traced(_: *mut c_void, frame: *mut c_void, what: c_int, _: *mut c_void) -> c_int {
    if what != LINE {
        return 0;
    }
    let mut lines = locked(&LINES);
    let Some(Lines { python, libraries, codes, step, has_run }) = lines.as_mut() else { return 0 };
    *has_run = true;
    // SAFETY: Python passes a frame; the result is a reference of ours to its code object.
    let code = unsafe { (python.code_of)(frame) };
    let ran = match codes.entry(code as usize) {
        Entry::Occupied(known) => {
            // SAFETY: the map holds its own reference, so this one is not the last.
            unsafe { (python.release)(code) };
            known.into_mut()
        }
        Entry::Vacant(new) => {
            let file = python.file(code);
            let is_library = file.is_empty() || libraries.iter().any(|part| file.contains(part.as_str()));
            new.insert((!is_library).then(BTreeMap::new))
        }
    };
    if let Some(ran) = ran {
        // SAFETY: the frame is Python's argument.
        let line = unsafe { (python.line_of)(frame) };
        let ran = ran.entry(u32::try_from(line).unwrap_or(0)).or_default();
        if ran.steps == 0 || ran.last != *step {
            *ran = Ran { steps: ran.steps + 1, last: *step };
        }
    }
    0
}
