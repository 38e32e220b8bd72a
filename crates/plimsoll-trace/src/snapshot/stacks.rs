//! Call stacks and their frames, without duplicates: [`Stacks`].

use std::collections::BTreeMap;
use std::fmt;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};

use super::{FrameId, FxId, StackId, TextId};

/// A stack frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The source file; for a C++ frame without symbols, the library.
    pub filename: TextId,
    /// The function.
    pub name: TextId,
    /// The line; for a C++ frame without symbols, an address.
    pub line: i64,
    /// The `torch.fx` annotation.
    pub fx: Option<FxId>,
}

/// The annotation that `augment_with_fx_traces` adds to a frame of compiled code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Fx {
    /// `fx_node_op`, such as `call_function`.
    pub node_op: Option<TextId>,
    /// `fx_node_name`, such as `relu_1`.
    pub node_name: Option<TextId>,
    /// `fx_original_trace`: the model's lines for this node.
    pub original_trace: Option<TextId>,
    /// `fx_node_info`.
    pub node_info: Option<TextId>,
}

/// Frames and stacks by id. [`StackId::EMPTY`] is always present.
///
/// ```
/// # use plimsoll_trace::snapshot::{Frame, StackId, Stacks, Texts};
/// let (mut texts, mut stacks) = (Texts::default(), Stacks::default());
/// let (filename, name) = (texts.intern("train.py").expect("room"), texts.intern("step").expect("room"));
/// let frame = stacks.frame(Frame { filename, name, line: 12, fx: None }).expect("room");
/// let stack = stacks.stack(&[frame]).expect("room");
/// assert_eq!((stacks.stack(&[frame]), stacks.stack(&[])), (Some(stack), Some(StackId::EMPTY)));
/// assert_eq!(stacks.frames(stack).next().expect("a frame").line, 12);
/// ```
#[derive(Clone)]
pub struct Stacks {
    frames: Vec<Frame>,
    known_frames: HashTable<FrameId>,
    fx: Vec<Fx>,
    known_fx: HashMap<Fx, FxId>,
    /// The frames of all stacks, concatenated, as indices into `frames`. So a stack can be hashed as one run of bytes.
    joined: Vec<u32>,
    /// The end of each stack in `joined`.
    ends: Vec<usize>,
    known: HashTable<StackId>,
    /// For each stack with a forward stack: the stack with the same frames but without a forward stack, and the forward
    /// stack. `with_forward` is the inverse.
    forward: BTreeMap<StackId, (StackId, StackId)>,
    with_forward: HashMap<(StackId, StackId), StackId>,
    hasher: DefaultHashBuilder,
    /// A stack being built.
    scratch: Vec<u32>,
}

impl Default for Stacks {
    fn default() -> Self {
        let mut stacks = Self {
            frames: Vec::new(),
            known_frames: HashTable::new(),
            fx: Vec::new(),
            known_fx: HashMap::new(),
            joined: Vec::new(),
            ends: Vec::new(),
            known: HashTable::new(),
            forward: BTreeMap::new(),
            with_forward: HashMap::new(),
            hasher: DefaultHashBuilder::default(),
            scratch: Vec::new(),
        };
        stacks.stack(&[]);
        stacks
    }
}

impl Stacks {
    /// The id of a frame, which is added if it is new; `None` if ids run out.
    pub fn frame(&mut self, frame: Frame) -> Option<FrameId> {
        let hash = self.hasher.hash_one(frame);
        let Self { frames, hasher, .. } = self;
        if let Some(&id) = self.known_frames.find(hash, |id| frames[id.index()] == frame) {
            return Some(id);
        }
        let id = FrameId::new(frames.len())?;
        frames.push(frame);
        self.known_frames.insert_unique(hash, id, |id| hasher.hash_one(frames[id.index()]));
        Some(id)
    }

    /// The id of a `torch.fx` annotation; `None` if ids run out.
    pub fn fx(&mut self, fx: Fx) -> Option<FxId> {
        if let Some(&id) = self.known_fx.get(&fx) {
            return Some(id);
        }
        let id = FxId::new(self.fx.len())?;
        self.fx.push(fx);
        self.known_fx.insert(fx, id);
        Some(id)
    }

    /// The id of a stack, innermost frame first, which is added if it is new; `None` if ids run out.
    pub fn stack(&mut self, frames: &[FrameId]) -> Option<StackId> {
        self.stack_of(frames, |&frame| Some(frame)).ok().flatten()
    }

    /// The id of the stack whose frames `frame` returns for these items.
    ///
    /// # Errors
    /// The first item for which `frame` returns `None`.
    pub(crate) fn stack_of<T: Copy>(
        &mut self,
        things: &[T],
        frame: impl Fn(&T) -> Option<FrameId>,
    ) -> Result<Option<StackId>, T> {
        self.scratch.resize(things.len(), 0);
        for (place, thing) in self.scratch.iter_mut().zip(things) {
            *place = frame(thing).ok_or(*thing)?.index() as u32;
        }
        Ok(self.scratched())
    }

    /// The id of the stack in `scratch`.
    fn scratched(&mut self) -> Option<StackId> {
        let hash = self.hasher.hash_one(&self.scratch);
        let Self { joined, ends, scratch, hasher, .. } = self;
        let same = |&id: &StackId| *slice(joined, ends, id) == **scratch;
        if let Some(&id) = self.known.find(hash, same) {
            return Some(id);
        }
        let id = StackId::new(ends.len())?;
        joined.extend_from_slice(scratch);
        ends.push(joined.len());
        self.known.insert_unique(hash, id, |&id| hasher.hash_one(slice(joined, ends, id)));
        Some(id)
    }

    /// The id of a backward-pass stack that is linked to the stack of the forward operator of its derivative; `None` if
    /// ids run out. The stack with the same frames but without the link has another id.
    ///
    /// # Panics
    /// If an id belongs to another table.
    pub fn with_forward(&mut self, stack: StackId, forward: StackId) -> Option<StackId> {
        let plain = self.forward.get(&stack).map_or(stack, |&(plain, _)| plain);
        if let Some(&id) = self.with_forward.get(&(plain, forward)) {
            return Some(id);
        }
        let id = StackId::new(self.ends.len())?;
        let end = self.ends[plain.index()];
        let start = end - self.frame_ids(plain).len();
        self.joined.extend_from_within(start..end);
        self.ends.push(self.joined.len());
        self.forward.insert(id, (plain, forward));
        self.with_forward.insert((plain, forward), id);
        Some(id)
    }

    /// The stack of the forward operator, if anomaly mode recorded it (`forward_frames`). Its id is less than the id of
    /// `stack`.
    pub fn forward(&self, stack: StackId) -> Option<StackId> {
        self.forward.get(&stack).map(|&(_, forward)| forward)
    }

    /// A frame by id.
    ///
    /// # Panics
    /// If the id belongs to another table.
    pub fn get_frame(&self, id: FrameId) -> &Frame {
        &self.frames[id.index()]
    }

    /// A `torch.fx` annotation by id.
    ///
    /// # Panics
    /// If the id belongs to another table.
    pub fn get_fx(&self, id: FxId) -> &Fx {
        &self.fx[id.index()]
    }

    /// The ids of a stack's frames, innermost first.
    ///
    /// # Panics
    /// If the id belongs to another table.
    pub fn frame_ids(&self, id: StackId) -> impl DoubleEndedIterator<Item = FrameId> + ExactSizeIterator {
        let indices = slice(&self.joined, &self.ends, id).iter();
        indices.map(|&index| FrameId::new(index as usize).expect("it was made from an id"))
    }

    /// A stack's frames, innermost first.
    ///
    /// # Panics
    /// If the id belongs to another table.
    pub fn frames(&self, id: StackId) -> impl DoubleEndedIterator<Item = &Frame> + ExactSizeIterator {
        slice(&self.joined, &self.ends, id).iter().map(|&index| &self.frames[index as usize])
    }

    /// The number of stacks, including the empty stack.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Always false: the empty stack is always present.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The number of frames.
    pub fn frame_count(&self) -> usize {
        self.frames.len()
    }

    /// The heap memory that the tables take, bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.frames.capacity() * size_of::<Frame>()
            + self.known_frames.capacity() * 8
            + (self.fx.capacity() + self.known_fx.capacity()) * 2 * size_of::<Fx>()
            + (self.joined.capacity() + self.scratch.capacity()) * 4
            + self.ends.capacity() * 8
            + self.known.capacity() * 8
            + self.forward.len() * 48
    }
}

fn slice<'a>(joined: &'a [u32], ends: &[usize], id: StackId) -> &'a [u32] {
    let nth = id.index();
    let start = if nth == 0 { 0 } else { ends[nth - 1] };
    &joined[start..ends[nth]]
}

impl PartialEq for Stacks {
    fn eq(&self, other: &Self) -> bool {
        (&self.frames, &self.fx, &self.joined, &self.ends, &self.forward)
            == (&other.frames, &other.fx, &other.joined, &other.ends, &other.forward)
    }
}

impl fmt::Debug for Stacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stacks({} of {} frames)", self.len(), self.frame_count())
    }
}
