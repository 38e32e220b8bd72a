"""The programs whose snapshots make.py keeps: as people write them, with what is known of each.

They are in modules by kind; `base` holds what they share.
"""

from . import leaks, out_of_memory, pools, ranks, steps, training
from .base import SCENES

__all__ = ["SCENES", "leaks", "out_of_memory", "pools", "ranks", "steps", "training"]
