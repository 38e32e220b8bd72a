"""Several ranks."""

import os
import threading
import time

import torch
import torch.nn as nn

from .base import MIB, Model, adamw, limit, scene, tokens, train


def begin_ranks(r):
    import torch.distributed as dist
    if r.simulated:
        from torch.testing._internal.distributed.fake_pg import FakeStore
        torch.cuda.set_device(r.rank)
        dist.init_process_group("fake", store=FakeStore(), rank=r.rank, world_size=r.ranks)
    else:
        torch.cuda.set_device(r.rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", r.rank))


def ranks_fail(r, wrap):
    """Rank 1 has batches four times as large, and runs out of memory. Rank 0 waits for it forever."""
    begin_ranks(r)
    r.expect(fails=r.rank == 1, leak=False)
    r.start()
    model = wrap(Model(r).cuda(r.rank))
    optimizer = adamw(model)
    mark = f"{r.args.out}/{r.name}.failed"
    device = f"cuda:{r.rank}"

    def watch():
        while not os.path.exists(mark):
            time.sleep(0.1)
        time.sleep(1)
        r.take()
        r.save()
        os.remove(mark)
        os._exit(0)
    if r.rank == 0:
        threading.Thread(target=watch, daemon=True).start()
    batch = 32 if r.rank == 1 else 8
    train(r, model, optimizer, 3, given=lambda step: tokens(batch, device=device), look=-1, end=False)
    r.moment("after three steps", [model], [optimizer])
    limit(r, torch.cuda.memory_reserved(r.rank) + 16 * MIB, r.rank)
    try:
        batch *= 4 if r.rank == 1 else 1
        train(r, model, optimizer, 4, given=lambda step: tokens(batch, device=device), look=-1, end=False)
    except torch.cuda.OutOfMemoryError as error:
        r.failed(error)
        r.take()
        r.save()
        open(mark, "w").close()
        os._exit(0)
    time.sleep(60)


@scene(ranks=2, alone=True, real=True)
def data_parallel(r):
    def wrap(model):
        return nn.parallel.DistributedDataParallel(model, device_ids=[r.rank])
    ranks_fail(r, wrap)


@scene(ranks=2, alone=True)
def fully_sharded(r):
    def wrap(model):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cuda", (r.ranks,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    ranks_fail(r, wrap)
