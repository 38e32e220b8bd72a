//! Finds the stacks that are inside a call to a module.

use crate::snapshot::{Frame, FrameId, Snapshot, StackId};

/// Whether a frame is the call to a module: PyTorch's own frame, or a method named `forward` if PyTorch's was not recorded.
pub(super) fn is_call(snapshot: &Snapshot, frame: &Frame) -> bool {
    let name = snapshot.texts.get(frame.name);
    name.ends_with("_call_impl") || name == "forward"
}

/// For each stack, by its id, whether it is inside a module's call.
pub(super) fn in_modules(snapshot: &Snapshot) -> Vec<bool> {
    let stacks = &snapshot.stacks;
    let frames = (0..stacks.frame_count()).filter_map(FrameId::new);
    let calls: Vec<bool> = frames.map(|id| is_call(snapshot, stacks.get_frame(id))).collect();
    let is_in = |id: StackId| stacks.frame_ids(id).any(|frame| calls[frame.index()]);
    (0..stacks.len()).filter_map(StackId::new).map(is_in).collect()
}
