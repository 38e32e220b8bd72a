# Recordings, with a GPU or on the stand-in.

import os

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA GPU, and not on the stand-in", allow_module_level=True)

import plimsoll


def by_line(answer):
    return {row["line"]["line"]: row["bytes"] for row in answer["devices"][0]["held"]["by_line"] if row["line"]}


def test_a_context_manager_writes_a_snapshot_that_names_the_line(tmp_path):
    path = tmp_path / "it.pickle"
    with plimsoll.record(path) as recording:
        kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    assert recording.path == str(path) and 64 << 20 in by_line(plimsoll.explain(path)).values()
    assert not torch._C._cuda_isHistoryEnabled()
    assert os.listdir(tmp_path) == ["it.pickle"]
    del kept


def test_a_function_records_until_it_is_stopped(tmp_path):
    recording = plimsoll.record(tmp_path / "it.pickle", stacks="all", max_entries=1000)
    kept = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
    answer = recording.explain()
    assert 32 << 20 in by_line(answer).values() and recording.stop() == recording.path
    del kept


def test_a_recording_inside_another_covers_only_its_own_events(tmp_path):
    with plimsoll.record(tmp_path / "outer.pickle"):
        torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
        with plimsoll.record(tmp_path / "inner.pickle"):
            torch.empty(16 << 20, dtype=torch.uint8, device="cuda")
        assert torch._C._cuda_isHistoryEnabled()
    peaks = [by_line(plimsoll.explain(tmp_path / it)) for it in ("outer.pickle", "inner.pickle")]
    assert list(peaks[0].values())[0] == 128 << 20 and 128 << 20 not in peaks[1].values(), peaks


def test_where_memory_runs_out_the_snapshot_is_of_that_moment(tmp_path):
    with pytest.raises(torch.OutOfMemoryError):
        with plimsoll.record(tmp_path / "it.pickle"):
            kept = torch.empty(48 << 20, dtype=torch.uint8, device="cuda")
            torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
    answer = plimsoll.explain(tmp_path / "it.pickle")
    assert answer["verdict"]["failed"] and 48 << 20 in by_line(answer).values()
    del kept


def test_arguments_that_make_no_sense_are_errors(tmp_path):
    for wrong in (dict(stacks="some"), dict(max_entries=0)):
        with pytest.raises(ValueError):
            plimsoll.record(tmp_path / "it.pickle", **wrong)
    assert os.listdir(tmp_path) == []


def test_a_snapshot_that_cannot_be_written_is_an_error_and_ends_the_recording(tmp_path):
    with pytest.raises(OSError):
        with plimsoll.record(tmp_path / "absent" / "it.pickle"):
            pass
    assert not torch._C._cuda_isHistoryEnabled()
