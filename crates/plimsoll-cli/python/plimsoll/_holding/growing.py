"""Finds the owners of memory that grows from step to step, or that is live when memory runs out, for `predict` and `run`."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from .. import protocol
from .holder import Holder
from .survey import Survey

ROWS = 3  # the maximum number of holders to name
SHARE = 0.3  # a holder that keeps less than this part of the growth is not named
LEAST = 0.1  # the same part of all allocated bytes, when memory runs out
LOOKS = 3  # how many failed requests are examined: a program may catch thousands
SECONDS = 2.0  # the limit of CPU time for surveys before the last step


class Growing:
    """Finds the owners of growing memory by comparing two surveys of a device."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.first: dict[int, tuple[int, Survey]] = {}  # by device: the allocated bytes, and the first survey
        self.found: dict[int, list[Holder]] = {}  # by device: the holders to name
        self.latest: dict[int, list[Holder]] = {}  # the same, while memory grows and the last step has not come
        self.steps: dict[int, int] = {}  # by device: the steps since its first survey
        self.spent = 0.0  # CPU seconds of these surveys
        self.looks = 0  # failed requests that were examined

    def stepped(self, levels: dict[int, int], step: int, is_last: bool) -> float:
        """Called after a step with the memory level of each device whose memory grows. Takes a first survey of each
        such device, and another one if this is the last step. It is not known which step is the last one before the
        program ends, so there are also surveys after 1, 2, 4, 8, … steps. Returns the seconds that the surveys took.
        """
        begun = time.monotonic()
        for device in self.latest.keys() - levels.keys():
            del self.latest[device]
        for device, level in levels.items():
            self.begins(device, level)
            steps = self.steps[device] = self.steps.get(device, -1) + 1
            if is_last:
                self.grew(device, level)
            elif steps & (steps - 1) == 0 and steps and self.spent < SECONDS:
                began = time.thread_time()
                found = self.compared(device, level, self.survey(device))
                self.latest[device] = [dataclasses.replace(it, text=f"{it.text}, after step {step}") for it in found]
                self.spent += time.thread_time() - began
        return time.monotonic() - begun

    def begins(self, device: int, level: int) -> None:
        """Takes the first survey of a device whose memory grows, unless it was already taken."""
        if device not in self.first:
            survey = self.survey(device)
            if survey is not None:
                self.first[device] = level, survey

    def grew(self, device: int, level: int) -> None:
        """Finds the owners of memory that was allocated since the first survey of a device."""
        if level > self.first.get(device, (level, None))[0]:
            self.found[device] = self.compared(device, level, self.survey(device))

    def ran_out(self, device: int, level: int) -> None:
        """Called when a request has failed. Finds the owners of memory that has grown. If memory has not grown, names
        every holder of a large part of all memory, except plain variables, because plain variables keep the memory that
        the current step needs.
        """
        self.looks += 1
        survey = self.survey(device) if self.looks <= LOOKS else None
        if survey is None:
            return
        found = self.compared(device, level, survey)
        if not found:
            many = [it for key, it in survey.found.items() if key not in survey.plain]
            found = largest([it for it in many if it.bytes >= LEAST * level])
        self.found[device] = found

    def compared(self, device: int, level: int, survey: Survey | None) -> list[Holder]:
        """Compares a survey with the first survey of the device, if memory has grown since the first survey. Returns the
        owners of the growth.
        """
        before, first = self.first.get(device, (level, None))
        if first is None or survey is None or level <= before:
            return []
        known = {key: it.bytes for key, it in first.found.items()}
        grown = {key: it for key, it in survey.found.items() if key in known}
        return largest([it for key, it in grown.items() if it.bytes - known[key] >= SHARE * (level - before)])

    def survey(self, device: int) -> Survey | None:
        """Makes a survey of the current moment. Returns None if the survey fails, because a failure here must not end
        the program.
        """
        try:
            return Survey(self.torch, device)
        except Exception:
            return None

    def rows(self) -> list[protocol.Holder]:
        """Rows for the report."""
        return [
            protocol.Holder(device=device, kind=it.kind, text=it.text, tensors=it.tensors, bytes=it.bytes)
            for device, found in {**self.latest, **self.found}.items()
            for it in found
        ]


def largest(found: list[Holder]) -> list[Holder]:
    """The largest of these holders, which are named."""
    return sorted(found, key=lambda it: -it.bytes)[:ROWS]
