"""The answers of ``plimsoll explain``, ``plimsoll predict`` and ``plimsoll plan`` as dictionaries."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Union

from ._program import answer

Path = Union[str, "os.PathLike[str]"]


def explain(*snapshots: Path, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Explains a PyTorch memory snapshot: why memory ran out, or what used it at the peak.

    Several snapshots, or a folder, are the ranks of one job. ``arguments`` are further options of ``plimsoll explain``.
    The answer is its JSON (schema ``plimsoll.explain/1``)::

        answer = plimsoll.explain("snapshot.pickle")
        print(answer["verdict"]["text"])
        for row in answer["devices"][0]["held"]["by_line"]:
            print(row["bytes"], row["category"], row["line"])

    Raises ``UnreadableError`` if a file cannot be read.
    """
    if not snapshots:
        raise TypeError("explain() needs a snapshot")
    return answer(["explain", "--json", *arguments, "--", *(os.fspath(it) for it in snapshots)])


def predict(
    command: Sequence[Path],
    *,
    gpu: str | None = None,
    devices: int | None = None,
    steps: int | None = None,
    whole: bool = False,
    with_: str | None = None,
    alloc_conf: str | None = None,
    timeout: float | None = None,
    find: str | None = None,
    snapshot: Path | None = None,
    arguments: Sequence[str] = (),
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    show_output: bool = False,
) -> dict[str, Any]:
    """Predicts the GPU memory of a PyTorch program, on a machine without a GPU.

    ``command`` is the program and its arguments. If it begins with a ``.py`` file, this Python runs it. The keyword
    arguments are options of ``plimsoll predict``; all other options go into ``arguments``. ``timeout`` is in seconds,
    and ``env`` adds variables. The program's output is discarded, or goes to stderr with ``show_output``. The answer is
    the JSON (schema ``plimsoll.predict/2``, and ``plimsoll.predict.find/1`` with ``find``)::

        answer = plimsoll.predict(["train.py", "--batch-size", "64"], gpu="T4")
        if answer["verdict"]["is"] != "fits":
            print(answer["summary"])

    If the program does not fit, that is an answer, not an error. Raises ``ProgramError`` if the program failed for
    another reason, and ``UsageError`` if an option was not understood.
    """
    options: list[str] = []
    add(options, "--gpu", gpu)
    add(options, "--devices", devices)
    add(options, "--steps", steps)
    add(options, "--with", with_)
    add(options, "--alloc-conf", alloc_conf)
    add(options, "--timeout", None if timeout is None else f"{math.ceil(timeout)}s")
    add(options, "--find", find)
    add(options, "--snapshot", None if snapshot is None else os.fspath(snapshot))
    if whole:
        options.append("--whole")
    arguments = ["predict", "--json", *options, *arguments, "--", *words(command)]
    return answer(arguments, show_output=show_output, cwd=cwd, env=env)


def plan(
    command: Sequence[Path],
    *,
    gpu: str | None = None,
    goal: str | None = None,
    numbers: str | None = None,
    arguments: Sequence[str] = (),
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    show_output: bool = False,
) -> dict[str, Any]:
    """Finds the techniques with which a PyTorch program fits a GPU, on a machine without a GPU.

    ``goal`` is ``fit``, ``memory``, ``speed`` or ``batch``. ``numbers`` is how much losses and parameters may change:
    ``identical``, ``rounding`` or ``changed``. All other arguments are like those of :func:`predict`. The answer is
    the JSON of ``plimsoll plan`` (schema ``plimsoll.plan/1``)::

        answer = plimsoll.plan(["train.py"], gpu="RTX-4090")
        print(answer["summary"], answer["command"], *answer["lines"] or [], sep="\\n")
    """
    options: list[str] = []
    add(options, "--gpu", gpu)
    add(options, "--goal", goal)
    add(options, "--numbers", numbers)
    arguments = ["plan", "--json", *options, *arguments, "--", *words(command)]
    return answer(arguments, show_output=show_output, cwd=cwd, env=env)


def add(options: list[str], name: str, value: object) -> None:
    """Adds an option, unless its value is None."""
    if value is not None:
        options += [f"{name}={value}"]


def words(command: Sequence[Path]) -> list[str]:
    """The command, with this Python's path in front if it begins with a Python file."""
    if isinstance(command, (str, bytes)):
        raise TypeError("the command is a list, such as ['train.py', '--batch-size', '64']")
    given = [os.fspath(it) for it in command]
    if not given:
        raise TypeError("the command is empty")
    return [sys.executable, *given] if given[0].endswith(".py") else given
