"""Uses 16-bit weights: a model is converted before it moves to the GPU, or at its first call; a parameter that is made on
the GPU is converted when its module registers it. The model's inputs are converted as well, and its results are converted
back to f32. Changes the numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary

from . import observers
from .difference import Difference
from .dtypes import converted, need_bf16
from .inference import Inference

WIDE = (torch.float32, torch.float64)


class Half(Inference):
    """Weights in fp16."""

    name = "half"
    dtype = torch.float16
    is_made = False  # whether a model was made on the GPU

    def begin(self) -> None:
        super().begin()
        self.difference = Difference(self.name)
        self.made: Any = WeakIdKeyDictionary()  # parameters that were made on the GPU, with their converted copies
        register_module_parameter_registration_hook(self.registered)
        kind = torch.nn.Module
        for name in ("to", "cuda"):
            setattr(kind, name, self.moved(getattr(kind, name)))
        for module in observers.moving:
            self.convert(module)

    def moved(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a method that moves a module, so that the module is converted in place before it moves to a GPU."""

        @functools.wraps(original)
        def move(module: Any, *args: Any, **kwargs: Any) -> Any:
            if original.__name__ == "cuda" or is_gpu(*args, **kwargs):
                self.convert(module)
            return original(module, *args, **kwargs)

        return move

    def registered(self, module: Any, name: str, parameter: Any) -> Any:
        """Called when a module registers a parameter; returns the parameter to use instead, or None."""
        if type(parameter) is not torch.nn.Parameter or not parameter.is_cuda or parameter.dtype not in WIDE:
            return None
        if parameter not in self.made:
            narrow = torch.nn.Parameter(parameter.detach().to(self.dtype), parameter.requires_grad)
            self.made[parameter] = narrow
            self.is_made = True
        self.difference.lacks(module)
        return self.made[parameter]

    def convert(self, module: Any) -> None:
        """Converts the weights of a module."""
        self.difference.keep(module, WIDE)
        narrow: Callable[..., Any] = lambda it: it.to(self.dtype) if it.dtype in WIDE else it
        module._apply(narrow)

    def first(self, root: Any) -> None:
        if not root_dtypes(root).isdisjoint(WIDE):
            self.convert(root)

    def around(self, root: Any, following: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.dtype not in root_dtypes(root):
            return following(*args, **kwargs)
        if self.dtype == torch.bfloat16:
            need_bf16(self.name, next(it.device for it in root.parameters()))
        self.calls += 1

        def call(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = tree_map(lambda it: converted(it, WIDE, self.dtype), (args, kwargs))
            return tree_map(lambda it: converted(it, (self.dtype,), torch.float32), following(*args, **kwargs))

        return self.difference.around(root, call, args, kwargs)

    def lines(self) -> list[str]:
        name = str(self.dtype)
        how = "make the model on the CPU, and convert it before it" if self.is_made else "before the model"
        return [
            f"model.to({name})  # {how} moves to the GPU",
            f"output = model(input.to({name})).float()  # floating-point inputs",
        ]


class Bf16Weights(Half):
    """Weights in bf16."""

    name = "bf16-weights"
    dtype = torch.bfloat16


def root_dtypes(root: Any) -> set[Any]:
    """The data types of a module's parameters."""
    return {it.dtype for it in root.parameters()}


def is_gpu(*args: Any, **kwargs: Any) -> bool:
    """Whether these arguments of `Module.to` name a GPU."""
    given = [*args, *kwargs.values()]
    devices = [it.device if isinstance(it, torch.Tensor) else it for it in given]
    return any(str(it).startswith("cuda") or type(it) is int for it in devices)
