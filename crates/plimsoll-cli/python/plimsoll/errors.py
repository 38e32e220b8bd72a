"""The exceptions of this package. Each contains the message and the exit code of the program ``plimsoll``."""

from __future__ import annotations

from typing import Any

__all__ = [
    "IncompleteError",
    "PlimsollError",
    "ProgramError",
    "RefusedError",
    "UnreadableError",
    "UsageError",
]


class PlimsollError(Exception):
    """The base class of the other exceptions.

    ``exit_code`` is the exit code of the program ``plimsoll``, if it ran, and ``answer`` is the JSON that it printed,
    if any.
    """

    exit_code: int | None
    answer: dict[str, Any] | None

    def __init__(self, message: str, *, exit_code: int | None = None, answer: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.answer = answer


class UsageError(PlimsollError, ValueError):
    """An argument was not understood (exit code 2)."""


class UnreadableError(PlimsollError):
    """Input could not be read, or output could not be written (exit code 3)."""


class IncompleteError(PlimsollError):
    """The program ``plimsoll`` gave no complete answer (exit code 4)."""


class ProgramError(PlimsollError):
    """The user's program failed for a reason other than memory (exit code 5)."""


class RefusedError(PlimsollError):
    """A technique cannot be applied to this model or program. The parameters have not changed.

    ``technique`` is the technique's name in ``plimsoll run --with``, and ``reason`` says why.
    """

    technique: str
    reason: str

    def __init__(self, technique: str, reason: str) -> None:
        super().__init__(f"{technique} cannot be applied: {reason}")
        self.technique = technique
        self.reason = reason


BY_EXIT_CODE: dict[int, type[PlimsollError]] = {
    2: UsageError,
    3: UnreadableError,
    4: IncompleteError,
    5: ProgramError,
}
