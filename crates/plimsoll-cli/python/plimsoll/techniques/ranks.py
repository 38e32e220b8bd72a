"""The ranks that `run --devices N` starts for a single-process program. The program sees one GPU and none of
torchrun's variables, so it behaves as a single process; `join` connects the ranks.
"""

from __future__ import annotations

import os
from typing import Any

OWN = "PLIMSOLL_RANKS"  # set if `run --devices` started the ranks
HIDDEN = "PLIMSOLL_OWN_"  # prefix of variables that are hidden from the program
# The variables that torchrun sets, besides those that begin with TORCHELASTIC.
NAMES = (
    "RANK LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_NAME WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE MASTER_ADDR"
    " MASTER_PORT NODE_RANK"
).split()


def are_own() -> bool:
    """Whether `run --devices` started this rank."""
    return bool(os.environ.get(OWN)) and ("RANK" in os.environ or HIDDEN + "RANK" in os.environ)


def hide() -> None:
    """Hides torchrun's variables from the program, before the first use of CUDA."""
    visible = (os.environ.get("CUDA_VISIBLE_DEVICES") or "").split(",")
    local = os.environ.get("LOCAL_RANK", "0")
    if "RANK" in os.environ:
        own = visible[int(local)] if len(visible) > int(local) and visible[0] else local
        os.environ["CUDA_VISIBLE_DEVICES"] = own
    for name in [it for it in os.environ if it in NAMES or it.startswith("TORCHELASTIC")]:
        os.environ[HIDDEN + name] = os.environ.pop(name)


def number(name: str) -> int:
    """The value of one of torchrun's numeric variables, which the program does not see."""
    return int(os.environ[HIDDEN + name])


def seed() -> None:
    """Seeds the random generators that would otherwise differ between processes. PyTorch's generators already start
    with the same seed in every process.
    """
    import random

    import numpy

    port = os.environ.get(HIDDEN + "MASTER_PORT", "0")
    random.seed(port)
    numpy.random.seed(int(port))


def join(device: str) -> Any:
    """Connects the ranks. Returns the mesh of all ranks."""
    import torch
    from torch import distributed

    hidden = [it[len(HIDDEN) :] for it in os.environ if it.startswith(HIDDEN)]
    os.environ.update({it: os.environ[HIDDEN + it] for it in hidden})
    try:
        if not distributed.is_initialized():
            # If no device is given, NCCL guesses it from the rank's number.
            its_own = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else None
            distributed.init_process_group("nccl" if device == "cuda" else "gloo", device_id=its_own)
        return distributed.device_mesh.init_device_mesh(device, (number("WORLD_SIZE"),))
    finally:
        for it in hidden:
            del os.environ[it]
