# The technique offload-disk: the same bits, no files left, and a clear error where the disk is full. It patches classes of
# PyTorch, so it is tested in a separate process.

import errno
import os
import signal
import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import contextlib, os, signal, sys, torch
from plimsoll import techniques
from plimsoll.techniques import context

class Host:
    unread = staticmethod(contextlib.nullcontext)

def trained(steps=4):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(6)])
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for step in range(steps):
        loss = model(torch.randn(5000 + 100 * (step % 2), 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [it.detach().clone() for it in model.parameters()]

plain = trained()
techniques.install(torch)
techniques.activate({"offload-disk": None}, Host())
moved = trained()
assert plain[0] == moved[0] and all(map(torch.equal, plain[1], moved[1]))
row, = techniques.report()
assert row["applied"] and row["bytes"] > 1 << 20 and "offload-disk" in row["lines"][-1], row
files = context.active[0].buffers
assert files.folder == sys.argv[1] and files.bytes == sum(size * len(it) for size, it in files.free.items()), files.bytes
before = files.bytes
trained(8)
assert files.bytes == before  # buffers are used again
if "kill" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("ends", ["well", "kill"])
def test_saved_tensors_in_files_keep_the_bits_and_leave_no_files(tmp_path, ends):
    environment = {**os.environ, "PLIMSOLL_OFFLOAD_FOLDER": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), ends]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == (0 if ends == "well" else -signal.SIGKILL), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_that_names_the_folder_and_the_sizes(tmp_path):
    from plimsoll.techniques.disk import Files

    files = Files(str(tmp_path))
    with pytest.raises(OSError, match=f"in {tmp_path} and needs .* MiB more; .* MiB are free") as raised:
        files.take(1 << 60)
    assert raised.value.errno == errno.ENOSPC
    assert files.bytes == 0 and list(tmp_path.iterdir()) == []


def test_a_folder_in_memory_is_not_used():
    from plimsoll.techniques.disk import kind_of

    mounts = [("/", "ext4"), ("/tmp", "tmpfs"), ("/tmp/disk", "xfs"), ("/tmp/disk", "tmpfs")]
    kinds = [kind_of(it, mounts) for it in ("/home", "/tmp", "/tmpx", "/tmp/disk/a")]
    assert kinds == ["ext4", "tmpfs", "ext4", "tmpfs"]


def test_on_the_stand_in_all_tensors_share_one_buffer(tmp_path):
    from plimsoll.techniques.disk import Files

    files = Files(str(tmp_path), is_simulated=True)
    one, other = files.take(3 << 20)[0], files.take(1 << 20)[0]
    assert one.data_ptr() == other.data_ptr()
    assert files.take(5 << 20)[0].numel() == 5 << 20
