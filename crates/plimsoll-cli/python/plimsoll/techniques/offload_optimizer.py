"""Keeps the states of optimizers in pinned host memory. The numbers are identical.

At a step, the states for one piece of the parameters are copied to the GPU, the optimizer's own update runs for
these parameters, and the states are copied back. These copies make the step longer. On the GPU, the step needs memory
only for the states of one piece, and for the temporary copies that the update makes of these states.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from . import context, observers
from .step_in_backward import SEPARATE, unwrapped

PIECE_BYTES = 64 << 20  # parameters that are updated together; smaller pieces would not be faster
IDLE = "no optimizer with state took a step"


class OffloadOptimizer:
    """Keeps the states of optimizers on the host."""

    name = "offload-optimizer"

    def __init__(self, value: int | None, piece_bytes: int = PIECE_BYTES) -> None:
        self.piece_bytes = piece_bytes
        self.states = 0  # the number of tensors that moved
        self.bytes = self.of_step = 0  # bytes copied to the host since the last step, and in the last step
        self.others: set[str] = set()  # optimizers that were not changed

    def begin(self) -> None:
        observers.listeners["made"].append(self.made)
        observers.listeners["stepped"].append(self.stepped)
        for name in SEPARATE:
            kind = getattr(torch.optim, name, None)
            if kind is not None and "step" in kind.__dict__:
                self.take(kind)
        for optimizer in list(observers.optimizers):
            self.made(optimizer, None)
            attach(optimizer)

    def made(self, optimizer: Any, defaults: Any) -> None:
        """Records an optimizer whose update may not be independent for each parameter."""
        kind = type(optimizer)
        if kind.__module__.split(".")[:2] != ["torch", "optim"] or kind.__name__ not in SEPARATE:
            self.others.add(kind.__name__)

    def take(self, kind: Any) -> None:
        """Replaces the step of a class."""
        update = unwrapped(kind.step)

        @functools.wraps(update)
        def step(optimizer: Any, closure: Callable[[], Any] | None = None) -> Any:
            return self.step(update, optimizer, closure)

        hooked = torch.optim.Optimizer.profile_hook_step(step)
        hooked.hooked = True
        kind.step = hooked

    def first(self, root: Any) -> None:
        if context.is_sharded(root):
            context.refuse(self.name, "FSDP shards the model and the states of its optimizer")

    def step(self, update: Callable[..., Any], optimizer: Any, closure: Callable[[], Any] | None) -> Any:
        """Runs the optimizer's step on one piece of the parameters after another."""
        if type(optimizer).__name__ in self.others:
            return update(optimizer, closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = optimizer.param_groups
        try:
            for group in groups:
                for piece in self.pieces(group["params"]):
                    hosts = self.load(optimizer, piece)
                    # Updates only these parameters, with their group's current settings.
                    optimizer.param_groups = [{**group, "params": piece}]
                    update(optimizer)
                    self.store(optimizer, piece, hosts)
        finally:
            optimizer.param_groups = groups
        return loss

    def pieces(self, parameters: Iterable[Any]) -> Iterator[list[Any]]:
        """The parameters in pieces, except parameters without a gradient, which are not updated."""
        piece: list[Any] = []
        bytes = 0
        for parameter in parameters:
            if parameter.grad is None:
                continue
            if piece and bytes + parameter.nbytes > self.piece_bytes:
                yield piece
                piece, bytes = [], 0
            piece.append(parameter)
            bytes += parameter.nbytes
        if piece:
            yield piece

    def load(self, optimizer: Any, piece: list[Any]) -> dict[tuple[Any, str], Any]:
        """Copies the states of these parameters to their device. Returns the host copies, by parameter and name."""
        hosts = {}
        for parameter in piece:
            state = optimizer.state.get(parameter, {})
            for name, value in moving(state):
                if value.device.type == "cpu":
                    hosts[parameter, name] = value
                    state[name] = torch.empty_like(value, device=parameter.device)
                    state[name].copy_(value, non_blocking=True)
        return hosts

    def store(self, optimizer: Any, piece: list[Any], hosts: dict[tuple[Any, str], Any]) -> None:
        """Copies the states back. The copies on the device are freed immediately, because any reuse of their memory
        is queued after the copy.
        """
        with context.unread():
            for parameter in piece:
                state = optimizer.state.get(parameter, {})
                for name, value in moving(state):
                    host = hosts.get((parameter, name))
                    if host is None or host.shape != value.shape or host.dtype != value.dtype:
                        host = torch.empty_like(value, device="cpu", pin_memory=parameter.is_cuda)
                        self.states += 1
                    host.copy_(value, non_blocking=True)
                    state[name] = host
                    self.bytes += value.nbytes

    def stepped(self, optimizer: Any) -> None:
        """Waits for the copies, because from here on the program may read the states."""
        if self.bytes and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        self.of_step, self.bytes = self.bytes or self.of_step, 0

    def report(self) -> dict[str, Any]:
        if not self.states:
            names = ", ".join(sorted(self.others))
            why = f"it is not known whether {names} updates parameters independently"
            return dict(applied=False, detail=why if names else IDLE, lines=[], bytes=0)
        lines = ["# PyTorch has no setting for it: plimsoll run --with offload-optimizer"]
        return dict(applied=True, detail="", lines=lines, bytes=self.of_step)


def moving(state: dict[str, Any]) -> list[tuple[str, Any]]:
    """The tensors of a parameter's state that move to the host: all except step counts."""
    return [(name, value) for name, value in state.items() if torch.is_tensor(value) and value.numel() > 1]


def attach(optimizer: Any) -> None:
    """Makes a scheduler call the class's current step: a scheduler that was created earlier has wrapped the previous
    step function.
    """
    own: Any = optimizer.__dict__.get("step")
    if not getattr(own, "_wrapped_by_lr_sched", False):
        return

    @functools.wraps(own)
    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer._opt_called = True
        return type(optimizer).step(optimizer, *args, **kwargs)

    wrapped: Any = step
    wrapped._wrapped_by_lr_sched = True
    optimizer.step = wrapped
