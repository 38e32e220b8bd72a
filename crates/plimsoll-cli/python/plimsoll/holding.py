"""Finds the objects that keep a tensor alive: `holders`.

>>> import plimsoll, torch
>>> class Trainer:
...     history = []
>>> Trainer.history.append(torch.ones(2))
>>> print(*plimsoll.holders(Trainer.history[0]))  # doctest: +SKIP
`Trainer.history` (list of 1 tensor), an attribute of the class
"""

from __future__ import annotations

import sys
from typing import Any

from ._holding.climb import Chain, Climb
from ._holding.holder import Holder, best, holder_of, text_of
from ._holding.live import Tensors
from ._holding.objects import is_a

UNKNOWN = "no object that Python's garbage collector tracks: C++ code, or an object frozen by gc.freeze(), holds it"


def holders(tensor: Any) -> list[Holder]:
    """Returns what keeps this tensor's memory allocated: variables, containers, attributes, closures, tracebacks, graphs.

    The search takes a tenth of a second in most programs, and a few seconds at most. It does not call the program's
    code, keeps no references, and allocates nothing on the GPU. A tensor that shares the memory with this one has its
    own holders.
    """
    torch = sys.modules.get("torch")
    if torch is None or not is_a(tensor, torch.Tensor):
        raise TypeError("holders() takes a tensor")
    known = Tensors(torch)
    size = known.storage(tensor)[1]
    with known.quiet():
        found = [holder_of(it, known) for it in chains(tensor)]
        owner, root = known.owner_of_gradient(tensor), root_of_graph(tensor, known)
        for kind, words, above in (("gradient", "`.grad`", owner), ("graph", "the autograd graph", root)):
            named = [] if above is None else chains(above)[:1]
            found += [Holder(kind, f"{words} of {text_of(it)}", 1, size) for it in named]
    return list(dict.fromkeys(found)) or [Holder("unknown", UNKNOWN, 1, size)]


def chains(obj: Any) -> list[Chain]:
    """The most informative chains from an object up to names, as `best` chooses them: at most 8."""
    return best(Climb().chains((obj,))[0])


def root_of_graph(tensor: Any, known: Tensors) -> Any:
    """Another tensor whose autograd graph saves this tensor's memory; None if there is none."""
    address = known.storage(tensor)[0]
    others = [it for it in known.all() if it is not tensor]
    return next((root for root, saved in known.graphs(others) if address in saved), None)
