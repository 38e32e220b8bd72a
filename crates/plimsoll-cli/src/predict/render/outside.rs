//! The memory that the deciding process uses on the GPU outside PyTorch's allocator: the rows, their values for
//! programs, and advice on saving memory there.

use plimsoll_gpu::nccl::{Communicator, Topology, Variables, Version};
use plimsoll_gpu::outside::{self, Basis};
use plimsoll_trace::report::{Cell, Rank, Row, Section};
use serde_json::{Value, json};

use crate::predict::analysis::judged::Judged;
use crate::predict::gpu::Target;
use crate::protocol::Outside;

/// The start of a communicator's name, which `nccl/memory.rs` of plimsoll-standin writes.
const COMMUNICATOR: &str = "NCCL communicator ";

/// Advice is given only if it saves at least 1/`WORTH` of the GPU's memory.
const WORTH: u64 = 100;

/// The rows of one owner.
struct Owner<'judged> {
    name: &'judged str,
    parts: Vec<&'judged Outside>,
}

/// The owners on the judged device, in order of appearance.
fn owners(judged: &Judged) -> Vec<Owner<'_>> {
    let mut owners: Vec<Owner<'_>> = Vec::new();
    for row in judged.report.outside.iter().filter(|row| row.device == judged.peaks.device) {
        match owners.iter_mut().find(|owner| owner.name == row.owner) {
            Some(owner) => owner.parts.push(row),
            None => owners.push(Owner { name: &row.owner, parts: vec![row] }),
        }
    }
    owners
}

impl Owner<'_> {
    fn bytes(&self) -> u64 {
        self.parts.iter().map(|row| row.bytes).sum()
    }

    /// How the owner's least certain part is known, such as `measured` or `assumed`.
    fn basis(&self) -> &str {
        let place = |basis: &str| Basis::ALL.iter().position(|it| it.name() == basis);
        self.parts.iter().map(|row| row.basis.as_str()).max_by_key(|basis| place(basis)).unwrap_or("assumed")
    }

    /// The number of ranks, if the owner is a communicator.
    fn ranks(&self) -> Option<u64> {
        let (_, ranks) = self.name.strip_prefix(COMMUNICATOR)?.split_once(", ")?;
        ranks.split(' ').next()?.parse().ok()
    }

    fn part(&self, name: &str) -> u64 {
        self.parts.iter().filter(|row| row.part == name).map(|row| row.bytes).sum()
    }
}

/// A row for each owner, such as `NCCL communicator 1, 2 ranks: base 196.00 MiB, ring 288.00 MiB (measured)`.
pub(super) fn rows(judged: &Judged, size: impl Fn(u64) -> String) -> Vec<Row> {
    let row = |owner: &Owner<'_>| {
        let parts = owner.parts.iter().filter(|row| !row.part.is_empty());
        let parts: Vec<String> = parts.map(|row| format!("{} {}", row.part, size(row.bytes))).collect();
        let parts = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
        let what = format!("{}{parts} ({})", owner.name, owner.basis());
        Row::named("outside", [Cell::Bytes(owner.bytes()), Cell::Text(what)])
    };
    owners(judged).iter().map(row).collect()
}

/// The bytes that libraries requested from CUDA themselves, at the peak of the process.
pub(super) fn requested_bytes(judged: &Judged) -> u64 {
    judged.peaks.requested_bytes.saturating_sub(judged.peaks.reserved_bytes)
}

/// The rows of CUDA's total and of the total in `nvidia-smi`, which includes the driver's reserve. For a GPU that
/// shares the host's memory, `nvidia-smi` shows no total.
pub(super) fn totals(target: &Target, size: impl Fn(u64) -> String, used_bytes: u64) -> Vec<Row> {
    let row = |name, bytes, what| Row::named(name, [Cell::Bytes(bytes), Cell::Text(what)]);
    if target.shares_memory() {
        let what =
            "the memory that the GPU and the host share: CUDA's total; nvidia-smi shows none for this GPU";
        return vec![row("gpu", target.total_bytes, what.to_owned())];
    }
    let reserve = outside::reserve(target.listed, target.total_bytes);
    vec![
        row("gpu", target.total_bytes, "the GPU: CUDA's total".to_owned()),
        row("reserve", reserve.bytes, format!("the driver's reserve ({})", reserve.basis)),
        row(
            "smi",
            target.total_bytes + reserve.bytes,
            format!("nvidia-smi's total, of which it shows {} used", size(used_bytes)),
        ),
    ]
}

/// The rows of each process and the totals, for programs.
pub(super) fn sections(judged: Option<&Judged>, target: &Target) -> [Section; 2] {
    let value = |row: &Outside| {
        json!({ "device": row.device, "owner": row.owner, "part": row.part, "bytes": row.bytes,
            "basis": row.basis, "call": row.call })
    };
    let rows = judged.map_or_else(Vec::new, |judged| judged.report.outside.iter().map(value).collect());
    let reserve = outside::reserve(target.listed, target.total_bytes);
    let totals = json!({ "cuda_bytes": target.total_bytes, "reserve_bytes": reserve.bytes,
        "reserve_basis": reserve.basis.name(), "smi_bytes": target.total_bytes + reserve.bytes });
    [Section::data("outside", Value::Array(rows)), Section::data("totals", totals)]
}

/// Advice on saving memory outside the allocator, if it saves at least 1 % of the GPU's memory, with the bytes that it
/// saves.
pub(super) fn advice(judged: Option<&Judged>, target: &Target, size: impl Fn(u64) -> String) -> Section {
    let owners = judged.map_or_else(Vec::new, owners);
    let communicators: Vec<(&Owner<'_>, u64)> =
        owners.iter().filter_map(|owner| Some((owner, owner.ranks()?))).collect();
    let sum = |wanted: &dyn Fn(&Owner<'_>, u64) -> u64| {
        communicators.iter().map(|(owner, ranks)| wanted(owner, *ranks)).sum::<u64>()
    };
    let alone = sum(&|owner, ranks| if ranks == 1 { owner.bytes() } else { 0 });
    // A communicator of two ranks that is used only for `send` and `recv`, although a communicator of all ranks
    // exists.
    let is_pair = |owner: &Owner<'_>, ranks| {
        ranks == 2 && owner.part("peers") > 0 && owner.part("ring") == 0 && communicators.len() > 1
    };
    let pairs = sum(&|owner, ranks| if is_pair(owner, ranks) { owner.part("base") } else { 0 });
    // With a buffer of 1 MiB instead of 4 MiB, a channel takes 10 MiB instead of 12.
    let is_default = std::env::var_os("NCCL_BUFFSIZE").is_none();
    let buffers = sum(&|owner, _| (owner.part("ring") + owner.part("peers")) / 6);
    let (channels, most) = fewer_channels(&communicators, target);
    let saves = [
        (
            alone,
            "groups of one rank have communicators: leave dimensions of size 1 out of the device mesh".to_owned(),
        ),
        (
            pairs,
            "send and recv create a communicator for each pair of ranks: pass a device_id to init_process_group, or use \
             batch_isend_irecv"
                .to_owned(),
        ),
        (
            if is_default { buffers } else { 0 },
            "NCCL's buffers: NCCL_BUFFSIZE=1048576 makes them smaller, and large collectives slower".to_owned(),
        ),
        (
            channels,
            format!("NCCL's channels: NCCL_MAX_NCHANNELS={most} makes them half as many, and large collectives slower"),
        ),
    ];
    let worth_bytes = target.total_bytes / WORTH;
    let lines = saves.into_iter().filter(|(bytes, _)| *bytes > 0 && *bytes >= worth_bytes);
    let lines = lines.map(|(bytes, what)| format!("{} can be saved outside PyTorch: {what}", size(bytes)));
    Section::lines("outside_advice", Rank::Screen, lines)
}

/// The bytes that are saved if communicators have at most half as many channels, and that number. Zeros if a variable
/// sets the number, or the communicators are not those of ranks on one machine.
fn fewer_channels(communicators: &[(&Owner<'_>, u64)], target: &Target) -> (u64, u32) {
    let set = |name: &str| std::env::var(name).ok();
    if set("NCCL_MAX_NCHANNELS").is_some() {
        return (0, 0);
    }
    let own = |ranks: u64, most| {
        let variables = Variables { max_channels: most, ..Variables::read(set) };
        let topology = Topology::node(target.listed, u32::try_from(ranks).unwrap_or(u32::MAX));
        Communicator::new(topology, variables, Version::MEASURED)
    };
    let is_own = |owner: &Owner<'_>, it: &Communicator| {
        let ring = owner.part("ring");
        owner.part("base") == it.base().device && (ring == 0 || ring == it.ring().device)
    };
    let known: Vec<(&Owner<'_>, u64, Communicator)> = communicators
        .iter()
        .map(|(owner, ranks)| (*owner, *ranks, own(*ranks, None)))
        .filter(|(owner, ranks, it)| *ranks > 1 && is_own(owner, it))
        .collect();
    let most = known.iter().map(|(.., it)| it.channels.collective / 2).max().unwrap_or(0);
    if most == 0 {
        return (0, 0);
    }
    let saved = known.iter().map(|(owner, ranks, it)| {
        let fewer = own(*ranks, Some(most));
        let ring = if owner.part("ring") > 0 { it.ring().device - fewer.ring().device } else { 0 };
        let left = u64::from(fewer.channels.per_peer.min(it.channels.per_peer));
        let peers = owner.part("peers") - owner.part("peers") * left / u64::from(it.channels.per_peer.max(1));
        it.base().device - fewer.base().device + ring + peers
    });
    (saved.sum(), most)
}
