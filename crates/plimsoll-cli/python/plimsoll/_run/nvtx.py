"""NVTX ranges for `run --nvtx`, which Nsight Systems shows above the kernels: each call to a module, the backward pass,
and each optimizer's step. A marker shows where the backward pass reaches a module.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any


class Ranges:
    """The ranges of this process."""

    def __init__(self, torch: Any) -> None:
        from torch.nn.modules import module
        from torch.optim import optimizer

        self.torch, self.nvtx = torch, torch.cuda.nvtx
        self.nvtx.mark("plimsoll run --nvtx")  # this raises an exception if this PyTorch has no NVTX
        self.names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        module.register_module_forward_pre_hook(self.called)
        module.register_module_forward_hook(self.returned, always_call=True)
        optimizer.register_optimizer_step_pre_hook(self.steps)
        optimizer.register_optimizer_step_post_hook(self.stepped)
        self.watch_backward()

    def name(self, module: Any) -> str:
        """The name of a module's range: its path in the outermost module that was called, and its class, such as
        `layers.0.attention (Attention)`.
        """
        if module not in self.names:
            for name, part in module.named_modules():
                self.names.setdefault(part, f"{name} ({type(part).__name__})" if name else type(part).__name__)
        return self.names[module]

    def called(self, module: Any, args: Any) -> None:
        """Called when a module is called."""
        if not self.torch.compiler.is_compiling():
            self.nvtx.range_push(f"forward: {self.name(module)}")

    def returned(self, module: Any, args: Any, result: Any) -> None:
        """Called when a module's call has returned or failed."""
        if self.torch.compiler.is_compiling():
            return
        self.nvtx.range_pop()
        first = result[0] if isinstance(result, (tuple, list)) and result else result
        node = first.grad_fn if isinstance(first, self.torch.Tensor) else None
        if node is not None:
            text = f"backward: {self.name(module)}"
            node.register_prehook(lambda *_: self.nvtx.mark(text))

    def steps(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Called when an optimizer begins a step."""
        self.nvtx.range_push(f"optimizer: {type(optimizer).__name__}.step")

    def stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Called when an optimizer has stepped."""
        self.nvtx.range_pop()

    def watch_backward(self) -> None:
        """Patches `torch.autograd.backward`, which `Tensor.backward` calls."""
        original, nvtx = self.torch.autograd.backward, self.nvtx

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            nvtx.range_push("backward")
            try:
                return original(*args, **kwargs)
            finally:
                nvtx.range_pop()

        self.torch.autograd.backward = backward
