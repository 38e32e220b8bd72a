"""What keeps memory that grows from step to step, or that is left when memory runs out, for `predict` and `run`."""

from __future__ import annotations

from typing import Any

from .. import protocol
from .holder import Holder
from .survey import Survey

ROWS = 3  # holders that are named
SHARE = 0.3  # of what has grown: a holder that keeps less is not named
LEAST = 0.1  # the same of all allocated bytes, if memory runs out
LOOKS = 3  # failed requests that are looked into: a program may catch thousands


class Growing:
    """Surveys of the devices whose memory grows; what keeps the growth, as last looked up."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.first: dict[int, tuple[int, Survey]] = {}  # by device, with the bytes that were allocated then
        self.found: dict[int, list[Holder]] = {}  # by device
        self.looks = 0

    def stepped(self, levels: dict[int, int], is_last: bool) -> None:
        """After a step: surveys the devices whose memory grows, at the first such step and at the last."""
        for device, level in levels.items():
            self.begins(device, level)
            if is_last:
                self.grew(device, level)

    def begins(self, device: int, level: int) -> None:
        """Memory grows, and this much is allocated now: the first time, takes a survey."""
        if device not in self.first:
            survey = self.survey(device)
            if survey is not None:
                self.first[device] = level, survey

    def grew(self, device: int, level: int) -> None:
        """Finds what keeps a good part of the memory allocated since the first survey."""
        before, first = self.first.get(device, (level, None))
        survey = self.survey(device) if first is not None and level > before else None
        if first is None or survey is None:
            return
        known = {key: it.bytes for key, it in first.found.items()}
        grown = {key: it for key, it in survey.found.items() if key in known}
        self.keep(device, [it for key, it in grown.items() if it.bytes - known[key] >= SHARE * (level - before)])

    def ran_out(self, device: int, level: int) -> None:
        """A request failed: finds what keeps the growth, or else much of all memory, except variables with a tensor or two."""
        self.looks += 1
        if self.looks > LOOKS:
            return
        self.grew(device, level)
        survey = self.survey(device) if not self.found.get(device) else None
        if survey is not None:
            many = [it for key, it in survey.found.items() if key not in survey.plain]
            self.keep(device, [it for it in many if it.bytes >= LEAST * level])

    def survey(self, device: int) -> Survey | None:
        """What keeps memory now; None if that cannot be found out, which must not fail the program."""
        try:
            return Survey(self.torch, device)
        except Exception:
            return None

    def keep(self, device: int, found: list[Holder]) -> None:
        """Keeps the largest for the report."""
        self.found[device] = sorted(found, key=lambda it: -it.bytes)[:ROWS]

    def rows(self) -> list[protocol.Holder]:
        """Rows for the report."""
        return [
            protocol.Holder(device=device, kind=it.kind, text=it.text, tensors=it.tensors, bytes=it.bytes)
            for device, found in self.found.items()
            for it in found
        ]
