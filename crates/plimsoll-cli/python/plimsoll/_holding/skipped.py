"""Counts the steps that GradScaler skipped because a gradient was infinite or NaN, in Python or, for optimizers with
`fused=True`, on the GPU.
"""

from __future__ import annotations

import functools
from typing import Any


class Skipped:
    """Counts the steps of this process's optimizers that used a GradScaler, and the steps that were skipped."""

    def __init__(self, torch: Any) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.torch = torch
        self.in_python = self.tried = 0
        self.steps = 0  # steps of all optimizers
        self.on_devices: dict[Any, OnDevice] = {}
        register_optimizer_step_post_hook(self.stepped)
        module = getattr(torch.amp, "grad_scaler", None) or torch.cuda.amp.grad_scaler  # before 2.3
        scaler, skipped = module.GradScaler, self
        original = getattr(scaler, "_maybe_opt_step", None)
        if original is None:
            return  # this PyTorch does not have the function

        @functools.wraps(original)
        def _maybe_opt_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = skipped.steps
            result = original(self, optimizer, *args, **kwargs)
            skipped.tried += 1
            skipped.in_python += skipped.steps == before
            return result

        scaler._maybe_opt_step = _maybe_opt_step

    @property
    def count(self) -> int:
        """The number of skipped steps. Steps that a GPU has not finished yet may be missing, because this function does
        not wait for the GPU.
        """
        return self.in_python + sum(it.known() for it in self.on_devices.values())

    def settle(self) -> None:
        """Waits for the GPUs that skip steps themselves, so that `count` is complete. Does nothing while a graph is
        captured, or if a GPU has failed.
        """
        try:
            for it in self.on_devices.values() if not self.is_captured() else ():
                it.settle()
        except Exception:
            return

    def stepped(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called after an optimizer's step. If GradScaler has set the optimizer's `found_inf`, the optimizer's kernel
        skips the step if `found_inf` is not 0.
        """
        self.steps += 1
        found = getattr(optimizer, "found_inf", None)
        if not isinstance(found, self.torch.Tensor) or self.is_captured():
            return
        try:
            if found.device not in self.on_devices:
                self.on_devices[found.device] = OnDevice(self.torch, found.device)
            self.on_devices[found.device].add(found)
            self.tried += 1
        except Exception:
            return  # an error here must not end the program

    def is_captured(self) -> bool:
        """Whether a CUDA graph is being captured: if so, the kernels launched here would run again at each replay."""
        cuda = self.torch.cuda
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


class OnDevice:
    """A counter on a device, with a copy on the host that is updated without waiting."""

    def __init__(self, torch: Any, device: Any) -> None:
        self.torch, self.device = torch, device
        self.total = torch.zeros((), device=device)
        self.host = torch.zeros((), pin_memory=device.type == "cuda")

    def add(self, found: Any) -> None:
        """Queues an operation that adds 1 if `found` is not 0."""
        with self.torch.no_grad():
            self.total.add_(found.detach().clamp(max=1))
            self.host.copy_(self.total, non_blocking=True)

    def known(self) -> int:
        """The count that has reached the host so far."""
        return int(self.host.item())

    def settle(self) -> None:
        """Waits for the device, so that the count on the host is complete."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)
