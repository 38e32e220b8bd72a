"""Decides for which requests the recorded history contains a Python stack. A stack costs the host 1 to 4 µs. If the
step is GPU-bound, stacks take no extra time; with small kernels, they take up to a sixth of a step.

At first, all requests have a stack. After FIRST steps, windows of steps with and without stacks alternate. If the
windows show, beyond the noise, that stacks make steps longer by at most MOST, all steps keep their stacks.
Otherwise, from then on only one step in EVERY has stacks, and so does the code after a call to `eval`, because an
evaluation may need more memory than the steps before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

FIRST = 20  # the number of steps that all have stacks
WINDOW, WINDOWS = 4, 12  # steps per window, and the number of windows
MOST = 0.04
EVERY = 16


class Stacks:
    """Decides which steps of this process have stacks."""

    def __init__(self, torch: Any, record: Callable[[bool], None]) -> None:
        self.record = record  # the function that turns stacks on (True) or off (False)
        self.count = 0
        self.before: float | None = None
        self.times: list[list[float]] = [[] for _ in range(WINDOWS)]  # by window; even windows have stacks
        self.are_on, self.are_sampled = True, False
        kind, stacks = torch.nn.Module, self
        original = kind.eval

        def eval(self: Any) -> Any:
            stacks.switch(True)
            return original(self)

        eval.__wrapped__ = original  # type: ignore[attr-defined]
        kind.eval = eval

    def switch(self, on: bool) -> None:
        """Turns stacks of requests on or off."""
        if on != self.are_on:
            self.are_on = on
            self.record(on)

    def stepped(self) -> None:
        """Called after each step of the optimizers."""
        now, before = time.perf_counter(), self.before
        self.before, self.count = now, self.count + 1
        probed = self.count - FIRST - 1
        if self.are_sampled:
            self.switch(self.count % EVERY == 0)
        elif 0 <= probed < WINDOW * WINDOWS:
            # The first step of a window does not count, because switching makes it slower.
            if probed % WINDOW and before is not None:
                self.times[probed // WINDOW].append(now - before)
            self.switch((probed + 1) // WINDOW % 2 == 0)
        elif probed == WINDOW * WINDOWS:
            self.are_sampled = not are_free(self.times)
            self.switch(not self.are_sampled)


def are_free(times: list[list[float]]) -> bool:
    """Whether stacks make steps longer by less than MOST. The difference counts as the mean over all pairs of
    neighbouring windows with and without stacks, plus two standard errors.
    """
    levels = [sorted(it)[len(it) // 2] for it in times]
    slower = [levels[it + it % 2] / levels[it + 1 - it % 2] - 1 for it in range(WINDOWS - 1)]
    mean = sum(slower) / len(slower)
    error: float = (sum((it - mean) ** 2 for it in slower) / (len(slower) - 1) / len(slower)) ** 0.5
    return mean + 2 * error < MOST
