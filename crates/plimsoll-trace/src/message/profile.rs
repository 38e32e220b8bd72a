//! Memory events in a trace of torch.profiler (`profile_memory=True`, Chrome's format): [`Profile`].

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// A summary of one device's memory events.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProfiledDevice {
    /// The name of the GPU, if it is in the trace.
    pub name: Option<String>,
    /// The GPU's memory, if it is in the trace.
    pub capacity_bytes: Option<u64>,
    /// The number of memory events.
    pub events: u64,
    /// The peak of allocated bytes.
    pub peak_allocated_bytes: u64,
    /// The peak of reserved bytes.
    pub peak_reserved_bytes: u64,
    /// The allocated bytes at the last event.
    pub last_allocated_bytes: u64,
    /// The largest block that was allocated.
    pub largest_bytes: u64,
    /// The failed requests: the size of the last failed request, and the number of failed requests.
    pub failed: Option<(u64, u64)>,
}

/// A summary of a trace's memory events.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Profile {
    /// The GPUs, by number.
    pub devices: BTreeMap<u32, ProfiledDevice>,
    /// The number of steps that the profiler marked.
    pub steps: u64,
}

impl Profile {
    /// Reads the events of a trace; `None` if the text is not a trace. If the trace is truncated, reads the events
    /// before the cut.
    pub(super) fn read(input: impl Read) -> Option<Profile> {
        let mut profile = Profile::default();
        let mut json = serde_json::Deserializer::from_reader(input);
        let read = Top(&mut profile).deserialize(&mut json);
        (read.is_ok() || profile.has_memory()).then_some(profile)
    }

    /// Whether the trace has memory events of a GPU.
    pub fn has_memory(&self) -> bool {
        self.devices.values().any(|device| device.events > 0)
    }

    fn property(&mut self, value: &Value) {
        let Some(id) = value.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok()) else {
            return;
        };
        let device = self.devices.entry(id).or_default();
        device.name = value.get("name").and_then(Value::as_str).map(str::to_owned);
        device.capacity_bytes = value.get("totalGlobalMem").and_then(Value::as_u64);
    }

    fn event(&mut self, event: &Value) {
        let name = event.get("name").and_then(Value::as_str).unwrap_or_default();
        let is_span = event.get("ph").and_then(Value::as_str) == Some("X");
        let is_cpu = event.get("cat").and_then(Value::as_str) != Some("gpu_user_annotation");
        if is_span && is_cpu && name.starts_with("ProfilerStep#") {
            self.steps += 1;
        }
        let (is_memory, is_failure) = (name == "[memory]", name == "[OutOfMemory]");
        let Some(args) = event.get("args").filter(|_| is_memory || is_failure) else { return };
        let number = |key: &str| args.get(key).and_then(Value::as_i64);
        // The values are PyTorch's device types: 0 is the CPU.
        if number("Device Type") == Some(0) {
            return;
        }
        let Some(id) = number("Device Id").and_then(|id| u32::try_from(id).ok()) else { return };
        if self.devices.len() >= MOST_DEVICES && !self.devices.contains_key(&id) {
            return;
        }
        let device = self.devices.entry(id).or_default();
        let bytes = |key: &str| number(key).and_then(|bytes| u64::try_from(bytes).ok());
        let [allocated, reserved] =
            ["Total Allocated", "Total Reserved"].map(|key| bytes(key).unwrap_or_default());
        device.events += 1;
        device.peak_allocated_bytes = device.peak_allocated_bytes.max(allocated);
        device.peak_reserved_bytes = device.peak_reserved_bytes.max(reserved);
        device.last_allocated_bytes = allocated;
        let size = bytes("Bytes").unwrap_or_default();
        if is_failure {
            let failures = device.failed.map_or(0, |(_, failures)| failures) + 1;
            device.failed = Some((size, failures));
        } else {
            device.largest_bytes = device.largest_bytes.max(size);
        }
    }
}

/// More devices than any machine has.
const MOST_DEVICES: usize = 256;

/// Reads the outermost object.
struct Top<'a>(&'a mut Profile);

impl<'de> DeserializeSeed<'de> for Top<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a trace of torch.profiler")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(key) = entries.next_key::<String>()? {
            match key.as_str() {
                "traceEvents" => entries.next_value_seed(Each(self.0, Profile::event))?,
                "deviceProperties" => entries.next_value_seed(Each(self.0, Profile::property))?,
                _ => drop(entries.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// Reads a list, keeping one entry in memory at a time.
struct Each<'a>(&'a mut Profile, fn(&mut Profile, &Value));

impl<'de> DeserializeSeed<'de> for Each<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Each<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(value) = entries.next_element::<Value>()? {
            self.1(self.0, &value);
        }
        Ok(())
    }
}
