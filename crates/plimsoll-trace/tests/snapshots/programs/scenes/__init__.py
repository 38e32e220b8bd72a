"""The programs whose snapshots make.py saves. They are written as users write their programs, with the known
facts about each.

They are in modules by kind; `base` has the shared parts.
"""

from . import leaks, out_of_memory, pools, ranks, steps, training
from .base import SCENES

__all__ = ["SCENES", "leaks", "out_of_memory", "pools", "ranks", "steps", "training"]
