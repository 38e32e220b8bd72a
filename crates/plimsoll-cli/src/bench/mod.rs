//! `plimsoll bench`: measures how fast this runtime is, compared with others in the same run.

mod allocator;
mod callgrind;
mod dispatch;
mod floor;
mod measured;
mod meter;
mod mixes;
mod models;
mod mt19937;
mod nets;
mod scale;
mod snapshot;
mod step;
mod table;

use clap::Subcommand;

use crate::exit::Failure;

/// What can be measured.
#[derive(Subcommand)]
pub(crate) enum What {
    /// The cost of a request to the allocator; with --oracle, also the cost in PyTorch's allocator
    Allocator(allocator::AllocatorArgs),
    #[command(hide = true)]
    AllocatorMix(callgrind::MixArgs),
    /// The cost of dispatching one operation to a device that computes nothing
    Dispatch(dispatch::DispatchArgs),
    /// Memory of training steps of common models, compared with PyTorch's
    Models(models::ModelsArgs),
    /// The speed of reading a PyTorch memory snapshot; --scale writes a longer snapshot instead
    Snapshot(snapshot::SnapshotArgs),
    /// One training step on this machine's processors, alone or compared with other programs
    Step(step::StepArgs),
}

/// Measures. Returns the text for stdout.
pub(crate) fn run(what: &What) -> Result<String, Failure> {
    match what {
        What::Allocator(args) => allocator::run(args),
        What::AllocatorMix(args) => callgrind::run(args),
        What::Dispatch(args) => dispatch::run(args),
        What::Models(args) => models::run(args),
        What::Snapshot(args) => snapshot::run(args),
        What::Step(args) => step::run(args),
    }
}
