"""Makes optimizers step without the temporary copies of `foreach`: one parameter after another, or all in one fused
kernel. Rounding may differ.
"""

from __future__ import annotations

from typing import Any

from . import observers


class Setting:
    """Sets options of every optimizer that has them."""

    name: str
    options: dict[str, bool]

    def __init__(self, value: int | None) -> None:
        self.set = 0
        self.kinds: set[str] = set()
        self.others: set[str] = set()

    def begin(self) -> None:
        observers.listeners["made"].append(self.made)
        for optimizer in list(observers.optimizers):
            for options in [optimizer.defaults, *optimizer.param_groups]:
                self.change(optimizer, options)

    def suits(self, options: dict[str, Any]) -> bool:
        """Whether an optimizer with these options can be changed."""
        raise NotImplementedError

    def made(self, optimizer: Any, defaults: Any) -> None:
        self.change(optimizer, defaults)

    def change(self, optimizer: Any, options: dict[str, Any]) -> None:
        """Sets the options in the dictionary `options`, if it contains them."""
        if self.suits(options):
            options.update(self.options)
            self.set += 1
            self.kinds.add(type(optimizer).__name__)
        else:
            self.others.add(type(optimizer).__name__)

    def report(self) -> dict[str, Any]:
        text = ", ".join(f"{name}={value}" for name, value in self.options.items())
        if not self.set:
            names = ", ".join(sorted(self.others))
            why = (
                f"{names}: makes no such copies, or does not have this option"
                if names
                else "the program creates no optimizer"
            )
            return dict(applied=False, detail=why, lines=[])
        lines = [f"optimizer = torch.optim.{kind}(..., {text})" for kind in sorted(self.kinds)]
        return dict(applied=True, detail="", lines=lines)


class NoForeach(Setting):
    """Makes optimizers run without `foreach`."""

    name, options = "no-foreach", {"foreach": False}

    def suits(self, options: dict[str, Any]) -> bool:
        """Whether the optimizer makes these temporary copies; a fused optimizer does not."""
        return "foreach" in options and options["foreach"] is None and not options.get("fused")


class Fused(Setting):
    """Makes optimizers run in one fused kernel."""

    name, options = "fused", {"fused": True, "foreach": False}

    def suits(self, options: dict[str, Any]) -> bool:
        blocked = options.get("capturable") or options.get("differentiable") or options.get("foreach")
        return "fused" in options and not options["fused"] and not blocked
