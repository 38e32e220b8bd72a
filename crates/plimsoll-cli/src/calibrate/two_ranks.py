"""Prints the GPU memory that rank 0 of two takes at each first use of NCCL: one JSON line each.

python -m torch.distributed.run --standalone --nproc-per-node 2 two_ranks.py
"""

import json
import os

import torch
import torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)


def show(stage):
    torch.cuda.synchronize()
    dist.barrier(group=host)
    free, total = torch.cuda.mem_get_info()
    if rank == 0:
        outside = total - free - torch.cuda.memory_reserved()
        print(json.dumps({"stage": stage, "outside": outside}), flush=True)


dist.init_process_group("cpu:gloo,cuda:nccl")
host = dist.new_group(backend="gloo")
x = torch.ones(1 << 20, device="cuda")
x.add_(1)
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    x.add_(1)
show("streams")
dist.all_reduce(x)
show("first all_reduce")
second = dist.new_group([0, 1], backend="nccl")
dist.all_reduce(x, group=second)
show("second group")
dist.all_to_all_single(x.clone(), x)
show("all_to_all")
dist.destroy_process_group()
