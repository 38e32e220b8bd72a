# The NVTX ranges of `run --nvtx`, in the order in which Nsight gets them. Runs in a separate process, because the hooks
# cannot be removed.

import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import types
import torch
from plimsoll._run.nvtx import Ranges

said, depth = [], 0
def push(text):
    global depth
    said.append(depth * "  " + text)
    depth += 1
def pop():
    global depth
    depth -= 1
torch.cuda.nvtx = types.SimpleNamespace(range_push=push, range_pop=pop, mark=lambda text: said.append(depth * "  " + "| " + text))
Ranges(torch)

class Fails(torch.nn.Module):
    def forward(self, x):
        raise ValueError

net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
opt = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.ones(2, 4)).sum().backward()
opt.step()
try:
    Fails()(1)
except ValueError:
    pass
assert depth == 0, depth
print("\\n".join(said))
"""

SAID = """\
| plimsoll run --nvtx
forward: Sequential
  forward: 0 (Linear)
  forward: 1 (ReLU)
backward
  | backward: 1 (ReLU)
  | backward: Sequential
  | backward: 0 (Linear)
optimizer: SGD.step
forward: Fails
"""


def test_ranges_are_named_by_layer_and_phase_and_end_when_a_module_fails():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (ran.stdout, ran.returncode) == (SAID, 0), ran.stderr
