//! The peaks without some of the requests: a replay of the recording without them. Two kinds of requests can be left
//! out: the libraries' workspaces, and requests of `torch.compile` that a warm cache avoids (`warm.rs`).
//!
//! The simulated GPU (plimsoll-standin) records each workspace, with its address if a call showed the address
//! (`plimsoll_standin::workspace`). A recorded request is a workspace if its size and address match.

use std::collections::BTreeSet;

use plimsoll_standin::workspace::Workspace;
use plimsoll_trace::snapshot::{Action, Event, Snapshot};
use plimsoll_trace::timeline::Timeline;
use plimsoll_trace::whatif::WhatIf;

use super::judged::Analysis;

/// The peaks of the remaining requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Without {
    pub(crate) allocated_bytes: u64,
    pub(crate) reserved_bytes: u64,
    /// The number of requests that were left out.
    pub(crate) left_out: usize,
    /// The size of the largest request that was left out.
    pub(crate) largest_bytes: u64,
}

impl Without {
    /// Replays a recording without these requests; `None` if it contains none of them.
    pub(crate) fn of(analysis: &Analysis, is_left_out: impl Fn(&Event) -> bool) -> Option<Without> {
        let device = analysis.device().timeline.device;
        let trace = analysis.explained.snapshot.trace(device);
        if !trace.iter().any(|event| event.action == Action::Alloc && is_left_out(event)) {
            return None;
        }
        let mut snapshot = analysis.explained.snapshot.clone();
        let left_out = leave_out(&mut snapshot, device, is_left_out);
        let largest_bytes = left_out.iter().copied().max()?;
        let timeline = Timeline::of(&snapshot, device);
        let outcome = WhatIf::of(&snapshot, &timeline, &[]).rows.into_iter().next()?.outcome;
        Some(Without {
            allocated_bytes: outcome.peak_allocated_bytes,
            reserved_bytes: outcome.peak_reserved_bytes,
            left_out: left_out.len(),
            largest_bytes,
        })
    }
}

/// Whether a request is for one of these workspaces.
pub(crate) fn is_workspace(workspaces: &BTreeSet<Workspace>, event: &Event) -> bool {
    let address = event.addr().map(|address| address.0);
    let at = |address| workspaces.contains(&Workspace { address, bytes: event.size });
    (address.is_some() && at(address)) || at(None)
}

/// Removes these requests and all later events of their blocks. Returns the bytes of each removed request.
fn leave_out(snapshot: &mut Snapshot, device: i32, is_left_out: impl Fn(&Event) -> bool) -> Vec<u64> {
    let trace = usize::try_from(device).ok().and_then(|device| snapshot.traces.get_mut(device));
    let Some(trace) = trace else { return Vec::new() };
    let (mut left_out, mut held) = (Vec::new(), BTreeSet::new());
    trace.retain(|event| match event.action {
        Action::Alloc if is_left_out(event) => {
            held.extend(event.addr());
            left_out.push(event.size);
            false
        }
        Action::FreeRequested => !event.addr().is_some_and(|address| held.contains(&address)),
        Action::FreeCompleted => !event.addr().is_some_and(|address| held.remove(&address)),
        _ => true,
    });
    left_out
}

#[cfg(test)]
mod tests {
    use plimsoll_alloc::{Addr, StreamId};

    use super::*;

    #[test]
    fn workspaces_are_left_out_by_address_and_bytes_and_nothing_else_is() {
        let event = |action, addr, bytes| Event::new(action, Addr(addr), bytes, StreamId(0));
        let workspace = |address, bytes| Workspace { address, bytes };
        let trace = vec![
            event(Action::Alloc, 4096, 1000), // as many bytes, elsewhere
            event(Action::Alloc, 8192, 1000), // the workspace
            event(Action::FreeRequested, 8192, 1000),
            event(Action::FreeCompleted, 8192, 1000),
            event(Action::Alloc, 8192, 900), // the same place later
            event(Action::FreeRequested, 8192, 900),
            event(Action::Alloc, 12288, 77), // a workspace that was not seen in use
        ];
        let mut snapshot = Snapshot { traces: vec![trace], ..Snapshot::default() };
        let workspaces = BTreeSet::from([workspace(Some(8192), 1000), workspace(None, 77)]);
        let is_one = |event: &Event| is_workspace(&workspaces, event);
        assert_eq!(leave_out(&mut snapshot, 0, is_one), [1000, 77]);
        let left: Vec<u64> = snapshot.traces[0].iter().map(|event| event.size).collect();
        assert_eq!(left, [1000, 900, 900]);
        assert_eq!(leave_out(&mut snapshot, 1, is_one), [0; 0], "no such device");
    }
}
