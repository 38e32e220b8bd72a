# The package's version, and its answers on a machine without a GPU.

import pytest

import plimsoll
from plimsoll import recording


def test_the_version_is_that_of_the_wheel_or_the_program():
    assert plimsoll.__version__[0].isdigit() and plimsoll.__version__.count(".") == 2
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        plimsoll.absent


def test_a_recording_without_a_gpu_explains_itself(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(plimsoll.PlimsollError, match="built for the CPU only.*plimsoll predict"):
        plimsoll.record()
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES='' hides all GPUs" in recording.no_gpu()
