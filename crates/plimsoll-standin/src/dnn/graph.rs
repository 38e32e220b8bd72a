//! cuDNN's graph API, as far as PyTorch uses it. Graphs are recorded as they are described; heuristics and plans come
//! from cuDNN itself, which runs without a GPU ([`crate::planner`]), or from the model in [`super::workspace`].
//!
//! A plan refers to its graph through a chain of descriptors: operation, graph, heuristics, configuration, plan. The
//! facts about it ([`Known`]) are copied along whenever one descriptor is set in, or read from, another.
//!
//! Note [Several plans]: the model's heuristics return a configuration on tensor cores, one without them for 32-bit
//! floats, and one that needs no workspace. PyTorch takes the first, skips tensor cores where TF32 is not allowed, and
//! tries the next one if the workspace cannot be allocated. cuDNN's own heuristics return a longer list that ends in
//! the same way.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard};

use super::convolution::{Convolution, Precision};
use super::described::convolution;
use super::descriptor::{Descriptor, Known, kind, value_bytes};
use crate::argument::{Out, little_endian};
use crate::call::{calls, new_handle};
use crate::error::{Failure, Outcome};
use crate::gpu::setup;
use crate::lock::locked;
use crate::notice;
use crate::planner::client;
use crate::planner::wire::{Attribute, DESCRIPTOR, Graph, Node};
use crate::settings::Workspaces;
use crate::stream::kernel_somewhere;
use crate::workspace;

/// `cudnnBackendDescriptorType_t`: a descriptor's type.
mod descriptor {
    pub(super) const HEURISTICS: i32 = 4;
}

/// `cudnnBackendAttributeName_t`: an attribute's name.
mod name {
    pub(super) const RESULTS: i32 = 202;
    pub(super) const CONFIGURATION_ENGINE: i32 = 300;
    pub(super) const PLAN_CONFIGURATION: i32 = 401;
    pub(super) const PLAN_WORKSPACE: i32 = 402;
    pub(super) const PACK_WORKSPACE: i32 = 1003;
    pub(super) const ENGINE_INDEX: i32 = 1301;
    pub(super) const ENGINE_NUMERICAL_NOTES: i32 = 1303;
    pub(super) const ENGINE_BEHAVIOR_NOTES: i32 = 1305;
}

/// `CUDNN_NUMERICAL_NOTE_TENSOR_CORE`.
const TENSOR_CORE: i32 = 0;
/// The JSON form of a plan: an empty object, in two characters.
const PLAN: &[u8] = b"{}";

/// By handle. PyTorch keeps at most a few hundred plans.
type Descriptors = BTreeMap<u64, Arc<Descriptor>>;

static DESCRIPTORS: Mutex<Descriptors> = Mutex::new(BTreeMap::new());

fn descriptors() -> MutexGuard<'static, Descriptors> {
    locked(&DESCRIPTORS)
}

calls! { Dnn:
    fn cudnnBackendCreateDescriptor(kind: c_int, descriptor: Out<u64>) {
        let handle = new_handle();
        descriptors().insert(handle, Arc::new(Descriptor { kind, ..Descriptor::default() }));
        descriptor.put(handle)
    }
    fn cudnnBackendDestroyDescriptor(descriptor: u64) {
        descriptors().remove(&descriptor);
        Ok(())
    }
    fn cudnnBackendSetAttribute(descriptor: u64, name: c_int, kind: c_int, count: i64, values: Out<u8>) {
        set(descriptor, name, kind, count, values)
    }
    fn cudnnBackendFinalize(descriptor: u64) {
        finish(descriptor)
    }
    fn cudnnBackendExecute(_handle: u64, plan: u64, pack: u64) {
        kernel_somewhere();
        execute(plan, pack);
        Ok(())
    }
    fn cudnnBackendGetAttribute(
        descriptor: u64, name: c_int, kind: c_int, wanted: i64, count: Out<i64>, values: Out<u8>,
    ) {
        get(descriptor, name, kind, wanted, count, values)
    }
}

/// Sets an attribute; facts about a referenced descriptor are copied to this one.
fn set(descriptor: u64, name: i32, kind: i32, count: i64, values: Out<u8>) -> Outcome {
    let values_count = usize::try_from(count).map_err(|_| Failure::InvalidValue)?;
    let bytes = match values_count * value_bytes(kind) {
        0 => Vec::new(),
        bytes => values.get_bytes(bytes)?,
    };
    let mut descriptors = descriptors();
    let children: Vec<_> = match kind {
        DESCRIPTOR => {
            bytes.chunks(8).filter_map(|handle| descriptors.get(&handle_of(handle)).cloned()).collect()
        }
        _ => Vec::new(),
    };
    let own = Arc::make_mut(descriptors.get_mut(&descriptor).ok_or(Failure::InvalidHandle)?);
    if kind == DESCRIPTOR {
        let known = children.iter().map(|child| &child.known);
        let mut handed_on = known.filter(|known| matches!(known, Known::Modelled(_) | Known::Chosen { .. }));
        if let Some(known) = handed_on.next() {
            own.known = known.clone();
        }
        own.children.insert(name, children);
    } else {
        own.attributes.insert(name, Attribute { name, kind, count, bytes });
    }
    Ok(())
}

fn handle_of(bytes: &[u8]) -> u64 {
    little_endian(bytes).cast_unsigned()
}

/// Finishes a descriptor: reads the convolution of a complete operation, or queries cuDNN for heuristics and plans.
/// Fails as unsupported if cuDNN does.
fn finish(descriptor: u64) -> Outcome {
    let Some(own) = descriptors().get(&descriptor).cloned() else { return Ok(()) };
    if let Some(convolution) = convolution(&own) {
        update(&mut descriptors(), descriptor, Known::Modelled(convolution));
    } else if let Some(answer) = ask(&own) {
        notice::assume(notice::CUDNN, notice::ASKED);
        update(&mut descriptors(), descriptor, answer.map_err(Failure::Status)?);
    }
    Ok(())
}

fn update(all: &mut Descriptors, descriptor: u64, known: Known) {
    if let Some(own) = all.get_mut(&descriptor) {
        Arc::make_mut(own).known = known;
    }
}

/// Records where a plan's workspace is.
fn execute(plan: u64, pack: u64) {
    let all = descriptors();
    let bytes = all.get(&plan).map_or(0, |plan| workspace_bytes(&plan.known));
    let address = all.get(&pack).and_then(|pack| pack.numbers(name::PACK_WORKSPACE)?.first().copied());
    workspace::note(address.map(i64::cast_unsigned).filter(|address| *address > 0), bytes);
}

/// Queries cuDNN for heuristics or a plan; `None` if cuDNN must not be queried or is not available.
fn ask(own: &Arc<Descriptor>) -> Option<client::Asked<Known>> {
    if Workspaces::wanted() != Workspaces::Library {
        return None;
    }
    if own.kind == descriptor::HEURISTICS {
        // See Note [Depthwise] in `convolution.rs`.
        if matches!(&own.known, Known::Modelled(convolution) if convolution.needs_a_device()) {
            return None;
        }
        let found = client::heuristics(graph(own))?;
        let is_convolution = matches!(own.known, Known::Modelled(_));
        // Note [Compiled graphs]: cuDNN may reject a graph that it compiles at run time, such as attention, or find no engine for it,
        // because there is no driver. Then the device is assumed to support it.
        let has_engines = found.as_ref().is_ok_and(|found| !found.engines.is_empty());
        if !is_convolution && !has_engines {
            return None;
        }
        return Some(found.map(|found| Known::Found {
            heuristics: found.heuristics,
            engines: found.engines,
            is_convolution,
        }));
    }
    let configuration = own.children.get(&name::PLAN_CONFIGURATION)?.first()?;
    let planned = match own.known {
        Known::Chosen { heuristics, place, is_convolution, .. } => {
            let planned = client::plan(heuristics, place)?;
            // See Note [Compiled graphs].
            if planned.is_err() && !is_convolution {
                return None;
            }
            planned
        }
        // The caller built this configuration itself; the model's configurations have no engine.
        _ if configuration.children.contains_key(&name::CONFIGURATION_ENGINE) => {
            client::plan_of(graph(configuration))?
        }
        _ => return None,
    };
    Some(planned.map(Known::Planned))
}

/// A descriptor with everything that it refers to, in dependency order. The device description replaces handles.
fn graph(root: &Arc<Descriptor>) -> Graph {
    let mut nodes = Vec::new();
    add(root, &mut nodes, &mut Vec::new());
    nodes
}

/// Adds a descriptor unless it is present, and returns its index.
fn add(own: &Arc<Descriptor>, nodes: &mut Graph, added: &mut Vec<(Arc<Descriptor>, u64)>) -> u64 {
    if let Some((_, place)) = added.iter().find(|(known, _)| Arc::ptr_eq(known, own)) {
        return *place;
    }
    let mut attributes: Vec<Attribute> =
        own.attributes.values().filter(|it| it.kind != kind::HANDLE).cloned().collect();
    for (name, children) in &own.children {
        let bytes = children.iter().flat_map(|child| add(child, nodes, added).to_le_bytes()).collect();
        attributes.push(Attribute { name: *name, kind: DESCRIPTOR, count: children.len() as i64, bytes });
    }
    let place = nodes.len() as u64;
    nodes.push(Node { kind: own.kind, attributes });
    added.push((own.clone(), place));
    place
}

/// Reads an attribute: known facts, otherwise zeros. For attributes that hold descriptors, the caller passes created
/// descriptors to fill in.
fn get(descriptor: u64, name: i32, kind: i32, wanted: i64, count: Out<i64>, values: Out<u8>) -> Outcome {
    // A caller without a buffer requests only the count, for any size that it passes.
    let room = if values.is_null() { 0 } else { usize::try_from(wanted).unwrap_or(0) };
    let known = descriptors().get(&descriptor).map_or(Known::Nothing, |own| own.known.clone());
    let (number, bytes) = match (kind, name) {
        (DESCRIPTOR, _) => {
            let mut found = if name == name::RESULTS { configurations(known) } else { vec![known] };
            if room > 0 {
                found.truncate(room);
                hand_on(&found, values)?;
            }
            (found.len() as i64, Vec::new())
        }
        (kind::NUMERICAL_NOTE, name::ENGINE_NUMERICAL_NOTES) => notes(&numerical_notes(&known), room),
        (kind::BEHAVIOR_NOTE, name::ENGINE_BEHAVIOR_NOTES) => match &known {
            Known::Chosen { engine, .. } => notes(&engine.behavior_notes, room),
            _ => (0, Vec::new()),
        },
        (kind::INT64, name::PLAN_WORKSPACE) => (1, workspace_bytes(&known).to_le_bytes().repeat(room.min(1))),
        (kind::INT64, name::ENGINE_INDEX) if let Known::Chosen { engine, .. } = &known => {
            (1, engine.index.to_le_bytes().repeat(room.min(1)))
        }
        (kind::INT64, _) => (wanted.max(1), vec![0; room * 8]),
        (kind::INT32, _) => (wanted.max(1), vec![0; room * 4]),
        (kind::CHAR, _) => {
            (PLAN.len() as i64, PLAN.iter().copied().chain([0].repeat(room)).take(room).collect())
        }
        _ => (0, Vec::new()),
    };
    count.offer(number);
    if bytes.is_empty() { Ok(()) } else { values.put_bytes(&bytes) }
}

/// The number of notes, and those that fit into the buffer.
fn notes(notes: &[i32], room: usize) -> (i64, Vec<u8>) {
    (notes.len() as i64, notes.iter().take(room).flat_map(|note| note.to_le_bytes()).collect())
}

fn numerical_notes(known: &Known) -> Vec<i32> {
    match known {
        Known::Chosen { engine, .. } => engine.numerical_notes.clone(),
        Known::Modelled(convolution) if convolution.precision != Precision::Plain => vec![TENSOR_CORE],
        _ => Vec::new(),
    }
}

/// The heuristics' configurations, best first: cuDNN's own, or as in Note [Several plans]. A plan without known facts
/// needs no workspace.
fn configurations(known: Known) -> Vec<Known> {
    let convolution = match known {
        Known::Found { heuristics, engines, is_convolution } => {
            let chosen = |(place, engine)| Known::Chosen { heuristics, place, engine, is_convolution };
            return (0..).zip(engines).map(chosen).collect();
        }
        Known::Modelled(convolution) => convolution,
        _ => return vec![Known::Nothing],
    };
    let plain = (convolution.precision == Precision::Float)
        .then(|| Known::Modelled(Convolution { precision: Precision::Plain, ..convolution.clone() }));
    [Known::Modelled(convolution)].into_iter().chain(plain).chain([Known::Nothing]).collect()
}

/// Fills in the caller's descriptors.
fn hand_on(found: &[Known], handles: Out<u8>) -> Outcome {
    let mut descriptors = descriptors();
    for (handle, known) in handles.get_bytes(found.len() * 8)?.chunks(8).zip(found) {
        update(&mut descriptors, handle_of(handle), known.clone());
    }
    Ok(())
}

/// Workspace bytes: cuDNN's own, the model's, or none.
fn workspace_bytes(known: &Known) -> u64 {
    match known {
        Known::Planned(bytes) => bytes.unsigned_abs(),
        Known::Modelled(convolution) => {
            let multiprocessors = setup().gpu.multiprocessors.unsigned_abs().into();
            workspace::modelled(notice::CUDNN, || convolution.workspace_bytes(multiprocessors))
        }
        _ => 0,
    }
}
