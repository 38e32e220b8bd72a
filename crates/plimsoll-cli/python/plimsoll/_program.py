"""Finds the program ``plimsoll`` that the wheel installs, runs it with ``--json``, and reads its answer."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .errors import BY_EXIT_CODE, PlimsollError, ProgramError

DISTRIBUTION = "plimsoll-gpu"
PROGRAM = "PLIMSOLL_PROGRAM"  # the variable that overrides the search


def program() -> str:
    """The path of the program ``plimsoll``.

    The variable ``PLIMSOLL_PROGRAM`` overrides the search. Without it, the search order is: the file that the wheel
    installed, then the folders in which Python installs programs, then ``PATH``.
    """
    configured = os.environ.get(PROGRAM)
    if configured:
        if not is_program(configured):
            raise PlimsollError(f"{PROGRAM}={configured} is not a program")
        return configured
    for place in places():
        if is_program(place):
            return place
    found = shutil.which("plimsoll")
    if found is None:
        raise PlimsollError(
            f"the program plimsoll is not installed next to {sys.executable}, and not in PATH:"
            f" pip install ./crates/plimsoll-cli in a checkout of Plimsoll, or set {PROGRAM} to its path"
        )
    return found


def version() -> str:
    """The version of the wheel. If no wheel is installed, the version of the program that was found."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        said = subprocess.run([program(), "--version"], capture_output=True, text=True, check=True)
        return said.stdout.split()[-1]


def places() -> Iterator[str]:
    """The paths at which the wheel may have installed the program, the most likely first."""
    try:
        files = importlib.metadata.files(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "plimsoll":
            yield os.path.normpath(str(file.locate()))
    yield os.path.join(sysconfig.get_path("scripts"), "plimsoll")
    if sys.version_info >= (3, 10):
        scheme = sysconfig.get_preferred_scheme("user")
        yield os.path.join(sysconfig.get_path("scripts", scheme), "plimsoll")
    # pip install --target
    yield os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin", "plimsoll")


def is_program(path: str) -> bool:
    """Whether this is an executable file."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def answer(
    arguments: Sequence[str],
    *,
    show_output: bool = False,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Runs the program with these arguments, which include ``--json``, and returns its answer.

    A report with exit code 4, for example one that says that a program does not fit, is an answer. A failure raises an
    exception.
    """
    command = [program(), *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if show_output else subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        cwd=cwd,
        env=None if env is None else {**os.environ, **env},
    ) as process:
        try:
            out, said = process.communicate()
        except KeyboardInterrupt:
            # Before it exits, the program ends the processes that it started.
            process.terminate()
            process.wait()
            raise
    return judged(process.returncode, out, said or "")


def judged(code: int, out: str, said: str) -> dict[str, Any]:
    """Returns the answer that the program printed, or raises the exception for its exit code."""
    try:
        value = json.loads(out)
    except ValueError:
        value = None
    if isinstance(value, dict):
        is_failure = value.get("schema") == "plimsoll.error/1"
        if code in (0, 1, 4) and not is_failure:
            return value
        message = str(value.get("summary") or f"plimsoll ended with code {code}")
        kind = BY_EXIT_CODE.get(code, PlimsollError)
        failure = kind(message, exit_code=code, answer=value)
        if kind is ProgramError and said and sys.version_info >= (3, 11):
            failure.add_note("\n".join(["the last lines of the program's output:", *said.rstrip().splitlines()[-20:]]))
        raise failure
    if code < 0:
        raise PlimsollError(f"plimsoll was ended by signal {-code}", exit_code=code)
    message = said.strip()
    if message.startswith("error: "):
        message = message[len("error: ") :]
    raise BY_EXIT_CODE.get(code, PlimsollError)(message or f"plimsoll ended with code {code}", exit_code=code)
