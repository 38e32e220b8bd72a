//! What is held at one moment, by stack: [`Live`].

use std::collections::BTreeMap;

use plimsoll_alloc::Category;
use plimsoll_trace::explain::DeviceExplanation;
use plimsoll_trace::snapshot::{EventIndex, FrameId, LifeIndex, Snapshot, StackId};

use crate::exit::{Exit, Failure};
use crate::recording::Recording;

/// Which moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// When the most was allocated.
    Peak,
    /// As the snapshot was taken.
    End,
    /// When a request failed, the last time.
    Failure,
    /// After the event of this number, from 0.
    After(usize),
}

/// Reads a moment as it is typed.
pub(crate) fn parse(text: &str) -> Result<When, String> {
    match text {
        "peak" => Ok(When::Peak),
        "end" => Ok(When::End),
        "failure" => Ok(When::Failure),
        _ => text
            .parse()
            .map(When::After)
            .map_err(|_| "a moment is peak, end, failure or an event's number".to_owned()),
    }
}

/// What one device holds at one moment.
pub(crate) struct Live {
    pub(crate) device: i32,
    /// The moment in words.
    pub(crate) moment: String,
    /// By stack, in the order of the file; every stack once.
    pub(crate) stacks: Vec<Held>,
}

/// What was asked for by one stack.
pub(crate) struct Held {
    /// Outermost first.
    pub(crate) frames: Vec<Place>,
    pub(crate) bytes: u64,
}

/// A frame of the file, or words where there is none.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// A frame.
    Frame(FrameId),
    /// Instead of a stack.
    NoStack,
    /// What blocks without a stack are for.
    For(Option<Category>),
}

impl Place {
    /// The words that stand for it where there is no frame.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Place::Frame(_) => "",
            Place::NoStack => "[no stack]",
            Place::For(category) => category.map_or("[unknown]", Category::plural),
        }
    }
}

impl Live {
    /// What the devices in question hold. Without a moment, as `plimsoll explain`: when a request failed, or else
    /// at the peak.
    ///
    /// # Errors
    /// A moment that a device does not have.
    pub(crate) fn of_all(
        recording: &Recording,
        devices: &[DeviceExplanation],
        when: Option<When>,
    ) -> Result<Vec<Live>, Failure> {
        let usage = |message: String| Err(Failure::new(Exit::Usage, message));
        let mut all = Vec::new();
        for device in devices {
            let (number, events) = (device.timeline.device, device.timeline.quality.events);
            let (after, moment) = match (when, device.failure) {
                (None | Some(When::Failure), Some(failure)) => {
                    (Some(failure.at), "when memory ran out".to_owned())
                }
                (None | Some(When::Peak), _) => {
                    (device.timeline.peak_allocated.after, "at the peak".to_owned())
                }
                (Some(When::End), _) => (EventIndex::new(events), "at the end".to_owned()),
                (Some(When::Failure), None) => continue,
                (Some(When::After(nth)), _) if nth < events && devices.len() == 1 => {
                    (EventIndex::new(nth), format!("after event {nth}"))
                }
                (Some(When::After(_)), _) if devices.len() > 1 => {
                    return usage("an event is one device's: add --device N".to_owned());
                }
                (Some(When::After(nth)), _) => {
                    let name = &recording.name;
                    return usage(format!("there is no event {nth}: {name} has {events} of device {number}"));
                }
            };
            all.push(Live { device: number, moment, stacks: stacks(&recording.snapshot, device, after) });
        }
        if all.is_empty() {
            return usage(format!(
                "no request failed in {}: leave out --at, or try --at peak",
                recording.name
            ));
        }
        Ok(all)
    }

    /// All of it.
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
