"""Finds training memory that disappeared and never came back: gradients, optimizer states and buffers that existed in
earlier steps but not in the latest steps.
"""

from __future__ import annotations

import weakref
from typing import Any

from .. import protocol, sizes
from .live import Tensors
from .objects import is_a

# The first steps are all examined. After that, only steps whose number is a power of two and steps in which memory
# falls are examined.
OFTEN = 8
LEAST_PART = 100  # less than this part (1/100) of the allocated bytes is not reported
LOOKS = 2  # the examined steps in which a tensor must be missing to count as gone
UNUSED = 4  # `LOOKS` for the gradient of a parameter that is not frozen; it must also have existed in this many looks
NAMES = 3  # the maximum number of parameters to name
STATE = "optimizer state"


class Kept:
    """The tensors that existed at an optimizer's steps: gradients and states by parameter, buffers by module and name."""

    def __init__(self) -> None:
        self.level = 0  # allocated bytes at the latest step of the optimizer
        self.looks: list[int] = []  # the steps that were examined
        self.steps = 0  # the optimizer's steps
        # The tensor's most bytes, the last look that saw it, and the number of looks that saw it.
        self.seen: dict[tuple[str, Any], tuple[int, int, int]] = {}
        self.tensors: list[tuple[weakref.ref[Any], int]] = []  # the states at the last look, and their bytes

    def states(self, owners: set[int] | None = None) -> int:
        """The bytes of the states that existed at the last look; with `owners`, only those of these parameters."""
        latest = len(self.looks) - 1
        return sum(
            size
            for (category, key), (size, nth, _) in self.seen.items()
            if category == STATE and nth == latest and (owners is None or key[0] in owners)
        )

    def freed(self) -> int:
        """The bytes of the states at the last look that no longer exist."""
        return sum(size for tensor, size in self.tensors if tensor() is None)


class Falling:
    """The memory that this process's optimizers and modules have kept, step by step."""

    def __init__(self, torch: Any) -> None:
        from torch.nn.modules.module import register_module_buffer_registration_hook

        self.torch, self.known = torch, Tensors(torch)
        self.kept: weakref.WeakKeyDictionary[Any, Kept] = weakref.WeakKeyDictionary()  # by optimizer
        self.owners: list[tuple[weakref.ref[Any], Kept]] = []  # the optimizers that existed at the last step of any
        self.dropped: list[protocol.Fall] = []  # the states of optimizers that no longer exist
        self.modules: weakref.WeakSet[Any] = weakref.WeakSet()  # the modules that have buffers
        register_module_buffer_registration_hook(self.registered)

    def registered(self, module: Any, name: str, tensor: Any) -> None:
        """Called when a module has registered a buffer."""
        self.modules.add(module)

    def stepped(self, optimizer: Any, step: int, level: int) -> None:
        """Called after an optimizer's step, with the number of allocated bytes. For most steps, the call costs only a
        comparison of numbers.
        """
        kept = self.kept.get(optimizer)
        if kept is None:
            kept = self.kept[optimizer] = Kept()
            self.owners.append((weakref.ref(optimizer), kept))
        falls, kept.level = level < kept.level - kept.level // LEAST_PART, level
        kept.steps = step
        if step <= OFTEN or step & (step - 1) == 0 or falls:
            try:
                with self.known.quiet():
                    self.look(optimizer, kept, step)
            except Exception:
                self.kept.pop(optimizer, None)  # an error here must not end the program
        if any(owner() is None for owner, _ in self.owners):
            self.drop()

    def drop(self) -> None:
        """Called when an optimizer has stepped and another one no longer exists. Its states count as gone, except for
        as many bytes as the states of the other optimizers have, because the program may have created its optimizer
        again.
        """
        gone = [kept for owner, kept in self.owners if owner() is None]
        self.owners = [it for it in self.owners if it[0]() is not None]
        lost = max(gone, key=lambda kept: kept.states())
        # Something else may keep the states, such as a state dictionary.
        size = min(lost.states() - sum(kept.states() for _, kept in self.owners), lost.freed())
        if size * LEAST_PART >= lost.level:
            text = "the states of an optimizer that no longer exists"
            self.dropped.append(protocol.Fall(text=text, bytes=size, step=lost.steps))

    def look(self, optimizer: Any, kept: Kept, step: int) -> None:
        """Records the tensors that exist at an optimizer's step."""
        kept.looks.append(step)
        nth = len(kept.looks) - 1
        kept.tensors = []
        for key, tensor in self.there(optimizer):
            if self.known.get(tensor, "is_cuda"):
                most, _, times = kept.seen.get(key, (0, nth, 0))
                size = tensor.numel() * tensor.element_size()
                kept.seen[key] = max(most, size), nth, times + 1
                if key[0] == STATE:
                    kept.tensors.append((weakref.ref(tensor), size))

    def there(self, optimizer: Any) -> Any:
        """The tensors of an optimizer that exist now: gradients, states and buffers, each with its key."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = self.known.get(parameter, "grad") if self.known.get(parameter, "is_leaf") else None
                if gradient is not None:
                    yield ("gradient", id(parameter)), gradient
                state = optimizer.state.get(parameter)
                for name, it in state.items() if isinstance(state, dict) else ():
                    if self.known.is_tensor(it):
                        yield (STATE, (id(parameter), name)), it
        # The buffers of all modules belong to one optimizer, so that they are examined once.
        for module in list(self.modules) if optimizer is next(iter(self.kept)) else ():
            for name, it in module._buffers.items():
                if it is not None and self.known.is_tensor(it):
                    yield ("buffer", (id(module), name)), it

    def rows(self) -> list[protocol.Fall]:
        """Rows for tensors that disappeared and never came back, by optimizer and category, the largest first."""
        found = [row for optimizer, kept in list(self.kept.items()) for row in self.gone(optimizer, kept)]
        return sorted(found + self.dropped, key=lambda it: -it["bytes"])

    def gone(self, optimizer: Any, kept: Kept) -> list[protocol.Fall]:
        """Rows for one optimizer: the tensors that existed in earlier steps but not in the latest examined steps."""
        parameters = [it for group in optimizer.param_groups for it in group["params"]]
        frozen = {id(it) for it in parameters if not it.requires_grad}
        rows: dict[tuple[str, int, bool], tuple[int, list[int]]] = {}
        for (category, key), (size, latest, times) in kept.seen.items():
            owner = key[0] if isinstance(key, tuple) else key
            # A gradient may come back if its parameter is only temporarily unused, for example in an expert that gets
            # no tokens.
            is_frozen = category == "gradient" and owner in frozen
            may_come_back = category == "gradient" and not is_frozen
            is_regular = not may_come_back or times >= UNUSED
            if is_regular and len(kept.looks) - 1 - latest >= (UNUSED if may_come_back else LOOKS):
                total, owners = rows.setdefault((category, latest, is_frozen), (0, []))
                rows[category, latest, is_frozen] = total + size, [*owners, owner]
        found = []
        for (category, latest, is_frozen), (total, owners) in rows.items():
            if total * LEAST_PART >= kept.level:
                text = self.text(category, owners, is_frozen)
                still = kept.states(set(owners)) if is_frozen else 0
                if still * LEAST_PART >= kept.level:
                    text += f"; the optimizer still keeps their states, {sizes.shown(still)}"
                found.append(protocol.Fall(text=text, bytes=total, step=kept.looks[latest]))
        return found

    def text(self, category: str, owners: list[int], is_frozen: bool) -> str:
        """Describes tensors that disappeared, for example `the gradients of 3 parameters (0.weight, …), which are
        frozen`.
        """
        owners = list(dict.fromkeys(owners))
        one = "module" if category == "buffer" else "parameter"
        many = f"{len(owners)} {one}{'' if len(owners) == 1 else 's'}"
        found = {
            "gradient": "the gradients of",
            STATE: "the optimizer's states of",
            "buffer": "the buffers of",
        }
        names = self.names(owners[:NAMES])
        rest = ", …" if names and len(owners) > len(names) else ""
        named = f" ({', '.join(names)}{rest})" if names else ""
        return f"{found[category]} {many}{named}{', which are frozen' if is_frozen else ''}"

    def names(self, wanted: list[int]) -> list[str]:
        """The names of parameters or modules, as seen from the outermost modules."""
        import gc

        modules = [it for it in gc.get_objects() if is_a(it, self.torch.nn.Module)]
        inner = {id(child) for module in modules for child in module._modules.values()}
        found: dict[int, str] = {}
        for module in (it for it in modules if id(it) not in inner):
            for name, part in module.named_modules():
                found.setdefault(id(part), name or type(part).__name__)
                for own, parameter in part._parameters.items():
                    if parameter is not None:
                        found.setdefault(id(parameter), f"{name}.{own}" if name else own)
        return [found[it] for it in wanted if it in found]
