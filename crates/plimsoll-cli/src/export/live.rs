//! The live bytes at one moment, by stack: [`Live`].

use std::collections::BTreeMap;

use plimsoll_alloc::Category;
use plimsoll_trace::explain::DeviceExplanation;
use plimsoll_trace::snapshot::{EventIndex, FrameId, LifeIndex, Snapshot, StackId};

use crate::exit::Failure;
use crate::moment::{self, When};
use crate::recording::Recording;

/// The live bytes of one device at one moment.
pub(crate) struct Live {
    pub(crate) device: i32,
    /// The moment in words.
    pub(crate) moment: String,
    /// The bytes by stack, in the order of the file. Each stack occurs once.
    pub(crate) stacks: Vec<Held>,
}

/// The bytes that one stack requested.
pub(crate) struct Held {
    /// Outermost first.
    pub(crate) frames: Vec<Place>,
    pub(crate) bytes: u64,
}

/// A frame of the file, or words if there is none.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// A frame.
    Frame(FrameId),
    /// The block has no stack.
    NoStack,
    /// The purpose of blocks without a stack.
    For(Option<Category>),
}

impl Place {
    /// The words to show if there is no frame.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Place::Frame(_) => "",
            Place::NoStack => "[no stack]",
            Place::For(category) => category.map_or("[unknown]", Category::plural),
        }
    }
}

impl Live {
    /// The live bytes of the devices in question. The default moment is that of `plimsoll explain`: when a
    /// request failed, or else the peak.
    ///
    /// # Errors
    /// If a device does not have the moment.
    pub(crate) fn of_all(
        recording: &Recording,
        devices: &[DeviceExplanation],
        when: Option<When>,
    ) -> Result<Vec<Live>, Failure> {
        let mut all = Vec::new();
        for device in devices {
            let of = (recording.name.as_str(), &recording.snapshot);
            if let Some((after, moment)) = moment::find(when, of, device, devices.len() > 1)? {
                let (device, stacks) = (device.timeline.device, stacks(&recording.snapshot, device, after));
                all.push(Live { device, moment, stacks });
            }
        }
        if all.is_empty() { Err(moment::no_failure(&recording.name)) } else { Ok(all) }
    }

    /// The sum of the bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.stacks.iter().fold(0, |sum, held| sum.saturating_add(held.bytes))
    }
}

fn stacks(snapshot: &Snapshot, device: &DeviceExplanation, after: Option<EventIndex>) -> Vec<Held> {
    type Key = (Option<StackId>, Option<Category>);
    let mut sums: BTreeMap<Key, u64> = BTreeMap::new();
    let lives = (0..).map_while(LifeIndex::new).zip(&device.timeline.lives);
    for (index, life) in lives.filter(|(_, life)| life.is_held_after(after)) {
        let stack = life.stack.filter(|&stack| stack != StackId::EMPTY);
        let category = if stack.is_none() { device.purposes.get(index).category } else { None };
        let sum = sums.entry((stack, category)).or_default();
        *sum = sum.saturating_add(life.bytes);
    }
    let frames = |(stack, category): Key| match stack {
        Some(stack) => snapshot.stacks.frame_ids(stack).rev().map(Place::Frame).collect(),
        None => vec![Place::NoStack, Place::For(category)],
    };
    sums.into_iter().map(|(key, bytes)| Held { frames: frames(key), bytes }).collect()
}
