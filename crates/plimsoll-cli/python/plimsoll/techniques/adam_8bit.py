"""Keeps the moments of Adam and AdamW in 8 bits: 2 bytes per parameter instead of 8. Changes the numbers.

Uses blockwise dynamic quantization (Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2021, section 2),
with the block size and the minimum number of elements of bitsandbytes: each block of 256 values is divided by its
largest magnitude, and each quotient is replaced by the nearest of 256 codes, which are dense near zero. The update
itself is Adam's, in f32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import context, each, observers

BLOCK = 256
LEAST_ELEMENTS = 4096  # smaller parameters keep f32 moments
CHUNK = 1 << 14  # blocks that are updated at once: 16 MiB in f32
MOMENTS = ("exp_avg", "exp_avg_sq")


def codes(is_signed: bool) -> Any:
    """The values of the 256 codes: zero, one, and values in seven decades. Decade k, which ends at its upper bound and
    begins at a tenth of it, has 2^k values (2^(k+1) if unsigned).
    """
    values = [0.0, 1.0]
    for nth in range(7):
        steps = 2**nth if is_signed else 2 ** (nth + 1)
        middles = [0.1 + 0.9 * (step + 0.5) / steps for step in range(steps)]
        decade = [10.0 ** (nth - 6) * it for it in middles]
        values += decade + ([-it for it in decade] if is_signed else [])
    return torch.tensor(sorted(values), dtype=torch.float32)


@functools.lru_cache(None)
def tables(device: Any, name: str) -> tuple[Any, Any]:
    """The values of the codes, and the boundaries between them, as tensors on a device."""
    known = codes(name == "exp_avg")
    return known.to(device), ((known[:-1] + known[1:]) / 2).to(device)


class Moment:
    """A moment in 8 bits: `bytes` in the parameter's shape, and the `scales` of its blocks."""

    def __init__(self, name: str, bytes: Any, scales: Any) -> None:
        self.name, self.bytes, self.scales = name, bytes.view(-1), scales
        self.known, self.borders = tables(bytes.device, name)

    def read(self, part: slice, blocks: slice) -> Any:
        """The values of a part of the parameter, dequantized to f32."""
        return (self.known[self.bytes[part].int()].view(-1, width(part)) * self.scales[blocks, None]).view(-1)

    def write(self, part: slice, blocks: slice, values: Any) -> None:
        """Quantizes and stores the values of a part of the parameter. An incomplete last block is a separate part."""
        rows = values.view(-1, width(part))
        scales = rows.abs().amax(1)
        self.scales[blocks] = scales
        quotients = rows / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
        self.bytes[part] = torch.bucketize(quotients.view(-1), self.borders, out_int32=True).to(torch.uint8)


def width(part: slice) -> int:
    """The number of elements of each block in a part."""
    return min(BLOCK, int(part.stop) - int(part.start))


def divided(elements: int) -> Iterator[tuple[slice, slice]]:
    """Divides a parameter into parts for the update: yields the elements and the blocks of each part."""
    whole = elements // BLOCK
    for begin in range(0, whole, CHUNK):
        end = min(begin + CHUNK, whole)
        yield slice(begin * BLOCK, end * BLOCK), slice(begin, end)
    if elements % BLOCK:
        yield slice(whole * BLOCK, elements), slice(whole, whole + 1)


def moments_of(state: dict[str, Any], parameter: Any) -> list[Moment]:
    """The two moments of a parameter. They are created at the first step, or converted if a saved state was loaded
    (PyTorch loads it in the parameter's type).
    """
    found = []
    for name in MOMENTS:
        value: Any = state.get(name)
        scales: Any = state.get(f"{name}_scales")
        if value is None or value.dtype != torch.uint8 or scales.dtype != torch.float32:
            of = Moment(
                name, torch.zeros(parameter.shape, dtype=torch.uint8, device=parameter.device), blank(parameter)
            )
            if value is not None and scales is not None:
                of.bytes.copy_(value.reshape(-1))
                of.scales.copy_(scales)
            else:
                given = torch.zeros_like(parameter, dtype=torch.float32) if value is None else value
                for part, blocks in divided(parameter.numel()):
                    of.write(part, blocks, given.reshape(-1)[part].float())
            state[name], state[f"{name}_scales"] = of.bytes.view(parameter.shape), of.scales
        found.append(Moment(name, state[name], state[f"{name}_scales"]))
    return found


def blank(parameter: Any) -> Any:
    """A zero scale for each block of a parameter."""
    return torch.zeros(-(-parameter.numel() // BLOCK), dtype=torch.float32, device=parameter.device)


@torch.no_grad()
def step(optimizer: Any, closure: Callable[[], Any] | None = None) -> Any:
    """The optimizer's step, with moments in 8 bits."""
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    is_decoupled = isinstance(optimizer, torch.optim.AdamW)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                state = optimizer.state[parameter]
                state["step"] = state.get("step", torch.zeros((), device="cpu")) + 1
                update(parameter, state, group, is_decoupled or group.get("decoupled_weight_decay", False))
    return loss


def update(parameter: Any, state: dict[str, Any], group: dict[str, Any], is_decoupled: bool) -> None:
    """Updates one parameter."""
    count, rate = float(state["step"]), float(group["lr"])
    betas = [float(it) for it in group["betas"]]
    is_small = parameter.numel() < LEAST_ELEMENTS
    gradient = parameter.grad.reshape(-1)
    if is_small:
        for name in MOMENTS:
            if name not in state:
                state[name] = torch.zeros_like(parameter, dtype=torch.float32, memory_format=torch.preserve_format)
        kept: list[Any] = [state[name] for name in MOMENTS]
        parts: Any = [(slice(0, parameter.numel()), None)]
    else:
        kept = moments_of(state, parameter)
        parts = divided(parameter.numel())
    values = parameter.view(-1) if parameter.is_contiguous() else parameter.reshape(-1)
    for part, blocks in parts:
        slope, value = gradient[part].float(), values[part].float()
        slope = -slope if group.get("maximize") else slope
        if group["weight_decay"]:
            value = value * (1 - rate * group["weight_decay"]) if is_decoupled else value
            slope = slope if is_decoupled else slope + group["weight_decay"] * value
        first, second = [it.reshape(-1).clone() for it in kept] if is_small else [it.read(part, blocks) for it in kept]
        first.lerp_(slope, 1 - betas[0])
        second.mul_(betas[1]).addcmul_(slope, slope, value=1 - betas[1])
        if is_small:
            for it, now in zip(kept, (first, second)):
                it.copy_(now.view_as(it))
        else:
            for it, now in zip(kept, (first, second)):
                it.write(part, blocks, now)
        slope = second.sqrt_().div_((1 - betas[1] ** count) ** 0.5).add_(group["eps"])
        values[part] = value.addcdiv(first, slope, value=-rate / (1 - betas[0] ** count)).to(values.dtype)
    if not parameter.is_contiguous():
        parameter.copy_(values.view(parameter.shape))


class Adam8bit:
    """Keeps 8-bit moments in all of the program's optimizers."""

    name = "adam-8bit"

    def __init__(self, value: int | None) -> None:
        self.optimizers: list[Any] = []
        self.parameters = 0

    def begin(self) -> None:
        observers.listeners["stepped"].append(self.stepped)
        for kind in (torch.optim.Adam, torch.optim.AdamW):
            hooked = torch.optim.Optimizer.profile_hook_step(self.guarded(step))
            hooked.hooked = True
            kind.step = hooked

    def guarded(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The optimizer's step, after a check of the optimizer."""

        @functools.wraps(step)
        def call(optimizer: Any, closure: Callable[[], Any] | None = None) -> Any:
            self.check(optimizer)
            return step(optimizer, closure)

        return call

    def first(self, root: Any) -> None:
        for optimizer in list(observers.optimizers):
            self.check(optimizer)

    def check(self, optimizer: Any) -> None:
        """Rejects an optimizer whose moments cannot be stored in 8 bits."""
        why = objection(optimizer)
        if why is not None:
            context.refuse(self.name, why)

    def stepped(self, optimizer: Any) -> None:
        if optimizer not in self.optimizers:
            self.optimizers.append(optimizer)
            every = [it for group in optimizer.param_groups for it in group["params"]]
            self.parameters += sum(it.numel() for it in every if it.numel() >= LEAST_ELEMENTS)

    def report(self) -> dict[str, Any]:
        import importlib.util

        if not self.optimizers:
            return dict(applied=False, detail="no torch.optim optimizer took a step", lines=[])
        kinds = [type(it).__name__ for it in self.optimizers]
        lines = [context.IMPORT, *each.optimizer("plimsoll.adam_8bit(optimizer)", kinds)]
        if importlib.util.find_spec("bitsandbytes") is not None:
            lines = [
                "import bitsandbytes",
                *(f"optimizer = bitsandbytes.optim.{kind}8bit(...)" for kind in sorted({*kinds})),
            ]
        return dict(applied=self.parameters > 0, detail=f"{self.parameters:,} parameters", lines=lines)


def convert(optimizer: Any) -> None:
    """Converts one optimizer, for a program that calls `plimsoll.adam_8bit`. The name and module of the optimizer's
    class stay the same, so that the optimizer is saved under the same name.
    """
    kind = type(optimizer)
    own = type(kind.__name__, (kind,), dict(__module__=kind.__module__, step=step))
    optimizer.__class__ = own
    optimizer._patch_step_function()


def objection(optimizer: Any) -> str | None:
    """The reason why an optimizer's moments cannot be stored in 8 bits; None if they can."""
    if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW):
        return f"the program's optimizer is {type(optimizer).__name__}; only Adam and AdamW can have 8-bit moments"
    for group in optimizer.param_groups:
        for option in ("amsgrad", "capturable", "differentiable"):
            if group.get(option):
                return f"the optimizer has {option}=True"
        for it in group["params"]:
            if it.is_complex() or (it.grad is not None and it.grad.is_sparse):
                return "the model has complex parameters, or sparse gradients"
            if type(it).__name__ == "DTensor":
                return "the model is sharded (DTensor)"
    if getattr(optimizer, "grad_scale", None) is not None:
        return "GradScaler passes its scale to a fused optimizer: leave fused=True out"
    return None
