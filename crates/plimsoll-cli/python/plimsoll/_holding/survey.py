"""Finds the owners of GPU memory other than the model and its optimizer: lists, dictionaries, attributes, closures,
tracebacks, cycles, and autograd graphs that are never freed.

If many tensors have the same size, only a few of them are examined, so 100,000 tensors take little longer than ten.
"""

from __future__ import annotations

import dataclasses
import gc
import re
from types import FrameType
from typing import Any

from .climb import Chain, Climb
from .holder import Graphs, Holder, best, holder_of, text_of
from .live import Tensors
from .naming import Part, parts
from .objects import attributes, is_a, locals_of

GROUPS = 12  # the maximum number of groups of tensors to examine
SAMPLES = 3  # tensors to examine in each group
NAMES = 4  # the maximum number of a traceback's variables to name
FEW = 3  # a variable with fewer tensors is assumed to keep only memory that the current step needs


class Survey:
    """The holders of memory at one moment. Holders whose texts differ only in indices are counted together."""

    def __init__(self, torch: Any, device: int | None) -> None:
        self.known, self.device = Tensors(torch), device
        self.found: dict[str, Holder] = {}
        self.plain: set[str] = set()  # the texts of variables that keep fewer than FEW tensors
        with self.known.quiet():
            tensors, model = self.tensors(torch)
            graphs = self.graphs(tensors, model)
            climb = Climb()
            climb.own.add(id(tensors))
            self.look_up(self.groups(tensors, model, graphs), graphs, climb)

    def tensors(self, torch: Any) -> tuple[list[Any], set[int]]:
        """All tensors, and the storages of parameters, their gradients, buffers and optimizer states."""
        known, tensors, model = self.known, [], set()
        kinds: dict[int, str] = {}
        bases = {"parameter": torch.nn.Parameter, "module": torch.nn.Module, "optimizer": torch.optim.Optimizer}
        for it in gc.get_objects():
            kind = kinds.get(id(type(it)))
            if kind is None:
                named = next((name for name, base in bases.items() if is_a(it, base)), "")
                kind = kinds[id(type(it))] = named or ("tensor" if known.is_tensor(it) else "other")
            if kind in ("tensor", "parameter"):
                tensors.append(it)
                if kind == "parameter" or known.get(it, "is_leaf") and known.get(it, "requires_grad"):
                    model |= {known.storage(each)[0] for each in (it, known.get(it, "grad")) if each is not None}
            elif kind != "other":
                own = (attributes(it) or {}).get("_buffers" if kind == "module" else "state")
                for state in [own, *dict.values(own)] if own is not None and is_a(own, dict) else ():
                    model |= {known.storage(each)[0] for each in gc.get_referents(state) if known.is_tensor(each)}
        return tensors, model

    def graphs(self, tensors: list[Any], model: set[int]) -> Graphs:
        """The storages that the tensors' graphs keep, by the tensors' addresses. A graph counts for its last tensor."""
        known = self.known
        return {
            id(root): {address: size for address, size in saved.items() if address not in model}
            for root, saved in known.graphs(tensors, self.device)
            if not saved.keys() <= model
        }

    def groups(self, tensors: list[Any], model: set[int], graphs: Graphs) -> list[list[Any]]:
        """Groups of tensors that each keep about the same bytes, the largest groups first."""
        known, seen = self.known, model.union(*graphs.values())
        groups: dict[Any, list[Any]] = {}
        sizes: dict[Any, int] = {}
        for it in tensors:
            address, size = known.storage(it)
            size = size if address not in seen and known.is_on(it, self.device) else 0
            seen.add(address)
            saved = sum(graphs.get(id(it), {}).values())
            if size + saved:
                key = str(known.get(it, "dtype")), (size + saved).bit_length(), saved > size
                groups.setdefault(key, []).append(it)
                sizes[key] = sizes.get(key, 0) + size + saved
        return [groups[it] for it in sorted(groups, key=lambda it: -sizes[it])[:GROUPS]]

    def look_up(self, groups: list[list[Any]], graphs: Graphs, climb: Climb) -> None:
        """Finds the holders of some tensors of each group."""
        climb.own.update(map(id, groups))
        samples = [some(it) for it in groups]
        climb.own.update(map(id, samples))
        chains = iter(climb.chains(tuple(it for group in samples for it in group)))
        for group, of_group in zip(groups, samples):
            for _ in of_group:
                found = [(it, holder_of(it, self.known, graphs)) for it in best(next(chains))]
                if found:
                    # A list is a better answer than the variable that contains its latest tensor.
                    self.add(*max(found, key=lambda it: it[1].tensors), len(group) // len(of_group))

    def add(self, chain: Chain, holder: Holder, times: int) -> None:
        """Adds the holder of a sampled tensor, with everything that its container keeps, or else with `times` times the
        bytes of the tensor.
        """
        part = parts(chain)[0]
        if part.kind == "traceback":
            holder = dataclasses.replace(holder, text=self.with_others(chain, part, holder.text))
        key = masked(holder.text if part.kind == "traceback" else text_of(chain))
        if part.kind == "unknown":
            return  # mostly the arguments of a running call
        is_variable = part.owner is None and part.kind in ("local", "global", "thread")
        if is_variable and (part.many is None or holder.tensors < FEW):
            self.plain.add(key)
        before = self.found.get(key)
        if part.many is None and key not in self.plain:
            tensors, size = times * holder.tensors, times * holder.bytes
            if before is not None:
                tensors, size = tensors + before.tensors, size + before.bytes
            self.found[key] = dataclasses.replace(holder, text=masked(holder.text), tensors=tensors, bytes=size)
        elif before is None or before.bytes < holder.bytes:
            self.found[key] = holder

    def with_others(self, chain: Chain, part: Part, text: str) -> str:
        """The text of a variable in a traceback, with the names of the other tensors in its frame, which the traceback
        keeps too.
        """
        frame, one = chain.objects[1], f"`{part.words[0]}`, a local of "
        if type(frame) is not FrameType or not text.startswith(one):
            return text
        names = [
            name for name, it in locals_of(frame) if self.known.is_tensor(it) and self.known.is_on(it, self.device)
        ]
        shown = names[:NAMES] + ["…"] * (len(names) > NAMES)
        return f"`{'`, `'.join(shown)}`, locals of {text[len(one) :]}" if len(names) > 1 else text


def masked(text: str) -> str:
    """A holder's text without its indices."""
    return re.sub(r"\[\d+\]", "[…]", text)


def some(group: list[Any]) -> list[Any]:
    """The first, the middle and the last tensor of a group."""
    last = len(group) - 1
    return [group[at] for at in sorted({last * nth // (SAMPLES - 1) for nth in range(SAMPLES)})]
