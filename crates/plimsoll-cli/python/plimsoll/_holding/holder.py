"""Describes a chain of objects in words, with the bytes that a container in the chain keeps."""

from __future__ import annotations

import collections
import dataclasses
import gc
from collections.abc import Mapping
from types import MappingProxyType

from ..frames import is_library
from .climb import Chain, Local
from .live import Tensors
from .naming import parts
from .objects import is_a, kind_of

MOST = 8  # the maximum number of holders of one tensor
Graphs = Mapping[int, Mapping[int, int]]  # by a tensor's address: storages and their bytes


@dataclasses.dataclass(frozen=True)
class Holder:
    """An object that keeps a tensor's memory allocated.

    ``kind`` is ``local``, ``global``, ``class attribute``, ``closure``, ``default argument``, ``function attribute``,
    ``generator``, ``traceback``, ``thread`` (a local variable of a function that runs in another thread), ``cycle``
    (only the garbage collector frees the tensor), ``gradient``, ``graph`` (an autograd graph saves it), or ``unknown``
    (no name in Python leads to the tensor). ``tensors`` and ``bytes`` count all tensors that the same list or
    dictionary keeps.
    """

    kind: str
    text: str
    tensors: int
    bytes: int
    left_bytes: int | None = None  # by how many bytes the holder will still grow, if it has a limit that is known

    def __str__(self) -> str:
        return self.text


def best(found: list[Chain]) -> list[Chain]:
    """The most informative group of chains, at most MOST of them: the chains that lead to a name in the program; if
    there are none, the chains that lead to a name in a library; if there are none, the chains that are not in a cycle;
    otherwise all chains.
    """
    named = [it for it in found if it.root is not None or len(it.objects) > 1 and is_a(it.objects[-1], type)]
    own = [it for it in named if not (isinstance(it.root, Local) and is_library(it.root.file))]
    alive = [it for it in found if not it.is_garbage]
    return (own or named or alive or found)[:MOST]


def text_of(chain: Chain, content: str = "") -> str:
    """Describes a chain in at most two expressions, the inner one first."""
    inner, *outer = parts(chain)
    words = [inner.text(content)] + [it.text() for it in outer[:1]]
    text = ", held by ".join(it for it in words if it)
    if chain.is_garbage and not gc.isenabled():
        text += ", and the collector is off (gc.disable())"
    return text


def holder_of(chain: Chain, known: Tensors, graphs: Graphs = MappingProxyType({})) -> Holder:
    """The holder that a chain leads to. `graphs` maps the addresses of tensors to the storages that the tensors' graphs
    keep.
    """
    inner, tensor = parts(chain)[0], chain.objects[0]
    tensors, storages = known.content(inner.many[0]) if inner.many else ({id(tensor)}, dict([known.storage(tensor)]))
    total, count = sum(storages.values()), len(tensors)
    for it in tensors & graphs.keys():
        storages.update(graphs[it])
    content = [f"{kind_of(inner.many[0])} of {count} tensor{'' if count == 1 else 's'}"] if inner.many else []
    if inner.many and type(inner.many[0]) is collections.deque and inner.many[0].maxlen is not None:
        content.append(f"of at most {inner.many[0].maxlen}")
    if sum(storages.values()) > 2 * total:
        content.append("with its autograd graph" if count == 1 else "with their autograd graphs")
    kind = "cycle" if chain.is_garbage else inner.kind
    return Holder(kind, text_of(chain, " ".join(content)), count, sum(storages.values()))
