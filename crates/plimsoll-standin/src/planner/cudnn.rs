//! The real cuDNN in the planner: rebuilds the descriptors of a graph, finalizes them, and queries the result.
//!
//! The device description replaces the handle: heuristics and engines get it as an attribute, and descriptors built
//! from them inherit it. Descriptors of heuristics and configurations, a few hundred, live as long as the process;
//! plans are destroyed after the query.

use std::ffi::{CString, c_int, c_void};
use std::path::Path;

use super::clusters;
use super::wire::{DESCRIPTOR, Engine, Found, Graph, NOT_ASKED};

/// A failed cuDNN status, and cuDNN's message.
pub(super) type Failed = (i32, String);

type Handle = *mut c_void;
type Create = extern "C" fn(c_int, *mut Handle) -> c_int;
type Finalize = extern "C" fn(Handle) -> c_int;
type Set = extern "C" fn(Handle, c_int, c_int, i64, *const c_void) -> c_int;
type Get = extern "C" fn(Handle, c_int, c_int, i64, *mut i64, *mut c_void) -> c_int;

/// `cudnnBackendAttributeType_t`.
mod kind {
    pub(super) const INT64: i32 = 3;
    pub(super) const NUMERICAL_NOTE: i32 = 11;
    pub(super) const BEHAVIOR_NOTE: i32 = 19;
    pub(super) const CHAR: i32 = 24;
}

/// `cudnnBackendDescriptorType_t`.
mod descriptor {
    pub(super) const ENGINE: i32 = 2;
    pub(super) const CONFIGURATION: i32 = 3;
    pub(super) const HEURISTICS: i32 = 4;
    pub(super) const PLAN: i32 = 5;
    pub(super) const DEVICE: i32 = 38;
}

/// `cudnnBackendAttributeName_t`.
mod name {
    pub(super) const RESULTS: i32 = 202;
    pub(super) const HEURISTICS_DEVICE: i32 = 204;
    pub(super) const CONFIGURATION_ENGINE: i32 = 300;
    pub(super) const PLAN_CONFIGURATION: i32 = 401;
    pub(super) const PLAN_WORKSPACE: i32 = 402;
    pub(super) const ENGINE_INDEX: i32 = 1301;
    pub(super) const ENGINE_NUMERICAL_NOTES: i32 = 1303;
    pub(super) const ENGINE_BEHAVIOR_NOTES: i32 = 1305;
    pub(super) const ENGINE_DEVICE: i32 = 1307;
    pub(super) const DEVICE_JSON: i32 = 2702;
}

/// The maximum number of notes of an engine.
const MOST_NOTES: usize = 32;
/// The maximum number of configurations that heuristics may return; at most 40 were seen.
const MOST_FOUND: i64 = 4096;

/// The library, with a device description.
pub(super) struct Cudnn {
    create: Create,
    destroy: Finalize,
    finalize: Finalize,
    set: Set,
    get: Get,
    device: Handle,
    /// By request ID: the configurations found.
    found: Vec<Vec<Handle>>,
}

impl Cudnn {
    /// Opens the library at a path and describes the device. Also returns its version.
    ///
    /// # Errors
    ///
    /// The library cannot be opened, lacks these functions, or cannot read the description (before 9.8).
    pub(super) fn open(path: &str, device: &str, layout: Option<&[i32]>) -> Result<(Cudnn, u64), Failed> {
        let library = library(path)?;
        // SAFETY: each symbol is the cuDNN 9 function of that name, with its type from `cudnn_graph.h`.
        let (version, mut cudnn) = unsafe {
            let version: extern "C" fn() -> usize = std::mem::transmute(symbol(library, "cudnnGetVersion")?);
            let cudnn = Cudnn {
                create: std::mem::transmute::<Handle, Create>(symbol(
                    library,
                    "cudnnBackendCreateDescriptor",
                )?),
                destroy: std::mem::transmute::<Handle, Finalize>(symbol(
                    library,
                    "cudnnBackendDestroyDescriptor",
                )?),
                finalize: std::mem::transmute::<Handle, Finalize>(symbol(library, "cudnnBackendFinalize")?),
                set: std::mem::transmute::<Handle, Set>(symbol(library, "cudnnBackendSetAttribute")?),
                get: std::mem::transmute::<Handle, Get>(symbol(library, "cudnnBackendGetAttribute")?),
                device: std::ptr::null_mut(),
                found: Vec::new(),
            };
            (version(), cudnn)
        };
        cudnn.device = cudnn.new_descriptor(descriptor::DEVICE)?;
        let text = CString::new(device)
            .map_err(|_| (NOT_ASKED, "the description contains a zero byte".to_owned()))?;
        let bytes = text.as_bytes_with_nul();
        cudnn.put(cudnn.device, name::DEVICE_JSON, kind::CHAR, bytes.len() as i64, bytes)?;
        cudnn.finish(cudnn.device)?;
        if let Some(layout) = layout {
            let words = device.split("\"deviceVer\":").nth(1).and_then(|rest| rest.split([',', '}']).next());
            let version = words.and_then(|text| text.parse().ok()).unwrap_or(0);
            // SAFETY: the descriptor was created above, and this process has a single thread that uses it.
            let _unknown_place = unsafe { clusters::write(cudnn.device, layout, version) };
        }
        Ok((cudnn, version as u64))
    }

    /// The heuristics' configurations for a graph.
    pub(super) fn heuristics(&mut self, graph: &Graph) -> Result<Found, Failed> {
        let heuristics = self.make(graph)?;
        let mut count = 0;
        self.read(heuristics, name::RESULTS, DESCRIPTOR, 0, &mut count, std::ptr::null_mut())?;
        let wanted = count.clamp(0, MOST_FOUND);
        let made = (0..wanted).map(|_| self.new_descriptor(descriptor::CONFIGURATION));
        let mut configurations = made.collect::<Result<Vec<Handle>, Failed>>()?;
        let place = configurations.as_mut_ptr().cast();
        self.read(heuristics, name::RESULTS, DESCRIPTOR, wanted, &mut count, place)?;
        configurations.truncate(usize::try_from(count).unwrap_or(0));
        let engines = configurations
            .iter()
            .map(|configuration| self.engine(*configuration))
            .collect::<Result<_, _>>()?;
        self.found.push(configurations);
        Ok(Found { heuristics: self.found.len() as u64 - 1, engines })
    }

    /// Workspace bytes of the plan for a configuration found before.
    pub(super) fn plan(&self, heuristics: u64, place: u64) -> Result<i64, Failed> {
        let found = usize::try_from(heuristics).ok().and_then(|number| self.found.get(number));
        let configuration =
            found.zip(usize::try_from(place).ok()).and_then(|(found, place)| found.get(place));
        let configuration = *configuration.ok_or_else(|| (NOT_ASKED, "no such configuration".to_owned()))?;
        let plan = self.new_descriptor(descriptor::PLAN)?;
        let workspace = self.workspace(plan, configuration);
        (self.destroy)(plan);
        workspace
    }

    /// Workspace bytes of the plan for a configuration that the caller built.
    pub(super) fn plan_of(&mut self, configuration: &Graph) -> Result<i64, Failed> {
        let configuration = self.make(configuration)?;
        self.found.push(vec![configuration]);
        self.plan(self.found.len() as u64 - 1, 0)
    }

    fn workspace(&self, plan: Handle, configuration: Handle) -> Result<i64, Failed> {
        self.put_handle(plan, name::PLAN_CONFIGURATION, configuration)?;
        self.finish(plan)?;
        self.number(plan, name::PLAN_WORKSPACE)
    }

    /// Creates and finalizes all descriptors of a graph; returns the last one's handle.
    fn make(&self, graph: &Graph) -> Result<Handle, Failed> {
        let mut handles: Vec<Handle> = Vec::new();
        for node in graph {
            let made = self.new_descriptor(node.kind)?;
            for attribute in &node.attributes {
                let bytes = match attribute.kind {
                    DESCRIPTOR => referred(&attribute.bytes, &handles)?,
                    _ => attribute.bytes.clone(),
                };
                self.put(made, attribute.name, attribute.kind, attribute.count, &bytes)?;
            }
            match node.kind {
                descriptor::HEURISTICS => self.put_handle(made, name::HEURISTICS_DEVICE, self.device)?,
                descriptor::ENGINE => self.put_handle(made, name::ENGINE_DEVICE, self.device)?,
                _ => {}
            }
            self.finish(made)?;
            handles.push(made);
        }
        handles.pop().ok_or_else(|| (NOT_ASKED, "the graph is empty".to_owned()))
    }

    fn engine(&self, configuration: Handle) -> Result<Engine, Failed> {
        let mut engine = self.new_descriptor(descriptor::ENGINE)?;
        let (mut count, place) = (0, (&raw mut engine).cast());
        self.read(configuration, name::CONFIGURATION_ENGINE, DESCRIPTOR, 1, &mut count, place)?;
        Ok(Engine {
            index: self.number(engine, name::ENGINE_INDEX)?,
            numerical_notes: self.notes(engine, name::ENGINE_NUMERICAL_NOTES, kind::NUMERICAL_NOTE),
            behavior_notes: self.notes(engine, name::ENGINE_BEHAVIOR_NOTES, kind::BEHAVIOR_NOTE),
        })
    }

    /// The notes of an engine; none if it lacks the attribute.
    fn notes(&self, engine: Handle, name: i32, kind: i32) -> Vec<i32> {
        let (mut notes, mut count) = ([0; MOST_NOTES], 0);
        let found = self.read(engine, name, kind, MOST_NOTES as i64, &mut count, notes.as_mut_ptr().cast());
        let count = found.map_or(0, |()| usize::try_from(count).unwrap_or(0).min(MOST_NOTES));
        notes[..count].to_vec()
    }

    fn number(&self, descriptor: Handle, name: i32) -> Result<i64, Failed> {
        let (mut number, mut count) = (0_i64, 0);
        self.read(descriptor, name, kind::INT64, 1, &mut count, (&raw mut number).cast())?;
        Ok(number)
    }

    fn new_descriptor(&self, kind: i32) -> Result<Handle, Failed> {
        let mut handle = std::ptr::null_mut();
        self.checked((self.create)(kind, &mut handle), "create", kind)?;
        Ok(handle)
    }

    fn put_handle(&self, descriptor: Handle, name: i32, handle: Handle) -> Result<(), Failed> {
        self.put(descriptor, name, DESCRIPTOR, 1, &handle.addr().to_ne_bytes())
    }

    fn put(&self, descriptor: Handle, name: i32, kind: i32, count: i64, bytes: &[u8]) -> Result<(), Failed> {
        // Values of 8 bytes are read as such, so they must be aligned to 8 bytes.
        let words: Vec<u64> = bytes.chunks(8).map(word).collect();
        self.checked((self.set)(descriptor, name, kind, count, words.as_ptr().cast()), "set", name)
    }

    fn read(
        &self,
        descriptor: Handle,
        name: i32,
        kind: i32,
        wanted: i64,
        count: &mut i64,
        place: *mut c_void,
    ) -> Result<(), Failed> {
        self.checked((self.get)(descriptor, name, kind, wanted, count, place), "get", name)
    }

    fn finish(&self, descriptor: Handle) -> Result<(), Failed> {
        self.checked((self.finalize)(descriptor), "finalize", 0)
    }

    fn checked(&self, status: c_int, what: &str, number: i32) -> Result<(), Failed> {
        if status == 0 { Ok(()) } else { Err((status, format!("{what} {number}"))) }
    }
}

/// The handles that an attribute refers to by node index.
fn referred(positions: &[u8], handles: &[Handle]) -> Result<Vec<u8>, Failed> {
    let handle = |position: &[u8]| handles.get(usize::try_from(word(position)).ok()?);
    let bytes =
        positions.chunks(8).map(|position| handle(position).map(|handle| handle.addr().to_ne_bytes()));
    let bytes = bytes.collect::<Option<Vec<_>>>().map(|bytes| bytes.concat());
    bytes.ok_or_else(|| (NOT_ASKED, "an attribute refers to a later node".to_owned()))
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}

/// Opens a library with global symbols: cuDNN's parts look each other up.
fn library(path: &str) -> Result<Handle, Failed> {
    let name = || Path::new(path).display();
    let text = CString::new(path).map_err(|_| (NOT_ASKED, "the path contains a zero byte".to_owned()))?;
    // SAFETY: the path ends with a zero; the library is NVIDIA's, and its initializers run here as in any program.
    let library = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if library.is_null() { Err((NOT_ASKED, format!("{} cannot be opened", name()))) } else { Ok(library) }
}

fn symbol(library: Handle, name: &str) -> Result<Handle, Failed> {
    let text: Vec<u8> = name.bytes().chain([0]).collect();
    // SAFETY: the library is open, and the name ends with a zero.
    let symbol = unsafe { libc::dlsym(library, text.as_ptr().cast()) };
    if symbol.is_null() { Err((NOT_ASKED, format!("{name} is missing"))) } else { Ok(symbol) }
}
