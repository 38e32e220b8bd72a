"""Makes the snapshots in this folder: one small program, recorded in different ways that leave blocks without stacks.

    python make.py

Needs PyTorch with a GPU, or the stand-in of ../shared/tools/oracle.
"""

import gzip
import os
import subprocess
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
RECORDED = {
    "complete": dict(stacks="all"),
    "late": dict(),
    "ring": dict(max_entries=40),
    "no_context": dict(context=None),
    "state": dict(context="state"),
    "python": dict(stacks="python"),
    "never": None,
}


def work(name):
    options = RECORDED[name]
    if options is not None and name != "late":
        torch.cuda.memory._record_memory_history(**options)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
    x = torch.randn(256, 512, device="cuda")
    if name == "late":
        torch.cuda.memory._record_memory_history()
    for _ in range(2):
        model(x).square().mean().backward()
    path = os.path.join(HERE, f"{name}.pickle")
    torch.cuda.memory._dump_snapshot(path)
    with open(path, "rb") as plain:
        dump = plain.read()
    for folder in (HERE, sys.prefix, sys.base_prefix):  # remove local paths; the length must not change
        dump = dump.replace(folder.encode(), b"/" + b"x" * (len(folder) - 1))
    with gzip.GzipFile(path + ".gz", "wb", mtime=0) as packed:
        packed.write(dump)
    os.remove(path)
    os._exit(0)  # PyTorch 2.15 may abort at exit


if len(sys.argv) > 1:
    work(sys.argv[1])
else:
    for name in RECORDED:
        subprocess.run([sys.executable, __file__, name], check=True)
