"""`plimsoll run --check`: measures the peaks of this process, and at the end runs plimsoll to compare them with the plan's."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from typing import Any

from .. import protocol

LEAST = 0.01  # smaller differences are not explained, so no snapshot is written for them


class Check:
    """The peaks of this process, and their comparison with a plan's peaks."""

    def __init__(self, torch: Any, plan: str, program: str, dump: Callable[[str], object] | None) -> None:
        self.torch, self.plan, self.program = torch, plan, program
        self.dump = dump  # writes a snapshot to a path; None if there is no history
        self.before: dict[int, list[int]] = {}  # peaks before the program reset its statistics, by device
        memory, original = torch.cuda.memory, torch.cuda.memory.reset_peak_memory_stats

        def reset_peak_memory_stats(*args: Any, **kwargs: Any) -> Any:
            self.before = self.peaks()
            return original(*args, **kwargs)

        memory.reset_peak_memory_stats = torch.cuda.reset_peak_memory_stats = reset_peak_memory_stats

    def peaks(self) -> dict[int, list[int]]:
        """Allocated and reserved peaks by device."""
        found = {}
        for device in range(self.torch.cuda.device_count()):
            stats = self.torch.cuda.memory_stats(device)
            now = [stats.get(f"{name}_bytes.all.peak", 0) for name in ("allocated", "reserved")]
            found[device] = [max(pair) for pair in zip(now, self.before.get(device, (0, 0)))]
        return found

    def compared(self) -> list[str]:
        """The lines to print; none if this process did not use the GPU."""
        peaks = self.peaks() if self.torch.cuda.is_initialized() else {}
        device = max(peaks, key=lambda it: peaks[it][1], default=None)
        if device is None or not peaks[device][1]:
            return []
        allocated, reserved = peaks[device]
        with open(self.plan) as file:
            planned = json.load(file)["planned"]["peak_allocated_bytes"]
        with tempfile.TemporaryDirectory(prefix="plimsoll-check-") as folder:
            snapshot = None
            if self.dump is not None and abs(allocated - planned) > LEAST * planned:
                snapshot = os.path.join(folder, "measured.pickle")
                self.dump(snapshot)
            measured = protocol.Measured(
                device=device, allocated_bytes=allocated, reserved_bytes=reserved, snapshot=snapshot
            )
            path = os.path.join(folder, "measured.json")
            with open(path, "w") as file:
                json.dump(measured, file)
            command = [self.program, "run", "--check", self.plan, "--measured", path]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return (done.stdout if done.returncode == 0 else done.stderr).rstrip().split("\n")
