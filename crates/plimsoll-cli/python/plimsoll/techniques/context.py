"""The state that the techniques of a process share: the active techniques, the host (the command that runs the
program), refusals and failures.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from .. import frames

active: list[Any] = []  # the active techniques, the outermost first
host: Any = None  # has `refused(name, reason)`, `failed(name, failure)` and `unread()`; set by `activate`
is_eager = False  # whether compiled code runs operators one by one; set by no-compile
FROZEN = "<frozen plimsoll "  # prefix of our frames' file names
# The first line to add, if the code calls our functions.
IMPORT = "import plimsoll  # pip install ./crates/plimsoll-cli, in a checkout of Plimsoll"


def refuse(name: str, reason: str) -> NoReturn:
    """Ends the program because the technique cannot be applied to it."""
    host.refused(name, reason)
    raise SystemExit(2)  # This is reached only if the host has not ended the process.


def culprit(failure: BaseException) -> str | None:
    """The name of the technique that raised an exception; None if the program raised it, or ran out of memory."""
    import traceback

    import torch

    if isinstance(failure, torch.cuda.OutOfMemoryError):
        return None
    names = [it.name for it in active]
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(failure.__traceback__)]
    own = next((it for it in reversed(frames) if not is_around(it)), "")
    if type(failure).__name__ == "CheckpointError":
        return next((it for it in names if it.startswith("checkpoint") or it == "split"), None)
    if not own.startswith(FROZEN):
        return None
    # A file that several techniques share is not named after a technique, so the technique is read from a frame further
    # out.
    ours = [it[len(FROZEN) : -1].replace("_", "-") for it in reversed(frames) if it.startswith(FROZEN)]
    shared = {"lazy-logits": "chunked-loss", "autocast": "bf16", "again": "checkpoint", "memory-budget": "compile"}
    for name in ("checkpoint-nested", "checkpoint-segments"):
        if name in names:
            shared.update(checkpoint=name, again=name, segments=name)
    if "offload-disk" in names:
        shared.update(offload="offload-disk", disk="offload-disk")
    named = (shared.get(it, it) for it in ours)
    return next((it for it in named if it in names), next(iter(names), None))


def is_around(file: str) -> bool:
    """Whether a file belongs to a package, to the observers, which only call what the program called, or to `predict`'s
    wrappers around operators.
    """
    is_packages = "site-packages" in file or "dist-packages" in file or file == f"{FROZEN}observers>"
    return is_packages or (file.startswith(FROZEN) and f"{__package__}.{file[len(FROZEN) : -1]}" not in sys.modules)


def guarded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls the function. If a technique raises an exception, this ends the program, which might otherwise catch the
    exception and skip a training step.
    """
    try:
        return function(*args, **kwargs)
    except Exception as failure:
        name = culprit(failure)
        if name is not None and hasattr(host, "failed"):
            host.failed(name, failure)
        raise


def untrained() -> str:
    """The reason why a technique that acts on a model's calls did not see any call."""
    return "no module was called in training mode with gradients"


def unread() -> AbstractContextManager[None]:
    """A context in which copies of unknown values to the host do not count as the program's reads."""
    return host.unread() if host is not None else contextlib.nullcontext()


def program_line() -> str | None:
    """The innermost line of the program, such as `train.py:12`."""
    import os

    found = frames.program_line(sys._getframe(1))
    return found and f"{found[0].removeprefix(os.path.join(os.getcwd(), ''))}:{found[1]}"


def wrapped_class(root: Any) -> str | None:
    """The reason why calls inside this module cannot be changed; None if they can."""
    for module in root.modules():
        kind = type(module).__name__
        is_compiled = kind == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        if is_compiled and not is_eager:
            return "torch.compile compiles the model"
        if kind in ("FullyShardedDataParallel", "DataParallel"):
            return f"the model is in {kind}"
    return None


def is_sharded(root: Any) -> bool:
    """Whether FSDP2 shards a model. FSDP2 replaces the class of a module with a class named FSDP…."""
    return any(type(module).__name__.startswith(("FSDP", "FullySharded")) for module in root.modules())
