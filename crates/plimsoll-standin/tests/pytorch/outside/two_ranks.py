"""Prints the GPU memory that each first use of NCCL needs outside PyTorch's allocator, on the first of two ranks.

    torchrun --nproc-per-node 2 two_ranks.py MODE

MODE selects environment variables; see MODES. The program prints one JSON line for each use. h100.jsonl has the lines from two
H100s with NVLink (NCCL 2.28.9, driver 580.159, NVLink multicast off).
"""

import json
import os
import sys

MODES = {
    "lazy": {},
    "eager": {},
    "buff": {"NCCL_BUFFSIZE": "1048576"},
    "chan": {"NCCL_MAX_NCHANNELS": "4"},
    "nop2p": {"NCCL_P2P_DISABLE": "1"},
    "socket": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
    "nocumem": {"NCCL_CUMEM_ENABLE": "0"},
    "connected": {"NCCL_RUNTIME_CONNECT": "0"},
}
mode = sys.argv[1]
os.environ.update(MODES[mode], NCCL_NVLS_ENABLE="0")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)


def show(stage):
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    outside = total - free - torch.cuda.memory_reserved()
    if rank == 0:
        print(json.dumps({"program": "two_ranks", "mode": mode, "stage": stage, "outside": outside}), flush=True)


torch.zeros(1 << 20, device="cuda").add_(1)
show("first kernel")
device = torch.device("cuda", rank) if mode == "eager" else None
dist.init_process_group("nccl", device_id=device)
show("init_process_group")
v = torch.ones(1 << 20, device="cuda")
dist.all_reduce(v)
show("all_reduce")
dist.broadcast(v, 0)
show("broadcast")
dist.all_gather_into_tensor(torch.empty(1 << 21, device="cuda"), v)
show("all_gather")
dist.reduce_scatter_tensor(torch.empty(1 << 19, device="cuda"), v)
show("reduce_scatter")
dist.all_to_all_single(v.clone(), v)
show("all_to_all")
dist.send(v, 1) if rank == 0 else dist.recv(v, 0)
show("send, recv")
exchange = [dist.P2POp(dist.isend, v, 1 - rank), dist.P2POp(dist.irecv, v.clone(), 1 - rank)]
for work in dist.batch_isend_irecv(exchange):
    work.wait()
show("batch_isend_irecv")
second = dist.new_group([0, 1])
dist.all_reduce(v, group=second)
show("second group, all_reduce")
third = dist.new_group([0, 1])
dist.all_to_all_single(v.clone(), v, group=third)
show("third group, all_to_all")
mesh = dist.init_device_mesh("cuda", (1, 2))
dist.all_reduce(v, group=mesh.get_group(1))
show("mesh dimension of 2")
dist.all_reduce(v, group=mesh.get_group(0))
show("mesh dimension of 1")
dist.barrier()
show("barrier")
