"""Prints the calls that PyTorch 2.15 makes to a private pool's own allocator: the numbers in ../segment_allocator.rs.

Run on the oracle (shared/tools/oracle): DIR/fk.sh python segment_allocator.py
Each printed line has the calls since the last one (`+bytes` allocated, `-bytes` freed, @stream), then allocated and
reserved bytes, and the pool's blocks.
"""

import ctypes
import os
import subprocess
import tempfile

import torch

MIB = 1 << 20
SOURCE = r"""
#include <stddef.h>
#include <sys/types.h>
#include <stdio.h>
static size_t next = 0x100000000000, room = (size_t)-1;
static char text[1 << 16], *end = text;
void set_room(size_t bytes) { room = bytes; }
const char *calls(void) { *end = 0; end = text; return text; }
void *make(ssize_t bytes, int device, void *stream) {
  if ((size_t)bytes > room) { end += sprintf(end, "+%zd refused ", bytes); return 0; }
  void *at = (void *)next; next += bytes; room -= bytes;
  end += sprintf(end, "+%zd@%d ", bytes, stream != 0); return at;
}
void take(void *at, size_t bytes, int device, void *stream) { room += bytes; end += sprintf(end, "-%zd@%d ", bytes, stream != 0); }
"""
path = tempfile.mkdtemp()
open(f"{path}/a.c", "w").write(SOURCE)
subprocess.check_call(["cc", "-shared", "-fPIC", "-w", "-o", f"{path}/a.so", f"{path}/a.c"])
lib = ctypes.CDLL(f"{path}/a.so")
lib.calls.restype, lib.set_room.argtypes = ctypes.c_char_p, [ctypes.c_size_t]


def alloc(n):
    return torch.empty(n, dtype=torch.uint8, device="cuda")


def tell(what):
    s, blocks = torch.cuda.memory_stats(), []
    for seg in torch.cuda.memory_snapshot():
        if tuple(seg["segment_pool_id"]) == tuple(pool.id):
            blocks.append(
                " ".join(f"{b['size']}{'H' if b['state'] == 'active_allocated' else ''}" for b in seg["blocks"])
                + (" expandable" if seg["is_expandable"] else "")
            )
    print(
        f"{what}: {lib.calls().decode().strip() or '-'} | {s['allocated_bytes.all.current']} {s['reserved_bytes.all.current']}"
        f" retries {s['num_alloc_retries']} ooms {s['num_ooms']} made {s['num_device_alloc']} freed {s['num_device_free']} | {'; '.join(blocks)}"
    )


torch.cuda.init()
custom = torch.cuda.memory.CUDAPluggableAllocator(f"{path}/a.so", "make", "take")
pool = torch.cuda.MemPool(custom.allocator())
side = torch.cuda.Stream()
with torch.cuda.use_mem_pool(pool):
    x = alloc(3 * MIB)
    tell("x 3M")
    y = alloc(100)
    tell("y 100")
    with torch.cuda.stream(side):
        z = alloc(11 * MIB)
        tell("z 11M on another stream")
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    w = alloc(30 * MIB)
    tell("w 30M, expandable_segments on")
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    lib.set_room(19 * MIB)
    v = alloc(17 * MIB)
    tell("v 17M of what x left, room for 19M")
    try:
        alloc(20 * MIB)
    except torch.OutOfMemoryError as why:
        tell("20M")
        print(" ...", str(why).split("variables)")[-1])
d = alloc(3 * MIB)
tell("d 3M from the device")
del x, y, z, w, v
torch.cuda.empty_cache()
tell("all freed, cache emptied")
torch.cuda.memory.set_per_process_memory_fraction(0.001)
with torch.cuda.use_mem_pool(pool):
    lib.set_room(1 << 40)
    try:
        alloc(200 * MIB)
    except torch.OutOfMemoryError as why:
        tell("200M beyond the limit")
        print(" ...", str(why).split("variables)")[-1])
torch.cuda.memory.set_per_process_memory_fraction(1.0)
i = pool.id
del pool


class pool:
    id = i


tell("pool dropped")
os._exit(0)
