//! Writes a snapshot in PyTorch's format, so that PyTorch's viewer can open it: [`write`].
//!
//! Keys are in PyTorch's order. A key is written only if its value is known; missing values are not invented. Texts,
//! frames, stacks and pools are written once and then referred to.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::forward;
use crate::pickle::{Kept, Pickler};
use crate::snapshot::{
    Annotation, Block, Event, FrameId, Key, Kind, MaybeU64, PoolIndex, Segment, Setting, Snapshot, StackId,
    Stage, TextId,
};

/// Which of the equal stacks of a trace are written only once and shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// All equal stacks, which makes the smallest file.
    Equal,
    /// Equal stacks of consecutive events, as in PyTorch's dumps, which have one stack for each recorded call.
    Neighbours,
}

/// Writes a snapshot as a pickle of protocol 4.
///
/// # Errors
/// I/O errors.
pub(crate) fn write(snapshot: &Snapshot, out: impl Write, sharing: Sharing) -> io::Result<()> {
    let mut writer = Writer {
        snapshot,
        pickler: Pickler::new(out)?,
        texts: vec![None; snapshot.texts.len()],
        frames: vec![None; snapshot.stacks.frame_count()],
        stacks: vec![None; snapshot.stacks.len()],
        pools: vec![None; snapshot.pools.len()],
        forwards: BTreeMap::new(),
        sharing,
        last: None,
    };
    writer.snapshot()?;
    writer.pickler.finish()?.flush()
}

struct Writer<'a, W> {
    snapshot: &'a Snapshot,
    pickler: Pickler<W>,
    /// The memo index of each text, frame, stack and pool that was written.
    texts: Vec<Option<Kept>>,
    frames: Vec<Option<Kept>>,
    stacks: Vec<Option<Kept>>,
    pools: Vec<Option<Kept>>,
    /// The memo index of each forward stack that was written.
    forwards: BTreeMap<StackId, Kept>,
    sharing: Sharing,
    /// The stack of the previous event.
    last: Option<StackId>,
}

impl<W: Write> Writer<'_, W> {
    fn snapshot(&mut self) -> io::Result<()> {
        let snapshot = self.snapshot;
        let said = snapshot.facts.seen(Kind::Snapshot);
        self.dict(|writer| {
            writer.key(Key::Segments)?;
            writer.list(snapshot.segments.iter(), Self::segment)?;
            writer.key(Key::DeviceTraces)?;
            writer.list(snapshot.traces.iter(), |writer, trace| writer.list(trace.iter(), Self::event))?;
            if said.contains(Key::AllocatorSettings) || !snapshot.settings.is_empty() {
                writer.key(Key::AllocatorSettings)?;
                writer.settings(&snapshot.settings)?;
            }
            if said.contains(Key::ExternalAnnotations) || !snapshot.annotations.is_empty() {
                writer.key(Key::ExternalAnnotations)?;
                writer.list(snapshot.annotations.iter(), Self::annotation)?;
            }
            if said.contains(Key::HostSegments) || !snapshot.host_segments.is_empty() {
                writer.key(Key::HostSegments)?;
                writer.list(snapshot.host_segments.iter(), Self::segment)?;
            }
            if said.contains(Key::HostTraces) || !snapshot.host_trace.is_empty() {
                writer.key(Key::HostTraces)?;
                writer.list(snapshot.host_trace.iter(), Self::event)?;
            }
            if said.contains(Key::Categories) {
                writer.key(Key::Categories)?;
                writer.list(snapshot.categories.iter(), |writer, &category| writer.text(category))?;
            }
            if let Some(prediction) = snapshot.prediction {
                writer.key(Key::Prediction)?;
                writer.text(prediction)?;
            }
            Ok(())
        })
    }

    fn segment(&mut self, segment: &Segment) -> io::Result<()> {
        self.dict(|writer| {
            if let Some(device) = segment.device {
                writer.key(Key::Device)?;
                writer.pickler.int(i128::from(device))?;
            }
            writer.number(Key::Address, segment.address.0)?;
            writer.number(Key::TotalSize, segment.total_size)?;
            writer.maybe(Key::AllocatedSize, segment.allocated_size)?;
            writer.maybe(Key::ActiveSize, segment.active_size)?;
            writer.maybe(Key::RequestedSize, segment.requested_size)?;
            writer.number(Key::Stream, segment.stream.0)?;
            writer.word(Key::SegmentType, segment.segment_type.name())?;
            writer.pool(Key::SegmentPoolId, segment.pool)?;
            if let Some(expandable) = segment.is_expandable {
                writer.key(Key::IsExpandable)?;
                writer.pickler.bool(expandable)?;
            }
            writer.stack(segment.stack)?;
            writer.forward(segment.stack)?;
            writer.key(Key::Blocks)?;
            writer.list(segment.blocks.iter(), Self::block)
        })
    }

    fn block(&mut self, block: &Block) -> io::Result<()> {
        self.dict(|writer| {
            writer.number(Key::Address, block.address.0)?;
            writer.number(Key::Size, block.size)?;
            writer.maybe(Key::RequestedSize, block.requested_size)?;
            writer.word(Key::State, block.state.name())?;
            writer.stack(block.stack)?;
            writer.forward(block.stack)
        })
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        if self.sharing == Sharing::Neighbours && event.stack != self.last {
            if let Some(stack) = event.stack {
                self.stacks[stack.index()] = None;
            }
            self.last = event.stack;
        }
        self.dict(|writer| {
            writer.word(Key::Action, event.action.name())?;
            if let Some(addr) = event.addr() {
                writer.number(Key::Addr, addr.0)?;
            }
            writer.maybe(Key::DeviceFree, event.device_free().into())?;
            writer.number(Key::Size, event.size)?;
            writer.number(Key::Stream, event.stream.0)?;
            writer.maybe(Key::TimeUs, event.time_us)?;
            writer.maybe_text(Key::CompileContext, event.compile_context)?;
            writer.maybe_text(Key::UserMetadata, event.user_metadata)?;
            writer.maybe_text(Key::InternalMetadata, event.internal_metadata)?;
            writer.pool(Key::PoolId, event.pool)?;
            if let Some(category) = event.category {
                // PyTorch's viewer recognises categories only by their names.
                match writer.snapshot.categories.get(category.index()) {
                    Some(&name) => writer.maybe_text(Key::Category, Some(name))?,
                    None => writer.number(Key::Category, category.index() as u64)?,
                }
            }
            writer.stack(event.stack)?;
            writer.forward(event.stack)
        })
    }

    fn annotation(&mut self, annotation: &Annotation) -> io::Result<()> {
        let stage = match annotation.stage {
            Stage::Start => "START",
            Stage::End => "END",
        };
        self.dict(|writer| {
            writer.word(Key::Stage, stage)?;
            writer.maybe_text(Key::Name, Some(annotation.name))?;
            if let Some(device) = annotation.device {
                writer.key(Key::Device)?;
                writer.pickler.int(i128::from(device))?;
            }
            writer.maybe(Key::TimeUs, annotation.time_us)
        })
    }

    fn settings(&mut self, settings: &[(String, Setting)]) -> io::Result<()> {
        self.dict(|writer| {
            for (name, setting) in settings {
                writer.pickler.text(name)?;
                writer.setting(setting)?;
            }
            Ok(())
        })
    }

    fn setting(&mut self, setting: &Setting) -> io::Result<()> {
        match setting {
            Setting::None => self.pickler.none(),
            Setting::Bool(on) => self.pickler.bool(*on),
            Setting::Int(number) => self.pickler.int(i128::from(*number)),
            Setting::Float(number) => self.pickler.float(*number),
            Setting::Text(text) => self.pickler.text(text).map(drop),
            Setting::Map(settings) => self.settings(settings),
        }
    }

    fn stack(&mut self, stack: Option<StackId>) -> io::Result<()> {
        let Some(stack) = stack else { return Ok(()) };
        self.key(Key::Frames)?;
        if let Some(kept) = self.stacks[stack.index()] {
            return self.pickler.again(kept);
        }
        let kept = self.kept_list(self.snapshot.stacks.frame_ids(stack), Self::frame)?;
        self.stacks[stack.index()] = Some(kept);
        Ok(())
    }

    /// Writes the stack of the forward operator as anomaly mode does: as texts, the outermost frame first.
    fn forward(&mut self, stack: Option<StackId>) -> io::Result<()> {
        let snapshot = self.snapshot;
        let Some(forward) = stack.and_then(|stack| snapshot.stacks.forward(stack)) else { return Ok(()) };
        self.key(Key::ForwardFrames)?;
        if let Some(&kept) = self.forwards.get(&forward) {
            return self.pickler.again(kept);
        }
        let frames = snapshot.stacks.frames(forward).rev();
        let kept = self.kept_list(frames, |writer, frame| {
            let [file, name] = [frame.filename, frame.name].map(|text| snapshot.texts.get(text));
            writer.pickler.text(&forward::text(file, frame.line, name)).map(drop)
        })?;
        self.forwards.insert(forward, kept);
        Ok(())
    }

    fn frame(&mut self, id: FrameId) -> io::Result<()> {
        if let Some(kept) = self.frames[id.index()] {
            return self.pickler.again(kept);
        }
        let frame = *self.snapshot.stacks.get_frame(id);
        let fx = frame.fx.map(|fx| *self.snapshot.stacks.get_fx(fx)).unwrap_or_default();
        let kept = self.kept_dict(|writer| {
            writer.maybe_text(Key::Name, Some(frame.name))?;
            writer.maybe_text(Key::Filename, Some(frame.filename))?;
            writer.key(Key::Line)?;
            writer.pickler.int(i128::from(frame.line))?;
            writer.maybe_text(Key::FxNodeOp, fx.node_op)?;
            writer.maybe_text(Key::FxNodeName, fx.node_name)?;
            writer.maybe_text(Key::FxOriginalTrace, fx.original_trace)?;
            writer.maybe_text(Key::FxNodeInfo, fx.node_info)
        })?;
        self.frames[id.index()] = Some(kept);
        Ok(())
    }

    fn pool(&mut self, key: Key, pool: Option<PoolIndex>) -> io::Result<()> {
        let Some(pool) = pool else { return Ok(()) };
        self.key(key)?;
        if let Some(kept) = self.pools[pool.index()] {
            return self.pickler.again(kept);
        }
        let id = self.snapshot.pools.get(pool);
        self.pickler.int(i128::from(id.0))?;
        self.pickler.int(i128::from(id.1))?;
        self.pools[pool.index()] = Some(self.pickler.pair()?);
        Ok(())
    }

    fn number(&mut self, key: Key, number: u64) -> io::Result<()> {
        self.key(key)?;
        self.pickler.int(i128::from(number))
    }

    fn maybe(&mut self, key: Key, number: MaybeU64) -> io::Result<()> {
        number.get().map_or(Ok(()), |number| self.number(key, number))
    }

    fn maybe_text(&mut self, key: Key, text: Option<TextId>) -> io::Result<()> {
        let Some(text) = text else { return Ok(()) };
        self.key(key)?;
        self.text(text)
    }

    /// Writes a word of the format, which may be missing from the snapshot's texts.
    fn word(&mut self, key: Key, word: &str) -> io::Result<()> {
        self.key(key)?;
        match self.snapshot.texts.find(word) {
            Some(text) => self.text(text),
            None => self.pickler.text(word).map(drop),
        }
    }

    fn key(&mut self, key: Key) -> io::Result<()> {
        self.text(key.text())
    }

    fn text(&mut self, text: TextId) -> io::Result<()> {
        if let Some(kept) = self.texts[text.index()] {
            return self.pickler.again(kept);
        }
        self.texts[text.index()] = Some(self.pickler.text(self.snapshot.texts.get(text))?);
        Ok(())
    }

    fn dict(&mut self, pairs: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.kept_dict(pairs).map(drop)
    }

    fn kept_dict(&mut self, pairs: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<Kept> {
        let kept = self.pickler.begin_dict()?;
        pairs(self)?;
        self.pickler.end_dict()?;
        Ok(kept)
    }

    fn list<T>(
        &mut self,
        items: impl ExactSizeIterator<Item = T>,
        item: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.kept_list(items, item).map(drop)
    }

    fn kept_list<T>(
        &mut self,
        items: impl ExactSizeIterator<Item = T>,
        mut item: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<Kept> {
        let kept = self.pickler.begin_list()?;
        let count = items.len();
        for (nth, entry) in items.enumerate() {
            self.pickler.before_item(nth)?;
            item(self, entry)?;
            self.pickler.after_item(nth, count)?;
        }
        Ok(kept)
    }
}
