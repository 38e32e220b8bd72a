"""Makes the recordings in this folder with PyTorch, on a simulated device of 2 GiB.

    python make.py SCENE CONTEXT OUT.pickle.gz

SCENE is a function below, CONTEXT an argument of `_record_memory_history`. The repository has: retry, emptied, restart
and ring with `all` and `alloc`; oversize with PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:300; collected with
garbage_collection_threshold:0.5,per_process_memory_fraction:0.5. `num_alloc_retries` is 2 in retry and 0 in all others.
"""

import gzip
import os
import pickle
import sys

import torch


def start(entries=1_000_000):
    torch.cuda.memory._record_memory_history(
        enabled="all", context=sys.argv[2], stacks="python", max_entries=entries)


def take(mebibytes):
    return torch.empty(mebibytes << 20, dtype=torch.uint8, device="cuda")


def retry():
    keep = [take(200) for _ in range(3)]
    a = take(400)
    b = take(500)
    del a, b
    c = take(700)  # now 1500 MiB are reserved; the device has 2048
    d = take(100)
    del c
    return keep, d, take(720)


def emptied():
    for mebibytes in [100, 120, 140, 160]:
        x = take(mebibytes)
        del x
        torch.cuda.empty_cache()
    x = take(300)
    y = take(200)
    del x, y
    torch.cuda.empty_cache()
    return take(310)


def collected():
    keep = take(100)
    for mebibytes in [300, 320, 340, 360, 380, 400, 420]:
        x = take(mebibytes)
        y = take(mebibytes // 2)
        del x, y
    return keep


def oversize():
    a = take(400)
    b = take(500)
    keep = [take(300), take(300)]
    del a, b
    return keep, take(700)


def restart():
    first = [take(20) for _ in range(4)]
    torch.cuda.memory._record_memory_history(enabled=None)
    gap = take(50)
    start()
    more = [take(30) for _ in range(4)]
    del first[0], more[0], gap
    return first, more, [take(20) for _ in range(3)]


def ring():
    torch.cuda.memory._record_memory_history(enabled=None)
    start(entries=100)
    keep = []
    for n in range(60):
        keep.append(take(2 + n % 3))
        x = take(5)
        del x
        if n % 5 == 4:
            keep.pop(0)
    return keep


torch.zeros(1, device="cuda")
torch.cuda.empty_cache()
start()
held = globals()[sys.argv[1]]()
snapshot = torch.cuda.memory._snapshot()
entries = [entry for trace in snapshot["device_traces"] for entry in trace]
entries += [entry for segment in snapshot["segments"] for entry in [segment, *segment["blocks"]]]
for frame in (frame for entry in entries for frame in entry.get("frames") or []):
    path = frame["filename"]
    frame["filename"] = "site-packages" + path.split("site-packages")[1] if "site-packages" in path else os.path.basename(path)
print(torch.cuda.memory_stats()["num_alloc_retries"])
with gzip.GzipFile(sys.argv[3], "wb", mtime=0) as out:
    pickle.dump(snapshot, out, protocol=4)
