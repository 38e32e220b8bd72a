# The magics in an IPython shell of this process.

import pytest

pytest.importorskip("IPython")
from IPython.core.interactiveshell import InteractiveShell


@pytest.fixture
def shell():
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "plimsoll")
    yield shell
    InteractiveShell.clear_instance()


def has_gpu():
    torch = pytest.importorskip("torch")
    return torch.cuda.is_available()


CELL = """%%memory
import torch
kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
def temporary():
    return torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
x = temporary()
del x
"""


def test_a_cell_shows_its_peak_its_owners_and_its_growth(shell, capsys):
    if not has_gpu():
        pytest.skip("no CUDA GPU, and not on the stand-in")
    assert shell.run_cell(CELL).success
    out = capsys.readouterr().out
    assert "GPU 0: peak 192.00 MiB allocated" in out and "(+64.00 MiB)" in out, out
    peak, grown = out.split("still allocated:")
    assert "128.00 MiB" in peak and "128.00 MiB" not in grown, out
    assert "64.00 MiB" in grown and 'kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")' in grown, out
    assert shell.user_ns["kept"].numel() == 64 << 20


SECOND = """%%memory
second = torch.zeros(16 << 20, dtype=torch.uint8, device="cuda")
second * 2
"""


def test_a_second_cell_names_its_tensor_and_its_output_and_what_is_older(shell, capsys):
    if not has_gpu():
        pytest.skip("no CUDA GPU, and not on the stand-in")
    assert shell.run_cell(CELL, store_history=True).success
    capsys.readouterr()
    assert shell.run_cell(SECOND, store_history=True).success
    out = capsys.readouterr().out
    peak, grown = out.split("still allocated:")
    for place in (peak, grown):
        assert "16.00 MiB  tensor        second, line 1 of the cell" in place, out
        assert "16.00 MiB  output        Out[2], line 2 of the cell" in place, out
    assert "64.00 MiB  tensor        kept, line 2 of cell [1]" in peak and "64.00 MiB" not in grown, out


def test_what_has_no_line_is_in_the_table_of_what_grew(shell, capsys):
    if not has_gpu():
        pytest.skip("no CUDA GPU, and not on the stand-in")
    shell.run_cell("import torch\nw = torch.ones(1 << 20, device='cuda', requires_grad=True)", store_history=True)
    shell.run_cell("%%memory\n(w * 2).sum().backward()", store_history=True)
    grown = capsys.readouterr().out.split("still allocated:")[1]
    # The gradient, which one of PyTorch's own threads allocates.
    assert "4.00 MiB  unknown       without a Python stack" in grown, grown


@pytest.fixture(autouse=True)
def freed(shell):
    yield
    shell.reset(new_session=False)


def test_a_statement_is_measured_too(shell, capsys):
    if not has_gpu():
        pytest.skip("no CUDA GPU, and not on the stand-in")
    shell.run_cell("import torch")
    shell.run_cell("%memory x = torch.empty(32 << 20, dtype=torch.uint8, device='cuda'); del x")
    out = capsys.readouterr().out
    assert "GPU 0: peak 32.00 MiB allocated" in out and "(0 bytes)" in out, out


def test_a_cell_that_fails_shows_its_traceback_and_its_memory(shell, capsys):
    if not has_gpu():
        pytest.skip("no CUDA GPU, and not on the stand-in")
    shell.run_cell("%%memory\nimport torch\nraise KeyError('mine')")
    out = capsys.readouterr().out
    assert "KeyError" in out and "GPU 0: peak" in out, out


def test_without_a_gpu_the_cell_runs_and_the_reason_is_printed(shell, capsys, monkeypatch):
    from plimsoll import notebook

    monkeypatch.setattr(notebook, "missing", lambda: "no CUDA GPU")
    shell.run_cell("%%memory\nx = 41 + 1")
    assert "not measured: no CUDA GPU" in capsys.readouterr().out and shell.user_ns["x"] == 42


@pytest.mark.parametrize("line", ["%%memory many\npass", "%memory"])
def test_what_is_not_understood_prints_the_usage(shell, capsys, line):
    shell.run_cell(line)
    assert "usage: %%memory" in capsys.readouterr().out
