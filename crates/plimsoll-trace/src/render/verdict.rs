//! The verdict about a recording: as a sentence, and in a few words.

use super::failure;
use super::words::{NO_EVENTS, counted, has_events, leak};
use crate::explain::{Cause, DeviceExplanation};

/// The verdict in a sentence, with its main figure. `size` formats a number of bytes.
pub fn sentence(device: &DeviceExplanation, size: impl Fn(u64) -> String) -> String {
    let leak = leak(device, &size);
    let Some(failure) = device.failure else {
        if let Some(leak) = leak {
            return format!("LEAK: {leak}");
        }
        let (allocated, reserved) = (device.timeline.peak_allocated, device.timeline.peak_reserved);
        if !has_events(device) {
            return format!(
                "{NO_EVENTS}: failures and the peak are unknown; {} allocated, {} reserved when \
                 the file was written",
                size(allocated.level.allocated_bytes),
                size(reserved.level.reserved_bytes)
            );
        }
        let tight = match device.pressure.retries.len() {
            0 => String::new(),
            count => format!(", after retrying {}", counted(count as u64, "request")),
        };
        return format!(
            "nothing failed: peak {} allocated, {} reserved{tight}",
            size(allocated.level.allocated_bytes),
            size(reserved.level.reserved_bytes)
        );
    };
    failure::sentence(device, &failure, leak, size)
}

/// The verdict in a few words.
pub fn brief(device: &DeviceExplanation, size: impl Fn(u64) -> String) -> String {
    let leak = leak(device, &size).map(|leak| format!("LEAK: {leak}"));
    let Some(failure) = device.failure else {
        let calm = if has_events(device) { "nothing failed" } else { NO_EVENTS };
        return leak.unwrap_or_else(|| calm.to_owned());
    };
    let cause = match failure.cause() {
        Cause::Capacity { short_bytes } => {
            let cause = if device.held_by_others().is_some() { "USED BY OTHERS" } else { "CAPACITY" };
            format!(": {cause}, short by {}", size(short_bytes))
        }
        Cause::Fragmentation { .. } => ": FRAGMENTATION".to_owned(),
        Cause::Limit { .. } => ": PROCESS LIMIT".to_owned(),
        Cause::Unknown => String::new(),
    };
    let leak = leak.map_or_else(String::new, |leak| format!("; {leak}"));
    format!("out of memory{cause}{leak}")
}
