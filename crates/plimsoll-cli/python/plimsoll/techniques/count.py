"""Counts the work of one training step, to estimate its time. The count includes each operator's kind, FLOPs, place,
and the bytes that it reads and writes, and the processor time of the host. Counting needs a separate run, because a
dispatch mode keeps tensors alive slightly longer.

The place is one of these: in the forward pass of training, `block N` is inside a repeated block, and `root` is the rest
of the model; `block N.M` is inside nested block M of block N; `rest` is everything else, including evaluation. The step
with the fewest FLOPs counts, because other steps may contain an evaluation.

The host's time is that of the fastest of several steps after the counted steps. These steps run without the mode and
without `predict`'s wrappers around operators.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import blocks, context, kinds, observers, roots

COUNTED = 2  # the number of counted steps: an optimizer's first step differs from the later ones
WAITS = "_local_scalar_dense"  # the operator with which the host waits for a value
REDUCED = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}


class Count:
    """Counts the work of one step."""

    name = "count"
    serves = True

    def __init__(self, value: int | None) -> None:
        self.phase = "rest"
        self.mode: Mode | None = None
        # the work of the current step, and of the complete step with the fewest FLOPs so far
        self.work, self.least = Work(), Work()
        self.is_measuring = False  # whether the counted steps are done
        self.began: float | None = None  # the processor time at the start of a step without hooks
        self.laps: list[float] = []  # processor seconds of steps without hooks
        self.steps = self.blocks = self.nested = 0
        self.repeats = blocks.Repeats()
        self.free: dict[Any, bool] = {}  # by operator: whether the operator starts no kernel

    def begin(self) -> None:
        observers.listeners["stepped"].append(self.stepped)

    def first(self, root: Any) -> None:
        found, has_nested = blocks.find(root), bool(blocks.nested(root))
        for path, block in found:
            inside = blocks.find(block) if has_nested else []
            phase = f"block {self.blocks}" if inside or not has_nested else f"block {self.blocks}.{self.nested}"
            self.mark(block, "root", phase)
            self.blocks += 1
            self.nested += has_nested and not inside
            for _, inner in inside:
                self.mark(inner, phase, f"{phase}.{self.nested}")
                self.nested += 1
        if not found:
            self.repeats.add(root)
            for module in self.repeats.places:
                module.register_forward_pre_hook(self.look)

    def look(self, module: Any, args: Any) -> None:
        """Called before a module's call. A module that is called twice in a call to its model becomes a block."""
        if self.phase == "root" and module.training and torch.is_grad_enabled() and self.repeats.is_again(module):
            self.mark(module, "root", f"block {self.blocks}")
            self.blocks += 1

    def mark(self, block: Any, outside: str, phase: str) -> None:
        """Makes a block's calls count in this phase."""

        def enter(module: Any, args: Any) -> None:
            # Recomputation in the backward pass does not count as part of the forward pass.
            if self.phase == outside and module.training and torch.is_grad_enabled():
                self.phase = phase

        def leave(module: Any, args: Any, result: Any) -> None:
            if self.phase == phase:
                self.phase = outside

        block.register_forward_pre_hook(enter)
        block.register_forward_hook(leave, always_call=True)

    def around(self, root: Any, following: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.mode is None and not self.is_measuring:
            self.mode = Mode(self)
            self.mode.__enter__()
        if not roots.begins(torch, root):
            result = following(*args, **kwargs)
            self.called()
            return result
        self.phase = "root"
        self.repeats.begin()
        try:
            return following(*args, **kwargs)
        finally:
            self.phase = "rest"

    def called(self) -> None:
        """Called after a call to a model in a program that reads no gradient. Each call is a step; the call with the
        most FLOPs counts.
        """
        if self.work.flops() >= self.least.flops():
            self.least = self.work
        self.work = Work()

    def stepped(self, optimizer: Any) -> None:
        """Called at each optimizer step. A step is done once every optimizer has stepped; the host counts these
        steps.
        """
        steps = getattr(context.host, "counted", self.steps + 1)
        if steps == self.steps:
            return
        self.steps = steps
        if self.is_measuring:
            return self.lap()
        if not self.least.rows or self.work.flops() <= self.least.flops():
            self.least = self.work
        self.work = Work()
        if steps >= COUNTED:
            self.measure()

    def measure(self) -> None:
        """Removes the hooks: the next steps show the host's time."""
        self.is_measuring = True
        if self.mode is not None:
            self.mode.__exit__(None, None, None)
            self.mode = None
        timing = getattr(context.host, "timing", None)
        if timing is not None:
            timing.begin()
        self.began = None

    def lap(self) -> None:
        """Called after each step without hooks. The first step does not count, because it fills caches."""
        now = time.process_time()
        if self.began is not None:
            self.laps.append(now - self.began)
        self.began = now

    def add(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Adds an operator to the work of this step."""
        is_free = self.free.get(func)
        packet = func._overloadpacket
        if is_free is None:
            is_free = self.free[func] = packet.__name__ in kinds.FREE or bool(getattr(func, "is_view", False))
        if is_free:
            if packet.__name__ == WAITS and not args[0].is_cpu:
                self.work.order.append(-1)
            return
        tensors: list[Any] = []
        collect((args, kwargs, result), tensors)
        if not tensors:
            return
        flops = kinds.of_convolution(packet, args, result)
        if flops is None:
            count = FLOPS.get(packet)
            flops = count(*args, **kwargs, out_val=result) if count is not None else 0
        kind = kinds.of(packet, args, tensors)
        self.work.add(
            self.phase, kind, rate(packet, tensors), kinds.width(packet, args), flops, kinds.moved(kind, tensors)
        )

    def report(self) -> dict[str, Any]:
        work = self.least if self.least.rows else self.work
        return dict(
            applied=True, detail="", lines=[], work=work.report(), order=work.order,
            host_s=min(self.laps, default=None), blocks=self.blocks, nested=self.nested,
        )  # fmt: skip


class Work:
    """The operators of a step."""

    def __init__(self) -> None:
        # (place, kind, type, width, FLOPs, bytes): index and number
        self.rows: dict[tuple[str, str, str, int, int, int], list[int]] = {}
        self.order: list[int] = []  # the rows in the order of their operators; -1 where the host waits

    def add(self, *row: Any) -> None:
        """Adds an operator."""
        found = self.rows.setdefault(row, [len(self.rows), 0])
        found[1] += 1
        self.order.append(found[0])

    def flops(self) -> int:
        """The FLOPs of all operators."""
        return sum(row[4] * number for row, (_, number) in self.rows.items())

    def report(self) -> list[dict[str, Any]]:
        """The rows, in the form of the protocol."""
        names = ("place", "kind", "rate", "width", "flops", "bytes", "number")
        return [dict(zip(names, (*row, number))) for row, (_, number) in self.rows.items()]


def collect(value: Any, tensors: list[Any]) -> None:
    """Appends the tensors of the device in an operator's arguments or result. This is called for each operator, and is
    much faster than `tree_leaves`.
    """
    if isinstance(value, torch.Tensor):
        if not value.is_cpu:
            tensors.append(value)
    elif isinstance(value, (list, tuple)):
        for it in value:
            collect(it, tensors)
    elif isinstance(value, dict):
        collect(list(value.values()), tensors)


class Mode(TorchDispatchMode):
    """Counts each operator that runs."""

    def __init__(self, counted: Any) -> None:
        super().__init__()
        self.counted = counted

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        func, args = lengths_on_the_host(func, args)
        result = func(*args, **kwargs)
        try:
            self.counted.add(func, args, kwargs, result)
        except Exception:
            pass  # A failed count must not end the program.
        return result


def lengths_on_the_host(func: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Returns the operator and its arguments, with the lengths of `ctc_loss` as numbers if they are on the host.
    Under a dispatch mode, PyTorch chooses the overload of `ctc_loss` that takes lengths as tensors, which has no
    kernel for lengths in host memory.
    """
    place = dict(_ctc_loss=2, _ctc_loss_backward=3).get(func._overloadpacket.__name__)
    if place is not None and func._overloadname == "Tensor" and all(it.is_cpu for it in args[place : place + 2]):
        lengths = [it.tolist() for it in args[place : place + 2]]
        return func._overloadpacket.default, (*args[:place], *lengths, *args[place + 2 :])
    return func, args


def rate(packet: Any, tensors: Any) -> str:
    """The data type in which the GPU multiplies: the type of the operator's first floating-point tensor."""
    is_convolution = "convolution" in packet.__name__
    kind = next((it.dtype for it in tensors if it.is_floating_point()), torch.float32)
    if kind == torch.float32:
        allowed = torch.backends.cudnn.allow_tf32 if is_convolution else torch.backends.cuda.matmul.allow_tf32
        return "tf32" if allowed else "f32"
    return REDUCED.get(kind, "f32")


def products() -> Any:
    """PyTorch's FLOP formulas, extended to in-place products."""
    from torch.utils.flop_counter import flop_registry

    found = dict(flop_registry)
    for name in ("mm", "addmm", "bmm", "baddbmm"):
        own, inplace = getattr(torch.ops.aten, name), getattr(torch.ops.aten, f"{name}_", None)
        if inplace is not None and own in found:
            found[inplace] = found[own]
    return found


FLOPS = products()
