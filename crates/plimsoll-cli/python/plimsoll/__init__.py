"""Plimsoll from Python: why GPU memory runs out, what a program needs, and what makes it fit.

>>> import plimsoll
>>> plimsoll.explain("snapshot.pickle")["verdict"]["text"]  # doctest: +SKIP

- :func:`explain`, :func:`predict` and :func:`plan` run the program ``plimsoll``, which the wheel installs, and return its
  JSON as a dictionary.
- :func:`record` writes a snapshot for ``explain``.
- :func:`holders` names what keeps a tensor alive.
- :func:`checkpoint_blocks` and the other techniques make a model use less memory.
- ``%load_ext plimsoll`` brings ``%%memory`` to a notebook, and ``@pytest.mark.memory`` limits the memory of a test.

PyTorch is imported only when it is needed.
"""

from typing import Any

from ._holding.holder import Holder
from .answers import explain, plan, predict
from .errors import (
    IncompleteError,
    PlimsollError,
    ProgramError,
    RefusedError,
    UnreadableError,
    UsageError,
)
from .holding import holders
from .memory_saving import (
    accumulate,
    adam_8bit,
    bf16,
    checkpoint_blocks,
    chunked_loss,
    expandable_segments,
    free_grads,
    fused,
    no_foreach,
    offload,
    offload_weights,
    split,
    step_in_backward,
)
from .recording import Recording, record

__all__ = [
    "Holder",
    "IncompleteError",
    "PlimsollError",
    "ProgramError",
    "Recording",
    "RefusedError",
    "UnreadableError",
    "UsageError",
    "accumulate",
    "adam_8bit",
    "bf16",
    "checkpoint_blocks",
    "chunked_loss",
    "expandable_segments",
    "explain",
    "free_grads",
    "fused",
    "holders",
    "no_foreach",
    "offload",
    "offload_weights",
    "plan",
    "predict",
    "record",
    "split",
    "step_in_backward",
]


def __getattr__(name: str) -> str:
    if name == "__version__":
        from ._program import version

        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(ipython: Any) -> None:
    """Called by IPython for ``%load_ext plimsoll``."""
    from .notebook import load

    load(ipython)
