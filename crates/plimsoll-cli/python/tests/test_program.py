# The part of the package that runs the program, without PyTorch.

import os
import subprocess
import sys

import pytest

import plimsoll
from plimsoll import _program, answers, sizes

SNAPSHOTS = os.path.join(os.path.dirname(__file__), "../../../plimsoll-trace/tests/snapshots")


def snapshot(name):
    path = os.path.join(SNAPSHOTS, name)
    if not os.path.exists(path):
        pytest.skip(f"{path} is not here")
    return path


def test_a_snapshot_is_explained_as_a_dictionary():
    answer = plimsoll.explain(snapshot("gpt2_oom.pickle.gz"))
    assert answer["schema"] == "plimsoll.explain/1"
    assert answer["verdict"]["text"].startswith("out of memory: CAPACITY")
    assert answer["devices"][0]["held"]["by_line"][0]["bytes"] > 0


def test_several_snapshots_are_one_job():
    path = snapshot("gpt2_oom.pickle.gz")
    assert plimsoll.explain(path, path)["schema"] != "plimsoll.explain/1"


def test_further_options_are_passed_on():
    answer = plimsoll.explain(snapshot("gpt2_oom.pickle.gz"), arguments=["--no-infer"])
    assert all(it["category"] is None for it in answer["devices"][0]["held"]["by_category"])


def test_a_file_that_cannot_be_read_is_an_exception_with_the_programs_message(tmp_path):
    with pytest.raises(plimsoll.UnreadableError, match="absent.pickle") as caught:
        plimsoll.explain(tmp_path / "absent.pickle")
    assert caught.value.exit_code == 3
    broken = tmp_path / "-broken.pickle"
    broken.write_bytes(b"no snapshot")
    with pytest.raises(plimsoll.UnreadableError, match="broken"):
        plimsoll.explain(broken)


def test_an_option_that_is_not_understood_is_a_usage_error():
    for options in (dict(gpu="H9000"), dict(with_="magic"), dict(arguments=["--no-such-option"])):
        with pytest.raises(plimsoll.UsageError) as caught:
            plimsoll.predict(["true"], **options)
        assert caught.value.exit_code == 2 and not str(caught.value).startswith("error")
    with pytest.raises(ValueError):
        plimsoll.plan(["true"], goal="fast")


def test_a_program_that_fails_is_an_exception_with_its_answer():
    with pytest.raises(plimsoll.ProgramError) as caught:
        plimsoll.predict(["no-such-program"], gpu="T4")
    assert caught.value.exit_code == 5


def test_a_program_that_is_a_python_file_runs_in_this_python(tmp_path):
    assert answers.words(["train.py", "--x", 1 and "1"]) == [sys.executable, "train.py", "--x", "1"]
    assert answers.words([tmp_path / "a.py"])[0] == sys.executable
    assert answers.words(["torchrun", "train.py"]) == ["torchrun", "train.py"]
    for wrong in ("train.py", []):
        with pytest.raises(TypeError):
            answers.words(wrong)


def test_a_program_that_is_absent_is_an_error_that_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv(_program.PROGRAM, str(tmp_path / "absent"))
    with pytest.raises(plimsoll.PlimsollError, match="PLIMSOLL_PROGRAM"):
        plimsoll.explain("x")
    monkeypatch.delenv(_program.PROGRAM)
    monkeypatch.setattr(_program, "places", lambda: iter(()))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(plimsoll.PlimsollError, match="pip install ./crates/plimsoll-cli"):
        plimsoll.explain("x")


def test_the_module_runs_as_the_program():
    ran = subprocess.run([sys.executable, "-m", "plimsoll", "--version"], capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout.startswith("plimsoll "), ran.stderr
    ran = subprocess.run([sys.executable, "-m", "plimsoll", "explain", "absent"], capture_output=True, text=True)
    assert ran.returncode == 3 and "absent" in ran.stderr


def test_importing_the_package_does_not_import_pytorch():
    code = "import sys, plimsoll; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    "text, bytes",
    [
        ("6GiB", 6 << 30),
        ("1.5 GiB", 3 << 29),
        ("2GB", 2 * 10**9),
        (512, 512),
        ("64 mib", 64 << 20),
        ("1_024k", 1 << 20),
    ],
)
def test_sizes_are_read_as_the_program_reads_them(text, bytes):
    assert sizes.parse(text) == bytes


@pytest.mark.parametrize("text", ["", "GiB", "0", "-1GiB", "1 parsec", True, None, 0, "1.2.3"])
def test_what_is_no_size_is_a_value_error(text):
    with pytest.raises(ValueError, match="is not a size"):
        sizes.parse(text)


def test_sizes_are_written_as_the_program_writes_them():
    shown = [sizes.shown(it) for it in (0, 512, 1024, 1 << 20, 3 << 29, -(2 << 20))]
    assert shown == ["0 bytes", "512 bytes", "1024 bytes", "1024.00 KiB", "1.50 GiB", "-2.00 MiB"]
