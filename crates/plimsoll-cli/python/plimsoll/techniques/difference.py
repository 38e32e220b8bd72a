"""Measures the largest difference that 16-bit weights make to a model's outputs, for `half` and `bf16-weights` under
`run`.

The first call to each model also runs in f32 on the CPU, with the original weights, so that the measurement does not
change the GPU's memory. Nothing is measured on the simulated GPU (plimsoll-standin), which computes no values.
"""

from __future__ import annotations

import copy
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from . import context

SECONDS = 60.0  # the time limit of all measurements
MOST = 4  # the maximum number of models to measure
SPARE = 2 << 30  # bytes of host memory to leave free


class TooLong(Exception):
    """The time limit has passed."""


class Difference:
    """Keeps the weights in f32 until a model's first call, and makes the comparison."""

    def __init__(self, name: str) -> None:
        self.name, self.left, self.models = name, SECONDS, MOST
        # Weights and buffers by module and name.
        self.originals: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self.done: weakref.WeakSet[Any] = weakref.WeakSet()
        self.lacking: weakref.WeakSet[Any] = weakref.WeakSet()  # modules whose weights were never in f32
        self.is_on = not getattr(context.host, "has_no_values", False) and hasattr(context.host, "note")

    def keep(self, module: Any, wide: tuple[Any, ...]) -> None:
        """Keeps the weights of a module that is about to be converted."""
        if not self.is_on or not self.models:
            return
        tensors = [it for it in [*module.parameters(), *module.buffers()] if it.dtype in wide]
        if sum(it.nbytes for it in tensors) + SPARE > available():
            self.is_on = False
            return self.say("outputs are not compared: not enough host memory to keep the f32 weights")
        for each in module.modules():
            own = {**each._parameters, **each._buffers}
            kept = {name: it.detach().cpu() for name, it in own.items() if it is not None and it.dtype in wide}
            if kept:
                self.originals.setdefault(each, {}).update(kept)

    def lacks(self, module: Any) -> None:
        """Called for a module whose weights are made in 16 bits."""
        if self.is_on:
            self.lacking.add(module)

    def around(self, root: Any, following: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Returns the result of a model's call. If this is the model's first call, also compares the result."""
        if not self.is_on or root in self.done or not self.models:
            return following(*args, **kwargs)
        self.done.add(root)
        self.models -= 1
        reference, why = self.reference(root, args, kwargs)
        for each in root.modules():
            self.originals.pop(each, None)
        result = following(*args, **kwargs)
        if why is None:
            why = compared(reference, result)
        self.say(why)
        return result

    def reference(self, root: Any, args: Any, kwargs: Any) -> tuple[Any, str | None]:
        """The result in f32, or the reason why there is none."""
        if any(it.training for it in root.modules()):
            return None, "the difference between the outputs is not measured, because the model is in training mode"
        if any(it in self.lacking for it in root.modules()):
            return None, "the difference between the outputs is not measured, because the weights are made on the GPU"
        state, known = {}, set()  # `functional_call` takes only one of several tied weights
        for prefix, each in root.named_modules():
            kept = self.originals.get(each, {})
            for name, it in {**each._parameters, **each._buffers}.items():
                if it is not None and it not in known:
                    known.add(it)
                    own = kept[name] if name in kept else it.detach().cpu()
                    # The call may change buffers.
                    state[f"{prefix}.{name}" if prefix else name] = own.clone() if name in each._buffers else own
        until = time.monotonic() + self.left

        def check(module: Any, given: Any) -> None:
            if time.monotonic() > until:
                raise TooLong

        hook = torch.nn.modules.module.register_module_forward_pre_hook(check)
        begun = time.monotonic()
        try:
            args, kwargs = tree_map(on_the_host, (args, kwargs))
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                return torch.func.functional_call(root, state, args, kwargs), None
        except TooLong:
            return (
                None,
                f"the difference between the outputs is not measured: f32 on the CPU takes more than {SECONDS:.0f} s",
            )
        except Exception as why:
            return None, f"the difference between the outputs is not measured: on the CPU, {type(why).__name__}: {why}"
        finally:
            self.left -= time.monotonic() - begun
            hook.remove()

    def say(self, text: str) -> None:
        context.host.note(f"{self.name}: {text}")


def on_the_host(value: Any) -> Any:
    """A copy of an argument on the CPU. Objects such as caches are copied as well, because the call may change them."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    return value if value is None or isinstance(value, (bool, int, float, str)) else copy.deepcopy(value)


def compared(reference: Any, result: Any) -> str:
    """The largest difference between two results, as a sentence."""
    pairs = [
        (one.double(), other.detach().cpu().double())
        for one, other in zip(tree_leaves(reference), tree_leaves(result))
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        if one.is_floating_point() and one.shape == other.shape and one.numel()
    ]
    if not pairs:
        return "the model's results have no floating-point tensors to compare"
    broken = sum(int((one.isfinite() & ~other.isfinite()).sum()) for one, other in pairs)
    if broken:
        return f"{broken} values of the first batch's outputs are infinite or NaN, but finite in f32"
    differences = [
        ((one - other).abs().nan_to_num(0).max().item(), one.abs().nan_to_num(0).max().item()) for one, other in pairs
    ]
    most, largest = max(differences, key=lambda it: it[0])
    share = f", {100 * most / largest:.2g} % of the largest value, {largest:.4g}" if largest else ""
    return f"the outputs of the first batch differ from those in f32 by at most {most:.3g}{share}"


def available() -> int:
    """Bytes of host memory that are available."""
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return 0
