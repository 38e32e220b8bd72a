# Parts of `plimsoll predict` that need PyTorch, and no GPU.

import io
import os
import pathlib

import pytest

torch = pytest.importorskip("torch")

from plimsoll._predict import bounds, experts, failure, names, shadows, sparse
from plimsoll._run import gauges


def test_operators_with_a_bound_are_known_by_name_and_overload():
    aten = torch.ops.aten
    assert bounds.is_bounded(aten.clamp.default) and bounds.is_bounded(aten.clamp.Tensor)
    assert bounds.is_bounded(aten.add.Tensor) and not bounds.is_bounded(aten.add.Scalar)
    few, many = torch.zeros(10), torch.zeros(10_000)
    assert bounds.may_bound(aten.clamp.default, few) and not bounds.may_bound(aten.clamp.default, many)
    assert bounds.may_bound(aten.clamp.default, many.long())
    assert not bounds.may_bound(aten.add.Tensor, few)


def test_experts_get_equal_shares():
    # Six tokens choose two of four experts each.
    indices = experts.shares(torch, torch.zeros(6, 2, dtype=torch.long), 4, -1, False)
    assert torch.bincount(indices.flatten(), minlength=4).tolist() == [3, 3, 3, 3]
    single = experts.shares(torch, torch.zeros(8, dtype=torch.long), 4, -1, True)
    assert single.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def route(tokens):
    router = tokens
    return router


def classify(tokens):
    return tokens.argmax()


def test_code_speaks_of_experts_by_its_names():
    assert experts.speaks_of_experts(route.__code__)
    assert not experts.speaks_of_experts(classify.__code__)


def test_a_failure_is_described_by_the_programs_innermost_line():
    try:
        torch.zeros(2).view(3)
    except RuntimeError as why:
        found = failure.described(why, "split")
    assert found["kind"] == "RuntimeError" and found["file"] == __file__ and found["technique"] == "split"
    assert not names.PURE & names.SHOWS


def test_a_saved_file_has_holes_and_its_own_bytes(tmp_path):
    data = bytes(3 * sparse.BLOCK) + b"end" + bytes(sparse.BLOCK)
    with open(tmp_path / "saved", "wb") as file:
        it = sparse.Sparse(file)
        assert it.write(data) == len(data)
        it.finish()
    assert (tmp_path / "saved").read_bytes() == data
    assert os.stat(tmp_path / "saved").st_blocks * 512 < len(data)
    assert not sparse.is_plain(io.BytesIO())


def test_a_job_is_known_by_its_surroundings(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert gauges.job() is None
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert gauges.job().startswith("4 ranks, 77")


def test_the_wrappers_of_operators_are_in_the_files_by_which_explain_knows_their_frames():
    explain = (pathlib.Path(__file__).parents[3] / "plimsoll-trace/src/explain/origin.rs").read_text()
    known = shadows.Known
    wrappers = [known.functional, known.changing, known.reading, known.counting, known.watched, known.with_numbers]
    for it in [*wrappers, experts.choosing, experts.scattering]:
        assert f'"<frozen plimsoll {pathlib.Path(it.__code__.co_filename).stem}>"' in explain, it
