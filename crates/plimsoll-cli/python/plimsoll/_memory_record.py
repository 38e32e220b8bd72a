"""Records a PyTorch program's GPU memory (PyTorch 2.1 and newer), for `plimsoll explain`.

Save it next to the program, as memory_record.py, and call it from there:

    import memory_record
    memory_record.start()                 # before the model is created
    for n, batch in enumerate(loader):
        with memory_record.step(n):       # optional: marks the steps
            ...

It leaves memory-rank0-oom.pickle when memory runs out, and memory-rank0.pickle when the program ends.
"""

import atexit
import os
import pickle
import sys
from typing import Any

import torch

ENTRIES = 1_000_000  # If there are more events, the oldest are dropped, perhaps with the peak.
STACKS = "python"  # "all" adds the operators of the backward pass, for slower runs and larger files.


def start() -> None:
    """Starts recording; call it before the model is created."""
    # An observer is attached to existing allocators, and there are none before init().
    torch.cuda.init()
    options = dict(enabled="all", context="alloc", stacks=STACKS, max_entries=ENTRIES)
    try:
        # Optimizers and step() below put their names into the recording.
        torch.cuda.memory._record_memory_history(global_record_annotations=True, **options)
    except TypeError:  # this PyTorch is older than that option
        torch.cuda.memory._record_memory_history(**options)
    # At the failure itself: when the program ends, the memory is already freed.
    torch._C._cuda_attach_out_of_memory_observer(lambda device, asked, total, free: dump("-oom"))
    atexit.register(dump)


def step(number: int) -> Any:
    """A context around a step, under the name that torch.profiler gives its steps."""
    return torch.profiler.record_function(f"ProfilerStep#{number}")


def dump(suffix: str = "") -> None:
    """Writes the snapshot: one file for each process of a job."""
    path = f"memory-rank{os.environ.get('RANK', '0')}{suffix}.pickle"
    try:
        # The file is complete or absent, even if the job is killed while it writes.
        snapshot = torch.cuda.memory._snapshot()
        # What plimsoll needs beyond PyTorch's own data; viewers accept any settings.
        snapshot.setdefault("allocator_settings", {})["plimsoll_record"] = {
            "max_entries": ENTRIES,
            "device_total_bytes": {
                str(device): torch.cuda.get_device_properties(device).total_memory
                for device in range(torch.cuda.device_count())
            },
        }
        with open(f"{path}.unfinished", "wb") as file:
            pickle.dump(snapshot, file, protocol=4)  # PyTorch's viewer reads no newer one.
        os.replace(f"{path}.unfinished", path)
        print(f"memory recorded: plimsoll explain {path}", file=sys.stderr)
    except Exception as why:  # A failed recording should not end the program.
        print(f"memory not recorded: {why}", file=sys.stderr)
