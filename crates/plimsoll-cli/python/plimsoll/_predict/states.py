"""The gradients and optimizer states of a model that is unfrozen while it trains, for example one more layer every 20
steps. They grow, but not without end: each parameter needs them once.

Only the parameters that exist when memory changes after the first steps are counted: new ones in each step would be
growth without end.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from .._holding.live import Tensors
from .._holding.objects import is_a
from ..allocator import LEAST_GROWTH

TIMES = 4  # a state larger than this many times its parameter is not counted: it may grow by itself
LEAST_STATE = 512  # smaller states are counters of steps


class States:
    """The bytes of gradients and optimizer states on each device, at the end of each step."""

    def __init__(self, torch: Any, optimizers: Callable[[], Mapping[Any, int]]) -> None:
        self.torch, self.known, self.optimizers = torch, Tensors(torch), optimizers
        self.parameters: dict[int, weakref.ref[Any]] = {}  # by address: at first, those of the optimizers
        self.is_complete = False  # whether all parameters are known; those that are still frozen may be in no optimizer
        self.bytes: dict[int, list[int]] = {}  # by device and step
        self.unfrozen: set[int] = set()  # the devices on which more parameters are trained since the latest step
        self.most: dict[int, int] = {}  # by device: the most bytes so far
        self.before: dict[int, int] = {}  # by device: the allocated bytes at the end of the latest step

    def note(self, device: int, level: int) -> int:
        """Records the bytes at the end of a step, when `level` bytes are allocated. Returns by how much they have
        grown since the first step.
        """
        own = self.bytes.setdefault(device, [])
        rose = level - self.before.get(device, level)
        self.before[device] = level
        if own and abs(rose) < LEAST_GROWTH:
            own.append(own[-1])
        else:
            try:
                self.find(len(own))
                own.append(sum(self.needs(device)[0]))
            except Exception:
                self.parameters.clear()  # a wrapper of an optimizer may have no states
                own.append(0)
        self.unfrozen.discard(device)
        if own[-1] >= self.most.setdefault(device, own[-1]) + LEAST_GROWTH:
            self.unfrozen.add(device)
        self.most[device] = max(self.most[device], own[-1])
        return own[-1] - own[0]

    def find(self, step: int) -> None:
        """Finds parameters: in the first steps those of the optimizers, which create their states then, and once those of
        all models.
        """
        if self.is_complete:
            return
        self.is_complete = step > 2
        found = (p for it in self.optimizers() for group in it.param_groups for p in group["params"])
        for it in gc.get_objects() if self.is_complete else found:
            if is_a(it, self.torch.nn.Parameter) and self.known.is_tensor(it):
                self.parameters.setdefault(id(it), weakref.ref(it))

    def needs(self, device: int) -> tuple[list[int], list[int], int]:
        """The bytes of each parameter's gradient and states, the bytes of the parameters that have them, and the bytes of
        those that have none so far.
        """
        owned, having, others = [], [], 0
        with self.known.quiet():
            for parameter in (it() for it in self.parameters.values()):
                if parameter is None or not self.known.is_on(parameter, device):
                    continue
                size = self.size(parameter)
                states = (it.state.get(parameter) for it in list(self.optimizers()))
                parts = [self.known.get(parameter, "grad")]
                parts += [it for state in states if state for it in state.values()]
                sizes = [self.size(it) for it in parts if it is not None and self.known.is_tensor(it)]
                large = [it for it in sizes if LEAST_STATE < it <= TIMES * size]
                if large:
                    owned.append(sum(large))
                    having.append(size)
                else:
                    others += size
        return owned, having, others

    def size(self, tensor: Any) -> int:
        """The bytes of a tensor's storage, if it is on a GPU."""
        return self.known.storage(tensor)[1] if self.known.get(tensor, "is_cuda") else 0

    def room(self, device: int) -> int:
        """How many bytes the gradients and states of the other parameters need, if these get as many states."""
        try:
            owned, having, others = self.needs(device)
        except Exception:
            return 0
        return others * sum(owned) // max(sum(having), 1)
