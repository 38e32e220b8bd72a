# What the techniques share in a process: which are active, the verb that runs the program, and refusals.

import contextlib
import sys

active = []  # techniques, the outermost first
host = None  # has `refused(name, reason)` and `unread()`; set by `activate`


def refuse(name, reason):
    # Ends the program: the technique cannot be applied to it.
    host.refused(name, reason)
    raise SystemExit(2)  # Only where the host has not ended the process.


def unread():
    # Copies of unknown values to the host are not the program's reads while this is open.
    return host.unread() if host is not None else contextlib.nullcontext()


def program_line():
    # The innermost line of the program, as `train.py:12`.
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_library(file):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def is_library(file):
    import os

    places = ("site-packages", "dist-packages", "<frozen", os.path.dirname(os.__file__))
    return any(place in file for place in places)


def wrapped_class(root):
    # Why calls inside this module cannot be changed; None if they can.
    for module in root.modules():
        kind = type(module).__name__
        if kind == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            return "torch.compile compiles the model"
        if kind in ("FullyShardedDataParallel", "DataParallel"):
            return f"the model is in {kind}"
    return None


def is_sharded(root):
    # FSDP2 replaces the class of a module by one named FSDP….
    return any(type(module).__name__.startswith(("FSDP", "FullySharded")) for module in root.modules())
