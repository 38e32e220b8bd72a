//! `plimsoll calibrate`: measures this machine's GPU, and writes a row that `--gpu FILE.json` reads.
//!
//! The driver alone is measured in this process (`plimsoll_cuda::Probe`); PyTorch and NCCL are measured in separate
//! processes. Each figure is shown next to the one in the table of GPUs.
//!
//! A file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `figure.rs` | a measured figure, beside the table's |
//! | `programs.rs`, `first_uses.py`, `two_ranks.py` | how much memory PyTorch and NCCL use |
//! | `host.rs` | `--host`: the speed of this host |
//! | `row.rs` | the row: text and JSON |

mod figure;
pub(crate) mod host;
mod programs;
mod row;

use std::path::PathBuf;

use clap::Args;
use plimsoll_cuda::{CudaError, Probe, Search};
use plimsoll_gpu::outside::{Basis, Figure as Bytes, local_memory_bytes};

use self::figure::{Figure, of_library};
use self::programs::{Uses, first_uses, python, two_ranks};
use self::row::Row;
use crate::exit::{Answer, Exit, Failure};
use crate::output;
use crate::sink::Sink;

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct CalibrateArgs {
    /// The GPU, by CUDA's number
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: u32,
    /// A Python with PyTorch, to measure libraries and NCCL [default: that of the environment, or python3, if it has PyTorch]
    #[arg(long, value_name = "PYTHON", conflicts_with = "host")]
    python: Option<PathBuf>,
    /// Do not measure NCCL, which needs two GPUs
    #[arg(long, conflicts_with = "host")]
    no_nccl: bool,
    /// Write the row to this file
    #[arg(short, long, value_name = "ROW.json", conflicts_with = "host")]
    output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(short, long)]
    force: bool,
    /// Measure the speed of this host instead, in 2 s, and print its host factor: 1.30 means 1.3 times as slow as the reference host
    #[arg(long)]
    host: bool,
    /// Print the row as JSON
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
It takes about a minute with PyTorch, and a second without. Nothing else should use the GPU meanwhile. If
`plimsoll predict --list` does not name the GPU, or the row differs from the table, open an issue with the row, so that it can be added.

Exit codes: 0 measured; 3 there is no GPU, or the driver cannot be used; 4 a requested part could not be measured.

Examples:
  plimsoll calibrate -o h100.json
  plimsoll calibrate --python .venv/bin/python -o h100.json
  plimsoll predict --gpu h100.json -- python train.py
  plimsoll calibrate --host";

/// The bytes of stack per thread of two kernels, whose measured local memory is compared with the computed one.
const STACKS: [u32; 2] = [2 << 10, 4 << 10];

/// Measures. Returns the report for stdout.
pub(crate) fn run(args: &CalibrateArgs) -> Result<Answer, Failure> {
    if args.host {
        return Ok(host::run(args.json));
    }
    let sink = args.output.as_ref().map(|path| Sink::new(path.clone(), args.force));
    sink.iter().try_for_each(Sink::check)?;
    let mut probe = Probe::open(args.device, &Search::from_env()).map_err(|why| unusable(&why))?;
    let facts = probe.facts().clone();
    output::progress(&format!("measuring {}; nothing else should use it meanwhile", facts.name));
    let mut row = Row::of(facts);
    let driver = driver(&mut probe, &mut row);
    driver.map_err(|why| Failure::new(Exit::Unreadable, format!("the GPU cannot be measured: {why}")))?;
    let is_complete = pytorch(args, &mut row)?;
    if let Some(sink) = &sink {
        let text = format!("{:#}\n", row.json());
        sink.write(|out| out.write_all(text.as_bytes()))?;
    }
    let text = if args.json { format!("{:#}", row.json()) } else { row.text(args.output.as_deref()) };
    Ok(Answer { text, exit: if is_complete { Exit::Done } else { Exit::OutOfMemory } })
}

/// The failure if there is no GPU.
fn unusable(why: &CudaError) -> Failure {
    Failure::new(
        Exit::Unreadable,
        format!(
            "{why}\n`calibrate` measures a GPU of this machine. Without one: --gpu NAME, SIZE or custom:… for `predict`"
        ),
    )
}

/// Measures how much memory the driver alone uses.
fn driver(probe: &mut Probe, row: &mut Row) -> Result<(), CudaError> {
    let gpu = row.gpu;
    let derived = |bytes| Some(Bytes { bytes, basis: Basis::Derived });
    let rule =
        |owner, bytes, expected, how| Figure { owner, key: None, bytes, expected: derived(expected), how };
    let facts = probe.facts().clone();
    if let Some(bytes) = facts.reserve_bytes {
        let expected = row.listed().map(|listed| plimsoll_gpu::outside::reserve(listed, facts.total_bytes));
        let how = "NVML's total minus CUDA's";
        row.figures.push(Figure {
            owner: "the driver's reserve",
            key: Some("reserve"),
            bytes,
            expected,
            how,
        });
    }
    let context = probe.enter()?;
    if let Some(bytes) = probe.init_bytes() {
        let how = "cuInit, a part of the context";
        row.figures.push(Figure { owner: "cuInit", key: None, bytes, expected: None, how });
    }
    let expected = Some(plimsoll_gpu::outside::context(&gpu));
    let how = if facts.others_bytes.is_some() {
        "NVML, before cuInit and after"
    } else {
        "CUDA: all that is in use"
    };
    row.figures.push(Figure { owner: "context", key: Some("context"), bytes: context, expected, how });
    let page = plimsoll_gpu::outside::PAGE_BYTES;
    row.figures.push(rule(
        "1,000 requests of 1 KiB",
        probe.requests(1000, 1 << 10)?,
        page,
        "they share a page",
    ));
    row.figures.push(rule(
        "a request of 1 MiB + 1 B",
        probe.requests(1, (1 << 20) + 1)?,
        page,
        "a page of its own",
    ));
    row.figures.push(rule("a request of 2 MiB + 1 B", probe.requests(1, page + 1)?, 2 * page, "whole pages"));
    let mut largest = 0;
    for room in STACKS {
        // The driver's compiler is a separate library, which a container may lack.
        let bytes = match probe.stack(room) {
            Ok(bytes) => bytes,
            Err(why) => {
                row.missing.push(format!("kernels' stacks were not measured: {why}"));
                break;
            }
        };
        let expected = local_memory_bytes(&gpu, room) - local_memory_bytes(&gpu, largest);
        let owner = if room == STACKS[0] { "stacks of 2 KiB" } else { "stacks of 4 KiB" };
        row.figures.push(rule(owner, bytes, expected, "a kernel's first launch"));
        largest = room;
    }
    let streams = probe.streams(128)?;
    let expected = plimsoll_gpu::outside::stream_bytes(&gpu, 128);
    row.figures.push(rule("128 streams", streams, expected, "without PyTorch"));
    probe.leave()
}

/// Measures how much memory PyTorch, its libraries and NCCL use. Returns whether everything that was requested was
/// measured.
fn pytorch(args: &CalibrateArgs, row: &mut Row) -> Result<bool, Failure> {
    let folder = tempfile::tempdir()
        .map_err(|why| Failure::new(Exit::Unreadable, format!("a temporary folder: {why}")))?;
    let python = python(args.python.as_deref());
    output::progress(&format!("measuring PyTorch's libraries with {}", python.display()));
    let all = match first_uses(&python, folder.path(), args.device, Uses::All) {
        Ok(all) => all,
        Err(why) => {
            row.missing.push(format!("PyTorch and its libraries were not measured: {why}"));
            return Ok(args.python.is_none());
        }
    };
    (row.torch, row.nccl) = (all.torch.clone(), all.nccl.clone());
    let gpu = row.gpu;
    for key in ["kernels", "cublas", "cudnn", "cufft", "cusolver", "cusparse", "streams"] {
        row.figures.extend(all.bytes(key).map(|bytes| of_library(key, bytes, &gpu)));
    }
    let mut is_complete = true;
    match first_uses(&python, folder.path(), args.device, Uses::EagerKernels) {
        Ok(eager) => {
            // The driver loads them with the context.
            let all_at_once = || {
                let together = eager.bytes("context")? + eager.bytes("kernels")?;
                Some(together.saturating_sub(all.bytes("context")?))
            };
            row.figures.extend(all_at_once().map(|bytes| of_library("kernels_eager", bytes, &gpu)));
        }
        Err(why) => {
            is_complete = false;
            row.missing.push(format!("eagerly loaded kernels were not measured: {why}"));
        }
    }
    let why_not = if args.no_nccl {
        Some("--no-nccl")
    } else if row.facts.devices < 2 || row.nccl.is_none() {
        Some("it needs two GPUs and PyTorch with NCCL")
    } else {
        (args.device > 0).then_some("it is measured between the first two GPUs, and --device names another")
    };
    if let Some(why) = why_not {
        row.missing.push(format!("NCCL was not measured: {why}"));
        return Ok(args.python.is_none() || is_complete);
    }
    output::progress("measuring NCCL between two GPUs");
    match two_ranks(&python, folder.path()) {
        Ok(ranks) => row.communicators(&ranks),
        Err(why) => {
            is_complete = false;
            row.missing.push(format!("NCCL was not measured: {why}"));
        }
    }
    Ok(args.python.is_none() || is_complete)
}
