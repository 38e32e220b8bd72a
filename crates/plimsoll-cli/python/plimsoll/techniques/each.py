"""Writes the code to add if the program has several models or several optimizers, with a line for each of them."""

from __future__ import annotations

MOST = 4  # the maximum number of lines


def model(call: str, acted: list[str], of: list[str]) -> list[str]:
    """The call for each model. `acted` lists the classes of the models that the technique acted on, and `of` the
    classes of all models.
    """
    return several(call, "model", acted) if len(of) > 1 else [call]


def optimizer(call: str, kinds: list[str]) -> list[str]:
    """The call for each of the program's optimizers, `kinds` lists the optimizers' classes."""
    return several(call, "optimizer", kinds) if len(kinds) > 1 else [call]


def several(call: str, variable: str, names: list[str]) -> list[str]:
    """A line for each name, or a loop if there are many."""
    if len(names) <= MOST:
        return [f"{call}  # {variable}: {name}" for name in names]
    counts = {name: names.count(name) for name in names}
    text = ", ".join(name if count == 1 else f"{count} of {name}" for name, count in counts.items())
    return [f"for {variable} in (...):  # {text}", f"    {call}"]
