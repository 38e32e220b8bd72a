"""The figures of this process for the live view: PyTorch's statistics, categories, memory levels at steps.
Nothing is computed until a client asks, except for a counter and the allocated bytes at each optimizer step.

Parameters and buffers are recognized when modules register them, and optimizer states at optimizer steps.
`other` is the rest: activations, inputs, temporaries, workspaces.
"""

from __future__ import annotations

import collections
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any

from .._holding.falling import Falling
from .._holding.growing import Growing
from .._holding.skipped import Skipped
from .._waste.kept import Graphs
from ..allocator import LEAST_GROWTH, allocated, rounded

if TYPE_CHECKING:
    from .stacks import Stacks

SCHEMA = "plimsoll.live/1"
LEVELS = 240
WINDOW = 24  # the number of steps in which growing memory must never fall


class Gauges:
    """The figures of one process."""

    def __init__(self, torch: Any) -> None:
        from torch.nn.modules import module
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.torch = torch
        self.modules: weakref.WeakSet[Any] = weakref.WeakSet()
        self.optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.steps = 0
        self.levels: collections.deque[int] = collections.deque(maxlen=LEVELS)
        self.capturing = 0  # the number of CUDA graphs that are being captured, which must not be disturbed
        self.free: dict[int, int] = {}  # free bytes by device, from the last query
        self.growing = Growing(torch)  # finds the owners of growing memory
        self.graphs = Graphs(torch)
        self.falling, self.skipped = Falling(torch), Skipped(torch)
        self.growth = 0  # the growth in bytes per step at the last look-up
        self.stacks: Stacks | None = None  # decides which steps have stacks, if only some of them do (stacks.py)
        register_optimizer_step_post_hook(self.stepped)
        module.register_module_parameter_registration_hook(self.registered)
        module.register_module_buffer_registration_hook(self.registered)
        self.watch_captures()

    def registered(self, module: Any, name: str, tensor: Any) -> None:
        """Called when a module has registered a parameter or a buffer."""
        self.modules.add(module)

    def stepped(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called when an optimizer has stepped. A training step counts as done when the optimizer with the most steps
        makes a further step.
        """
        count = self.optimizers[optimizer] = self.optimizers.get(optimizer, 0) + 1
        device = device_of(optimizer)
        level = 0 if device is None else allocated(self.torch, device)
        self.falling.stepped(optimizer, count, level)
        if count > self.steps:
            self.steps = count
            self.levels.append(level)
            if device is not None and count > WINDOW and count & (count - 1) == 0:
                self.look_up(device)
            if self.stacks is not None:
                self.stacks.stepped()

    def look_up(self, device: int) -> None:
        """After 32, 64, 128, … steps, finds the owners of memory if it grows."""
        last = list(self.levels)[-WINDOW:]
        growth = (last[-1] - last[0]) // (WINDOW - 1)
        if growth >= LEAST_GROWTH and all(after >= before for before, after in zip(last, last[1:])):
            self.growth = growth
            self.growing.grew(device, last[-1])
            self.growing.begins(device, last[-1])
            self.graphs.look(sys._getframe(1), last[-1])

    def watch_captures(self) -> None:
        """Counts CUDA graphs that are being captured."""
        kind, gauges = self.torch.cuda.CUDAGraph, self
        begin, end = kind.capture_begin, kind.capture_end

        def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
            gauges.capturing += 1
            return begin(self, *args, **kwargs)

        def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
            gauges.capturing -= 1
            return end(self, *args, **kwargs)

        kind.capture_begin, kind.capture_end = capture_begin, capture_end

    def sample(self) -> dict[str, Any]:
        """All figures of the device with the most reserved memory, as `plimsoll top` reads them."""
        cuda = self.torch.cuda
        every = [cuda.memory_stats(device) for device in range(cuda.device_count())]
        reserved = [stats.get("reserved_bytes.all.current", 0) for stats in every]
        device = max(range(len(every)), key=reserved.__getitem__)
        stats, total = every[device], cuda.get_device_properties(device).total_memory
        if reserved[device] and not self.capturing:
            # The query creates a context, so it is made only if memory is allocated.
            self.free[device] = cuda.mem_get_info(device)[0]
        allocated = stats.get("allocated_bytes.all.current", 0)
        return dict(
            schema=SCHEMA,
            pid=os.getpid(),
            command=" ".join(getattr(sys, "orig_argv", sys.argv)),
            device=f"cuda:{device} ({cuda.get_device_name(device)})",
            capacity_bytes=total,
            device_free_bytes=self.free.get(device, total),
            limit_bytes=self.limit(device, total),
            allocated_bytes=allocated,
            active_bytes=stats.get("active_bytes.all.current", 0),
            reserved_bytes=reserved[device],
            peak_allocated_bytes=stats.get("allocated_bytes.all.peak", 0),
            peak_reserved_bytes=stats.get("reserved_bytes.all.peak", 0),
            by_category=self.categories(device, allocated),
            largest_cached_bytes=None,
            num_alloc_retries=stats.get("num_alloc_retries", 0),
            num_ooms=stats.get("num_ooms", 0),
            skipped_steps=self.skipped.count if self.skipped.tried else None,
            resident_bytes=resident(),
            steps=self.steps,
            step_levels=list(self.levels),
            growth_bytes_per_step=None,  # computed by the client
            rank=number("RANK"),
            job=job(),
        )

    def limit(self, device: int, total: int) -> int | None:
        """The allocator's limit in bytes; None if there is none."""
        try:
            fraction = self.torch.cuda.get_per_process_memory_fraction(device)
        except Exception:  # an older PyTorch
            return None
        return int(total * fraction) if fraction < 1.0 else None

    def categories(self, device: int, allocated: int) -> dict[str, int]:
        """Allocated bytes by category."""
        seen: set[int] = set()
        sums: dict[str, int] = {}

        def add(category: str, tensors: Any) -> None:
            for tensor in tensors:
                tensor = getattr(tensor, "_local_tensor", tensor)  # for a DTensor, this rank's part
                if getattr(tensor, "is_cuda", False) and tensor.device.index == device:
                    for part in (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,):
                        storage = part.untyped_storage()
                        if storage.data_ptr() not in seen:
                            seen.add(storage.data_ptr())
                            sums[category] = sums.get(category, 0) + rounded(storage.nbytes())

        optimizers, modules = list(self.optimizers), list(self.modules)
        own = [it for optimizer in optimizers for group in optimizer.param_groups for it in group["params"]]
        own += [it for module in modules for it in list(module._parameters.values()) if it is not None]
        add("parameter", own)
        add("gradient", (it.grad for it in own if it.grad is not None))
        add(
            "optimizer state",
            (it for optimizer in optimizers for state in list(optimizer.state.values()) for it in values(state)),
        )
        add("buffer", (it for module in modules for it in list(module._buffers.values()) if it is not None))
        known = sum(sums.values())
        return {**sums, "other": allocated - known} if known <= allocated else {"other": allocated}


def values(state: Any) -> list[Any]:
    """The tensors of an optimizer's state for one parameter."""
    return [it for it in list(state.values()) if hasattr(it, "is_cuda")] if isinstance(state, dict) else []


def device_of(optimizer: Any) -> int | None:
    """The device of an optimizer's parameters."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.is_cuda:
                return int(parameter.device.index)
    return None


def number(name: str) -> int | None:
    """An integer from torchrun's environment variables."""
    text = os.environ.get(name) or os.environ.get(f"PLIMSOLL_OWN_{name}") or ""  # fsdp hides it from the program
    return int(text) if text.isdecimal() else None


def job() -> str | None:
    """The name of this process's job, which all of its ranks share; None for a single process."""
    world = number("WORLD_SIZE") or 1
    if world < 2:
        return None
    names = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
    known = {it: os.environ.get(it) or os.environ.get(f"PLIMSOLL_OWN_{it}") for it in names}
    return f"{world} ranks, " + " ".join(it for it in known.values() if it)


def resident() -> int | None:
    """The process's resident memory on the host."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
