# `plimsoll.predict` on real programs; needs PyTorch for CUDA, and no GPU.

import os
import sys

import pytest

torch = pytest.importorskip("torch")
if torch.version.cuda is None or "plimsoll_standin" in os.environ.get("LD_PRELOAD", ""):
    pytest.skip("needs a PyTorch for CUDA, and a process that is not on the stand-in", allow_module_level=True)

import plimsoll

PROGRAM = """
import sys, torch, plimsoll
nn = torch.nn
model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(6)]).cuda()
if "checkpoint" in sys.argv:
    plimsoll.checkpoint_blocks(model)
if "offload" in sys.argv:
    plimsoll.offload(model, least_bytes="1MiB")
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    loss = model(torch.randn(8192, 512, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if "fails" in sys.argv:
    raise KeyError("mine")
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def test_techniques_that_the_program_calls_itself_lower_the_predicted_peak(program):
    answers = [plimsoll.predict([program, *more], gpu="L4") for more in ([], ["checkpoint"], ["offload"])]
    assert all(it["verdict"]["is"] == "fits" for it in answers)
    plain, checkpointed, offloaded = (it["judged"]["peak_allocated_bytes"] for it in answers)
    assert checkpointed < plain * 0.6 and offloaded < plain * 0.8
    # Copies to the host do not count as the program's reads.
    assert answers[2]["reads"] == answers[0]["reads"]


def test_a_program_that_does_not_fit_is_an_answer(program):
    answer = plimsoll.predict([program], gpu="256MiB", arguments=["--context", "1MiB"])
    assert answer["verdict"]["is"] == "runs out" and answer["exit"] == 4


def test_a_program_that_fails_is_an_exception_with_its_traceback(program):
    with pytest.raises(plimsoll.ProgramError) as caught:
        plimsoll.predict([program, "fails"], gpu="L4", whole=True)
    if sys.version_info >= (3, 11):
        assert any("KeyError: 'mine'" in note for note in caught.value.__notes__)


def test_tests_with_a_memory_mark_run_without_a_gpu(tmp_path):
    path = tmp_path / "test_it.py"
    path.write_text(
        "import pytest, torch\n"
        '@pytest.mark.memory(peak_below="100MiB")\n'
        "def test_it():\n"
        "    import os\n"
        "    torch.empty(int(os.environ['SIZE']) << 20, dtype=torch.uint8, device='cuda')\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "plimsoll.pytest_plugin", "-p", "no:cacheprovider", path]
    assert plimsoll.predict(command, gpu="A100-80GB", whole=True, env={"SIZE": "50"})["verdict"]["is"] == "fits"
    with pytest.raises(plimsoll.ProgramError) as caught:
        plimsoll.predict(command, gpu="A100-80GB", whole=True, env={"SIZE": "200"})
    if sys.version_info >= (3, 11):
        assert any("at most 200.00 MiB were allocated" in note for note in caught.value.__notes__)
