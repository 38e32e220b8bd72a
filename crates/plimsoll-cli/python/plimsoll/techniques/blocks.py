"""Finds the repeated blocks of a model: the entries of a container that have submodules and whose class occurs more
than once, and the model's other modules of such a class. In a model without such entries, the blocks are its attributes
(`self.down1`, `self.down2`) whose class occurs more than once.

If such modules are nested, only the outermost count. If a container is itself an entry (a stage of a ResNet), its
entries are searched instead. A module without a forward function (a ModuleList in a ModuleList) is never called, so it
is not a block.

If no class repeats, a single module may still be called repeatedly, like ALBERT's layer. `Repeats` finds such modules.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

CONTAINERS = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)


def find(root: Any) -> list[tuple[str, Any]]:
    """The repeated blocks of a model in the order of definition: [(path, block)]."""
    entries = {it for module in root.modules() if isinstance(module, CONTAINERS) for it in module.children()}
    others = {it for it in root.modules() if it is not root and not isinstance(it, CONTAINERS)}
    return outermost(root, of_classes(entries | others, repeated(entries))) or outermost(
        root, of_classes(others, repeated(others))
    )


def nested(root: Any) -> list[tuple[str, Any]]:
    """The repeated blocks inside the repeated blocks, such as the blocks of a network's stages. A block without inner
    blocks counts itself. Empty if no block has inner blocks.
    """
    found = []
    for path, block in find(root):
        found += [(f"{path}.{name}", it) for name, it in find(block)] or [(path, block)]
    return found if len(found) > len(find(root)) else []


def in_a_row(root: Any) -> list[tuple[str, Any]]:
    """The repeated blocks of a model, or else the modules of its longest `nn.Sequential`."""
    rows = [(path, it) for path, it in root.named_modules() if type(it) is torch.nn.Sequential]
    path, longest = max(rows, key=lambda row: len(row[1]), default=("", torch.nn.Sequential()))
    return find(root) or [(f"{path}.{name}" if path else name, it) for name, it in longest.named_children()]


def repeated(modules: Any) -> set[type]:
    """The classes that occur more than once among the modules that can be blocks."""
    kinds = [type(it) for it in modules if may_be_block(it)]
    return {kind for kind in kinds if kinds.count(kind) > 1}


def of_classes(modules: Any, kinds: Any) -> set[Any]:
    """The modules of these classes that can be blocks."""
    return {it for it in modules if type(it) in kinds and may_be_block(it)}


def may_be_block(module: Any) -> bool:
    """Whether a module can be called, and has submodules and parameters."""
    return (
        is_called(module) and next(module.children(), None) is not None and next(module.parameters(), None) is not None
    )


class Repeats:
    """Finds modules that are called repeatedly in one call to their model."""

    def __init__(self) -> None:
        # For each module: its model, and the module's path in the model.
        self.places: weakref.WeakKeyDictionary[Any, tuple[Any, str]] = weakref.WeakKeyDictionary()
        # The number of calls to each module in the current call to its model.
        self.calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def add(self, root: Any) -> None:
        """Watches this model for repeated calls from now on."""
        for path, it in root.named_modules():
            if it is not root and not isinstance(it, CONTAINERS) and may_be_block(it):
                self.places[it] = weakref.ref(root), path

    def begin(self) -> None:
        """Called when a call to a model begins."""
        self.calls.clear()

    def is_again(self, module: Any) -> bool:
        """Whether this is the second call to a watched module in the current call to its model."""
        if module not in self.places:
            return False
        self.calls[module] = self.calls.get(module, 0) + 1
        return self.calls[module] == 2


def outermost(root: Any, blocks: Any) -> list[tuple[str, Any]]:
    """The paths of these modules in the model, without modules that are inside others."""
    found: list[tuple[str, Any]] = []

    def search(path: str, module: Any) -> None:
        if module in blocks and not is_stage(module):
            if all(block is not module for _, block in found):
                found.append((path, module))
            return
        for name, child in module.named_children():
            search(f"{path}.{name}" if path else name, child)

    def is_stage(module: Any) -> bool:
        below = (it for it in module.modules() if it is not module)
        return isinstance(module, CONTAINERS) and any(it in blocks for it in below)

    search("", root)
    return found


def is_called(module: Any) -> bool:
    """Whether a module has a forward function."""
    return type(module).forward is not torch.nn.Module.forward


def expression(root: Any, paths: list[str]) -> str:
    """These blocks as a Python expression: `model.h[:4]`, or `[*model.layer1, *model.layer2[:2]]`."""
    pieces = []
    for parent in dict.fromkeys(path.rpartition(".")[0] for path in paths):
        names = [path.rpartition(".")[2] for path in paths if path.rpartition(".")[0] == parent]
        module = root.get_submodule(parent)
        if isinstance(module, CONTAINERS[:2]) and list(module._modules)[: len(names)] == names:
            end = "" if len(names) == len(module) else f"[:{len(names)}]"
            pieces.append(f"*{attribute(parent)}{end}")
        else:
            pieces += [attribute(f"{parent}.{name}" if parent else name) for name in names]
    return pieces[0][1:] if len(pieces) == 1 and pieces[0].startswith("*") else f"[{', '.join(pieces)}]"


def attribute(path: str) -> str:
    """The module at a path as a Python expression: `layers.0.mlp` as `model.layers[0].mlp`."""
    names = path.split(".") if path else []
    if any(not (it.isidentifier() or it.isdecimal()) for it in names):
        return f"model.get_submodule({path!r})"
    return "model" + "".join(f"[{it}]" if it.isdecimal() else f".{it}" for it in names)
