"""The programs whose snapshots make.py saves. They are written as people write them, with what is known of each.

They are in modules by kind; `base` has the shared parts.
"""

from . import leaks, out_of_memory, pools, ranks, steps, training
from .base import SCENES

__all__ = ["SCENES", "leaks", "out_of_memory", "pools", "ranks", "steps", "training"]
