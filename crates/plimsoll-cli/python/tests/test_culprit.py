"""Which technique a failure is blamed on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from plimsoll.techniques import context  # noqa: E402


def raised_in(*files: str) -> BaseException:
    """An exception that code in the last file raised, which code in the file before it called, and so on."""
    source = "def call(inner):\n    if inner: inner[0](inner[1:])\n    else: raise RuntimeError('no driver')\n"
    calls: list[Any] = []
    for file in files:
        namespace: dict[str, Any] = {}
        exec(compile(source, file, "exec"), namespace)
        calls.append(namespace["call"])
    with pytest.raises(RuntimeError) as caught:
        calls[0](calls[1:])
    return caught.value


def test_an_observer_is_not_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "active", [SimpleNamespace(name="checkpoint")])
    observers = f"{context.FROZEN}observers>"
    torch_file = "/venv/site-packages/torch/nn/modules/module.py"
    assert context.culprit(raised_in("train.py", torch_file, observers, torch_file)) is None
    technique = f"{context.FROZEN}checkpoint>"
    monkeypatch.setitem(__import__("sys").modules, "plimsoll.techniques.checkpoint", SimpleNamespace())
    assert context.culprit(raised_in("train.py", observers, technique, torch_file)) == "checkpoint"
