"""Expandable segments: the allocator maps pages into a few growing segments, which fragment less. The numbers are
identical.
"""

from __future__ import annotations

from typing import Any


class Expandable:
    """Expandable segments of PyTorch's allocator."""

    name = "expandable"

    def __init__(self, value: int | None) -> None:
        pass

    def begin(self) -> None:
        import os

        # PyTorch reads these variables at the first use of CUDA; versions before 2.9 read only the second. The launcher
        # has set them, except in a process that was forked for this set of techniques.
        names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
        settings = {name: os.environ.get(name) or os.environ.get(names[0]) or "" for name in names}
        for name, own in settings.items():
            if "expandable_segments:True" not in own:
                own = f"{own},expandable_segments:True".lstrip(",")
            os.environ[name] = own

    def report(self) -> dict[str, Any]:
        return dict(
            applied=True,
            detail="",
            lines=[f"# before Python starts: export {self.variable()}=expandable_segments:True"],
        )

    def variable(self) -> Any:
        """The environment variable that this PyTorch reads."""
        import torch

        new = hasattr(torch._C, "_accelerator_setAllocatorSettings")
        return "PYTORCH_ALLOC_CONF" if new else "PYTORCH_CUDA_ALLOC_CONF"
