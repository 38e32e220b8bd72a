"""Counts the work of one training step, to estimate its time: for each operator its FLOPs, the bytes that it reads
and writes, and its place. It needs a separate run, because a dispatch mode keeps tensors alive slightly longer.

The place is one of these: `block N` and `root` are the forward pass of training inside a repeated block, and in the
rest of the model; `block N.M` is inside nested block M of block N; `rest` is everything else, including evaluation.
The step with the fewest FLOPs counts, because others may contain an evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import blocks, context, observers, roots

# Operators that start no kernel.
FREE = set(
    "empty empty_like empty_strided new_empty new_empty_strided detach alias view _unsafe_view lift_fresh set_ resize_"
    " _local_scalar_dense record_stream is_pinned _pin_memory sym_size prim_layout".split()
)
REDUCED = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}


class Count:
    """Counts the work of one step."""

    name = "count"
    serves = True

    def __init__(self, value: int | None) -> None:
        self.phase = "rest"
        self.mode: Mode | None = None
        # (phase, type, flops, bytes): operators, in this step and in the complete step with the fewest FLOPs
        self.work: dict[tuple[str, str, int, int], int] = {}
        self.least: dict[tuple[str, str, int, int], int] = {}
        self.steps = self.blocks = self.nested = 0
        self.repeats = blocks.Repeats()
        self.free: dict[Any, bool] = {}  # by operator: whether it starts no kernel

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
        """Called before a module's call: checks whether the module is a block because it is called again."""
        if self.phase == "root" and module.training and torch.is_grad_enabled() and self.repeats.is_again(module):
            self.mark(module, "root", f"block {self.blocks}")
            self.blocks += 1

    def mark(self, block: Any, outside: str, phase: str) -> None:
        """Makes a block's calls count in this phase."""

        def enter(module: Any, args: Any) -> None:
            # Recomputation in the backward pass does not count as forward.
            if self.phase == outside and module.training and torch.is_grad_enabled():
                self.phase = phase

        def leave(module: Any, args: Any, result: Any) -> None:
            if self.phase == phase:
                self.phase = outside

        block.register_forward_pre_hook(enter)
        block.register_forward_hook(leave, always_call=True)

    def around(self, root: Any, following: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.mode is None:
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
        """Called after a call of a model in a program that reads no gradient. Each call is a step; the call with the
        most FLOPs counts.
        """
        if flops(self.work) >= flops(self.least):
            self.least = self.work
        self.work = {}

    def stepped(self, optimizer: Any) -> None:
        """Called at each optimizer step. A step is done once every optimizer has stepped, which the host counts."""
        steps = getattr(context.host, "counted", self.steps + 1)
        if steps == self.steps:
            return
        self.steps = steps
        if not self.least or flops(self.work) <= flops(self.least):
            self.least = self.work
        self.work = {}

    def add(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Adds an operator to the work of this step."""
        is_free = self.free.get(func)
        packet = func._overloadpacket
        if is_free is None:
            is_free = self.free[func] = packet.__name__ in FREE or bool(getattr(func, "is_view", False))
        if is_free:
            return
        tensors: list[Any] = []
        collect((args, kwargs, result), tensors)
        if not tensors:
            return
        count = FLOPS.get(packet)
        flops = count(*args, **kwargs, out_val=result) if count is not None else 0
        key = (self.phase, rate(packet, tensors), flops, sum({id(it): it.nbytes for it in tensors}.values()))
        self.work[key] = self.work.get(key, 0) + 1

    def report(self) -> dict[str, Any]:
        work = self.least or self.work
        rows = [[*key, number] for key, number in work.items()]
        return dict(applied=True, detail="", lines=[], work=rows, blocks=self.blocks, nested=self.nested)


def collect(value: Any, tensors: list[Any]) -> None:
    """Appends the tensors of the device in an operator's arguments or result. It is called for each operator, and
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


def flops(work: Any) -> int:
    """The FLOPs of this work."""
    return sum(key[2] * number for key, number in work.items())


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
    """The type in which a GPU multiplies: the type of the operator's first floating-point tensor. For a convolution
    it has the prefix `conv`, because convolutions reach less of the GPU's rate.
    """
    is_convolution = "convolution" in packet.__name__
    kind = next((it.dtype for it in tensors if it.is_floating_point()), torch.float32)
    if kind == torch.float32:
        allowed = torch.backends.cudnn.allow_tf32 if is_convolution else torch.backends.cuda.matmul.allow_tf32
        name = "tf32" if allowed else "f32"
    else:
        name = REDUCED.get(kind, "f32")
    return f"conv {name}" if is_convolution else name


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
