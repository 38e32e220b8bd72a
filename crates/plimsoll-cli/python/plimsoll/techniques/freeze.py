"""Trains only the last of the model's repeated blocks and the layers after it, such as the head; all other layers
are frozen, and need no gradients, no optimizer states and no saved activations. Changes which parameters are
trained.
"""

from __future__ import annotations

from typing import Any

from . import blocks, context, trained


class Freeze:
    """Freezes all parameters except those of the last block and of the layers after it."""

    name = "freeze"

    def __init__(self, value: int | None) -> None:
        self.details: list[str] = []
        self.lines: list[str] = []

    def first(self, root: Any) -> None:
        trained.check(self.name, root)
        kept = last_modules(root)
        if not kept:
            context.refuse(self.name, "the model has no last block or layer that could be trained alone")
        own = {id(parameter) for _, module in kept for parameter in module.parameters()}
        frozen = trained.freeze(it for it in root.parameters() if id(it) not in own)
        paths = [path for path, _ in kept]
        self.details.append(f"all but {', '.join(paths)}: {trained.percent(root, frozen)}")
        names = ", ".join(blocks.attribute(path) for path in paths)
        self.lines += [
            "model.requires_grad_(False)  # before the optimizer is made",
            f"for module in ({names},):",
            "    module.requires_grad_(True)",
        ]

    def report(self) -> dict[str, Any]:
        if not self.details:
            return dict(applied=False, detail=context.untrained(), lines=[])
        return dict(applied=True, detail="; ".join(self.details), lines=self.lines)


def last_modules(root: Any) -> list[tuple[str, Any]]:
    """The last repeated block and the modules with parameters after it; without blocks, the last module with
    parameters. Empty if that is the whole model.
    """
    leaves = [(path, it) for path, it in root.named_modules() if path and any(True for _ in it.parameters(False))]
    found = [(path, it) for path, it in blocks.find(root) if any(True for _ in it.parameters())]
    if not found:
        return leaves[-1:] if len(leaves) > 1 else []
    path, block = found[-1]
    inside = set(block.modules())
    places = [nth for nth, (_, it) in enumerate(leaves) if it in inside]
    before = {id(parameter) for _, it in leaves[: places[0]] for parameter in it.parameters(False)}
    after = leaves[places[-1] + 1 :]
    # A head that shares the embedding's weight is frozen as well.
    free = [(path, it) for path, it in after if not any(id(parameter) in before for parameter in it.parameters(False))]
    return [(path, block), *free]
