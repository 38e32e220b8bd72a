# The modules as the program injects them: under a private name, first in PYTHONPATH, in a Python without the wheel.

import pathlib
import shutil
import subprocess
import sys

import plimsoll
from plimsoll._inject import imports
from plimsoll._inject.sitecustomize import FROZEN, PACKAGE

PLACE = pathlib.Path(plimsoll.__file__).parent


def laid_out(folder, verb, version="0.0.0"):
    # The same layout as src/inject/mod.rs makes.
    package = folder / PACKAGE
    for name in ("_inject", "_predict", "_run", "techniques"):
        shutil.copytree(PLACE / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("frames.py", "protocol.py"):
        shutil.copy(PLACE / name, package)
    text = (PLACE / "_inject/sitecustomize.py").read_text()
    entry = text.replace('\nVERB = "predict"', f'\nVERB = "{verb}"').replace(
        '\nVERSION = ""', f'\nVERSION = "{version}"'
    )
    (folder / "sitecustomize.py").write_text(entry)
    return folder


def run(folder, code, *more, **variables):
    path = ":".join(str(it) for it in (folder, *more))
    environment = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin", **variables}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def test_a_process_that_imports_no_pytorch_loads_little(tmp_path):
    for verb, variables in (("predict", {"PLIMSOLL_PREDICT_FOLDER": str(tmp_path)}), ("run", {})):
        code = f"import sys; print([it for it in sys.modules if it.startswith('{PACKAGE}')], 'json' in sys.modules)"
        done = run(laid_out(tmp_path / verb, verb), code, **variables)
        assert done.stderr == "" and f"{PACKAGE}._{verb}.start" in done.stdout and done.stdout.endswith("False\n")
        assert "watch" not in done.stdout and "attend" not in done.stdout


def test_frames_of_ours_have_a_file_name_that_marks_them(tmp_path):
    code = f"from {PACKAGE}._predict import source; print(source.looked_up.__code__.co_filename, source.__name__)"
    done = run(laid_out(tmp_path, "run"), code)
    assert done.stdout == f"{FROZEN}source> {PACKAGE}._predict.source\n"


def test_the_users_own_sitecustomize_runs_and_both_verbs_may_be_there(tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('mine')")
    one, other = laid_out(tmp_path / "one", "run"), laid_out(tmp_path / "other", "predict")
    code = f"import sys; print(*[it for it in sys.modules if it.startswith('{PACKAGE}.') and it.endswith('start')])"
    done = run(one, code, other, own, PLIMSOLL_PREDICT_FOLDER=str(tmp_path))
    assert done.stdout == f"mine\n{PACKAGE}._run.start {PACKAGE}._predict.start\n", done.stderr


def test_a_wheel_of_another_version_is_refused_in_a_sentence(tmp_path):
    wheel = tmp_path / "wheel"
    for name, text in (
        ("plimsoll/__init__.py", ""),
        ("plimsoll_gpu-0.2.0.dist-info/METADATA", "Name: plimsoll-gpu\nVersion: 0.2.0\n"),
    ):
        (wheel / name).parent.mkdir(parents=True)
        (wheel / name).write_text(text)
    same = run(laid_out(tmp_path / "same", "run", "0.2.0"), "import plimsoll; print('imported')", wheel)
    assert same.stdout == "imported\n", same.stderr
    other = run(laid_out(tmp_path / "other", "run", "0.3.0"), "import plimsoll; print('imported')", wheel)
    assert other.returncode == 1 and "imported" not in other.stdout
    assert "this Python has plimsoll-gpu 0.2.0, but the program `plimsoll` that runs it is 0.3.0" in other.stderr


def test_a_function_runs_once_after_the_import_of_its_module_and_cannot_fail_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "program_part.py").write_text("value = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = []

    def then(module):
        seen.append(module.value)
        raise ValueError("a bug of ours")

    monkeypatch.setattr(sys, "meta_path", [imports.Finder({"program_part": then}), *sys.meta_path])
    import program_part

    assert (program_part.value, seen) == (1, [1])
    assert "cannot hook program_part in this process: a bug of ours" in capsys.readouterr().err
    del sys.modules["program_part"]
