"""Prints what PyTorch 2.15 does when a private pool is restored to a checkpoint: the numbers in ../checkpoint.rs.

Run on the oracle (shared/tools/oracle): DIR/fk.sh python checkpoint.py
The scenarios are those of PyTorch's TestBlockStateAbsorption, without graphs. Each line printed is the pool's
segments as `offset: sizes in bytes, H for held`, offsets from the pool's first segment.
"""

import gc
import os

import torch

MIB = 1 << 20
dev = torch.cuda.current_device


class Pool:
    def __init__(self):
        self.id = torch.cuda.graph_pool_handle()

    def __enter__(self):
        torch._C._cuda_beginAllocateCurrentThreadToPool(dev(), self.id)

    def __exit__(self, *_):
        torch._C._cuda_endAllocateToPool(dev(), self.id)
        torch._C._cuda_releasePool(dev(), self.id)


def alloc(n):
    return torch.empty(n, dtype=torch.uint8, device="cuda")


def layout(pool):
    segs = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(pool.id)]
    base = min(s["address"] for s in segs)
    mark = {"active_allocated": "H", "active_pending_free": "P", "inactive": ""}
    return [
        f"{s['address'] - base:d}:" + "".join(f" {b['size']:d}{mark[b['state']]}" for b in s["blocks"]) for s in segs
    ]


def stats():
    s = torch.cuda.memory_stats()
    return [
        s[k]
        for k in (
            "allocation.all.current",
            "allocation.all.allocated",
            "allocated_bytes.all.current",
            "requested_bytes.all.current",
            "inactive_split.all.current",
            "inactive_split_bytes.all.current",
            "num_device_alloc",
        )
    ]


def scenario(name, before, after):
    """before(pool) makes tensors in the pool; then the checkpoint is taken; then after(tensors) makes changes."""
    torch.cuda.empty_cache()
    gc.collect()
    pool = Pool()
    torch._C._cuda_beginAllocateCurrentThreadToPool(dev(), pool.id)  # a user that stays, so the pool is not freed
    torch._C._cuda_endAllocateToPool(dev(), pool.id)
    live = before(pool)
    state = torch._C._cuda_getCheckpointState(dev(), pool.id)
    print(name)
    print("  checkpoint", layout(pool))
    live, stale = after(pool, live)
    print("  changed   ", layout(pool))
    ptrs = [t.untyped_storage()._cdata for t in stale]
    torch._C._cuda_setCheckpointPoolState(dev(), state, ptrs, [])
    print("  restored  ", layout(pool), stats())
    return pool, live, stale


keep = []


def simple(pool):
    with pool:
        a, b, c = alloc(3 * MIB), alloc(512), alloc(5 * MIB)
    del b
    return [a, c]


def change_simple(pool, live):
    with pool:
        d = alloc(4 * MIB)
    a, c = live
    return [], [a, c, d]


def middle(pool):
    with pool:
        x = [alloc(1 * MIB + 512) for _ in range(6)]
    del x[3], x[1]
    return x


def change_middle(pool, live):
    with pool:
        more = [alloc(2 * MIB), alloc(100)]
    return [], live + more


def contiguous(pool):
    with pool:
        x = [alloc(300 * 1024) for _ in range(5)]
    return x[1:3]


def change_contiguous(pool, live):
    with pool:
        more = [alloc(300 * 1024)]
    return [], live + more


torch.cuda.init()
alloc(1)
keep.append(scenario("simple", simple, change_simple))
keep.append(scenario("middle", middle, change_middle))
keep.append(scenario("contiguous", contiguous, change_contiguous))
os._exit(0)
