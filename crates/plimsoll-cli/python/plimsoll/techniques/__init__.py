"""Techniques that make a PyTorch program use less memory, applied from outside to an unmodified program.

`install(torch)` patches PyTorch once, after its import; that alone has no effect. `activate(wanted, host)` turns
techniques on: `wanted` maps names to values, `host` belongs to the command (`predict` or `run`) that runs the program.
Each technique is a class in its own file:

    name       the name in `--with`
    around     called around the outermost module call of a training step (roots.py), if it is a method
    first      called before the first such call to a module
    report     its effect, for the reports of `plan` and `run`: `applied`, `detail`, `lines` (the code to add)

A technique that cannot be applied calls `refuse` with the reason, and the host ends the program. The host also
ends the program if a technique raises an exception.
"""

from __future__ import annotations

from typing import Any

from . import context
from .accumulate import Accumulate
from .adam_8bit import Adam8bit
from .autocast import Autocast
from .batch import Batch
from .checkpoint import Checkpoint, CheckpointNested
from .checkpoint_segments import CheckpointSegments
from .chunked_loss import ChunkedLoss
from .compile import Compile
from .count import Count
from .expandable import Expandable
from .free_grads import FreeGrads
from .freeze import Freeze
from .fsdp import Fsdp
from .host_outputs import HostOutputs
from .lora import Lora
from .memory_budget import MemoryBudget
from .micro_batch import MicroBatch
from .no_compile import NoCompile
from .no_grad import NoGrad
from .offload import Offload
from .offload_disk import OffloadDisk
from .offload_optimizer import OffloadOptimizer
from .offload_weights import OffloadWeights
from .optimizers import Fused, NoForeach
from .split import Split
from .step_in_backward import StepInBackward
from .tensor_parallel import TensorParallel
from .weights import Bf16Weights, Half

# The outermost technique comes first: each technique wraps those after it.
ALL = (
    Batch,
    MicroBatch,
    Count,
    Expandable,
    NoCompile,
    NoGrad,
    HostOutputs,
    Half,
    Bf16Weights,
    OffloadWeights,
    Freeze,
    Lora,
    FreeGrads,
    MemoryBudget,
    NoForeach,
    Fused,
    Adam8bit,
    OffloadOptimizer,
    StepInBackward,
    Fsdp,
    TensorParallel,
    Compile,
    Autocast,
    Accumulate,
    Split,
    Offload,
    OffloadDisk,
    Checkpoint,
    CheckpointNested,
    CheckpointSegments,
    ChunkedLoss,
)


def install(torch: Any) -> None:
    """Patches PyTorch; this has no effect until a technique is active."""
    from . import observers, roots

    observers.install(torch)
    roots.install(torch)


def activate(wanted: dict[str, Any], host: Any) -> None:
    """Turns on techniques: `wanted` maps names to values."""
    context.host = host
    for kind in ALL:
        if kind.name in wanted:
            technique = kind(wanted[kind.name])
            context.active.append(technique)
            begin = getattr(technique, "begin", None)
            if begin is not None:
                begin()


def trains() -> bool:
    """Whether this process called a module in training mode, or has an optimizer."""
    from . import observers, roots

    return bool(len(roots.seen) or len(observers.optimizers))


def report() -> list[dict[str, Any]]:
    """The effect of each active technique, as rows for the reports."""
    from . import frameworks

    rows = [dict(name=it.name, **it.report()) for it in context.active]
    for it, row in zip(context.active, rows):
        if row["applied"] and row["lines"]:
            row["lines"] = frameworks.words(it.name, getattr(it, "number", None)) + row["lines"]
    return rows
