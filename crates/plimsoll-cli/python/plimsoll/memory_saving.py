"""The techniques of ``plimsoll plan`` as functions, for programs that apply them themselves.

``plimsoll run --with`` applies the same code to an unmodified program. Each docstring says how the function changes
losses and parameters; a function raises ``RefusedError`` if it cannot be applied without changing more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .errors import RefusedError

if TYPE_CHECKING:
    import torch

    from ._attach import Attached
    from .techniques.optimizers import Setting

only: dict[str, Any] = {}  # techniques that exist once per process


def checkpoint_blocks(
    model: torch.nn.Module,
    every: int = 1,
    first: int | None = None,
    nested: bool = False,
    segments: bool | int = False,
) -> list[str]:
    """Recomputes the activations of the model's repeated blocks in the backward pass, instead of keeping them.

    The blocks are the entries of the model's containers whose class occurs more than once: for example the layers of a
    transformer or the residual blocks of a ResNet. In a model without such entries, they are the modules whose class
    occurs more than once. ``every=2`` checkpoints every second block, and ``first=4`` only the first four. With
    ``nested``, it checkpoints the smaller repeated blocks inside these instead, such as the layers of each stage.
    Returns the names of the checkpointed blocks.

    ``segments=8`` divides the blocks into 8 segments of consecutive blocks, recomputes each segment as a unit, and
    keeps only the inputs of the segments; with ``segments=True``, the number of segments is the square root of the
    number of blocks. This is like ``torch.utils.checkpoint.checkpoint_sequential``, but works in any model. A model
    without repeated blocks is divided along its longest ``nn.Sequential``.

    Losses and parameters are bit-identical, even with dropout and batch normalization. Refused if the model has no such
    blocks, is compiled by ``torch.compile``, or is already checkpointed. A cache for generation (``config.use_cache``
    of transformers) is turned off, because recomputation would fill the cache twice.
    """
    if every < 1 or (first is not None and first < 1):
        raise ValueError(f"every={every}, first={first}: expected at least 1")
    if segments < 0 or (segments and nested):
        raise ValueError(f"segments={segments}: expected True or a number, and no `nested`")
    from . import _attach  # noqa: F401  (refusals are exceptions)
    from .techniques import blocks
    from .techniques.checkpoint import MARK, Checkpoint, without_cache

    technique = only.setdefault("checkpoint", Checkpoint(None))
    technique.check(model)
    found = blocks.nested(model) if nested else blocks.in_a_row(model) if segments else blocks.find(model)
    if not found:
        inside = " inside its blocks" if nested else ""
        raise RefusedError("checkpoint", f"the model has no repeated blocks{inside}")
    if any(MARK in block.__dict__ for _, block in found):
        raise RefusedError("checkpoint", "the model's blocks are already checkpointed")
    chosen = found[:first][::every]
    if segments:
        technique.divide(model, chosen, None if segments is True else segments)
    else:
        technique.mark(model, chosen, len(found))
    without_cache(model, {})
    return [path for path, _ in chosen]


def offload(model: torch.nn.Module, percent: int = 95, least_bytes: int | str = "4MiB") -> Attached:
    """Moves tensors that the backward pass needs to pinned host memory, and copies them back when they are
    needed.

    ``percent`` of the bytes of these tensors leave the GPU, starting with the tensors that the forward pass saves
    first; tensors smaller than ``least_bytes`` stay. Losses and parameters are bit-identical. The copies overlap with
    the computation, on their own streams: a step takes longer only if the copies take longer than the computation, and
    with a lower percentage the copies take less time. Refused with ``torch.compile`` and FSDP.
    """
    if not 1 <= percent <= 100:
        raise ValueError(f"percent={percent}: expected 1 to 100")
    from . import _attach, sizes
    from .techniques.offload import Offload

    return _attach.attach(model, Offload(percent, sizes.parse(least_bytes)))


def offload_weights(model: torch.nn.Module) -> None:
    """Keeps the weights of the model's repeated blocks in pinned host memory, for a model that is used only for
    inference.

    While a block runs, the weights of the next block are copied to the GPU, so the weights of at most two blocks are on
    the GPU. The outputs are bit-identical. Refused if the model has no repeated blocks, or is called outside of
    ``torch.no_grad()``.
    """
    from . import _attach  # noqa: F401  (refusals are exceptions)
    from .techniques.offload_weights import OffloadWeights

    technique = OffloadWeights(None)
    if not technique.of(model):
        raise RefusedError(technique.name, "the model has no repeated blocks")
    technique.patch()
    model._apply(lambda tensor: tensor)


def chunked_loss(model: torch.nn.Module, rows: int | None = None) -> Attached:
    """Computes the model's last linear layer and the cross-entropy of its result in chunks, so that the complete logits
    are never materialized.

    The loss may be computed inside or outside the model. ``rows`` is the number of rows in a chunk; by default, a chunk
    has 128 MiB, and layers with fewer than 2^20 logits are not chunked. Rounding differs, because the gradient of the
    weight is a sum over chunks. ``backward`` raises ``RefusedError`` if the logits are used for anything else.
    """
    if rows is not None and rows < 1:
        raise ValueError(f"rows={rows}: expected at least 1")
    from . import _attach
    from ._chunked import OfModels

    _attach.observe()
    technique = only.get("chunked-loss")
    if technique is None:
        technique = only["chunked-loss"] = OfModels(rows)
        technique.begin()
    technique.rows = rows
    return _attach.attach(model, technique)


def step_in_backward(optimizer: torch.optim.Optimizer) -> None:
    """Updates each parameter as soon as its gradient is complete, and frees the gradient.

    Losses and parameters are bit-identical. ``optimizer.step()`` does nothing from then on. Refused for optimizers that
    do not update each parameter independently, and if the program clips gradients, accumulates them, or uses
    ``GradScaler`` or DDP.
    """
    from . import _attach
    from .techniques import context
    from .techniques.step_in_backward import StepInBackward

    if optimizer.__dict__.get("_plimsoll_done"):
        raise RefusedError("step-in-backward", "it is already applied to this optimizer")
    _attach.observe()
    technique = StepInBackward(None)
    technique.check(optimizer)
    technique.begin()
    technique.take(optimizer)
    context.active.append(technique)


def accumulate(model: torch.nn.Module, parts: int) -> Attached:
    """Runs the batch in parts, forward and backward, inside the call to a model that returns its loss.

    The rest of the program stays unchanged: ``backward`` adds the gradients of the complete batch. Rounding differs,
    and dropout draws different masks. Refused with batch normalization and DDP, and if it is unknown how to combine the
    losses of the parts.
    """
    at_least_two(parts)
    from . import _attach
    from .techniques.accumulate import Accumulate

    _attach.observe()
    return _attach.attach(model, Accumulate(parts))


def split(model: torch.nn.Module, parts: int) -> Attached:
    """Runs the batch in parts inside the call to the model; each part is recomputed in the backward pass.

    Rounding differs, and dropout draws different masks. Refused with batch normalization.
    """
    at_least_two(parts)
    from . import _attach
    from .techniques.split import Split

    _attach.observe()
    return _attach.attach(model, Split(parts))


def bf16(model: torch.nn.Module) -> Attached:
    """Runs the calls to the model under bf16 autocast, and converts its results to f32. Changes the numbers."""
    from . import _attach
    from .techniques.autocast import Autocast

    return _attach.attach(model, Autocast(None))


def adam_8bit(optimizer: torch.optim.Optimizer) -> None:
    """Keeps the moments of ``torch.optim.Adam`` and ``AdamW`` in 8 bits: 2 bytes per parameter instead of 8. Changes
    the numbers.

    Uses blockwise dynamic quantization, as in bitsandbytes: blocks of 256 values, and f32 moments for parameters with
    fewer than 4096 values. Moments that the optimizer already has are converted at its next step. Refused for other
    optimizers, with ``amsgrad``, and for sharded parameters.
    """
    from . import _attach  # noqa: F401  (refusals are exceptions)
    from .techniques.adam_8bit import convert, objection

    why = objection(optimizer)
    if why is None and "step" in vars(optimizer):
        why = "a learning rate scheduler already wraps the optimizer's step: create the scheduler after this call"
    if why is not None:
        raise RefusedError("adam-8bit", why)
    convert(optimizer)


def free_grads(optimizer: torch.optim.Optimizer) -> None:
    """Frees the gradients right after each step of the optimizer, not after the next forward pass.

    Losses and parameters are bit-identical if the program reads no gradient between an optimizer step and the next
    backward pass.
    """
    optimizer.register_step_post_hook(lambda stepped, args, kwargs: stepped.zero_grad(set_to_none=True))


def no_foreach(optimizer: torch.optim.Optimizer) -> None:
    """Updates one parameter at a time, without temporary copies of all parameters: ``foreach=False``. Rounding may
    differ.
    """
    from .techniques.optimizers import NoForeach

    change(optimizer, NoForeach(None))


def fused(optimizer: torch.optim.Optimizer) -> None:
    """Updates in one fused kernel, without temporary copies: ``fused=True``. Rounding may differ.

    Refused after the first step: pass ``fused=True`` to the optimizer.
    """
    from .techniques.optimizers import Fused

    if optimizer.state:
        raise RefusedError("fused", "the optimizer has already stepped")
    change(optimizer, Fused(None))


def expandable_segments() -> None:
    """Turns on PyTorch's expandable segments, which reduces fragmentation. Losses and parameters are bit-identical.

    Call it before the first use of CUDA; it sets ``PYTORCH_ALLOC_CONF``.
    """
    import torch

    from .techniques.expandable import Expandable

    if torch.cuda.is_initialized():
        raise RefusedError(
            "expandable", "CUDA is already initialized: call this function earlier, or set PYTORCH_ALLOC_CONF"
        )
    Expandable(None).begin()


def change(optimizer: torch.optim.Optimizer, setting: Setting) -> None:
    """Changes a setting of one optimizer. Raises RefusedError if it has no such setting."""
    groups: Iterable[dict[str, object]] = [optimizer.defaults, *optimizer.param_groups]
    for options in groups:
        setting.change(optimizer, options)
    if not setting.set:
        raise RefusedError(setting.name, f"{type(optimizer).__name__} has no such option, or the option is set already")


def at_least_two(parts: int) -> None:
    """Raises ValueError for fewer than two parts."""
    if parts < 2:
        raise ValueError(f"parts={parts}: expected at least 2")
