# The owners of memory on the host, with a library that only notes its calls.

import types

import pytest

from plimsoll._predict import host


class Counter:
    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*args):
            self.calls.append((name.removeprefix("plimsoll_host_"), *args))
            return 7

        return call


@pytest.fixture
def counter(monkeypatch):
    found = Counter()
    monkeypatch.setattr(host, "COUNTER", found)
    return found


def tensor(device, size):
    storage = types.SimpleNamespace(data_ptr=lambda: 4096)
    return types.SimpleNamespace(
        device=types.SimpleNamespace(type=device), nbytes=size, untyped_storage=lambda: storage
    )


def test_a_function_owns_what_is_requested_in_it_even_if_it_fails(counter):
    def load():
        raise ValueError

    with pytest.raises(ValueError):
        host.owned(load, "torch.load")()
    assert [call[0] for call in counter.calls] == ["enter", "leave"]
    assert counter.calls[0][1].startswith(b"torch.load")
    assert counter.calls[1][1] == 7


def test_only_large_tensors_on_the_host_have_owners(counter):
    for device, size in [("cuda", host.LARGE), ("cpu", host.LARGE - 1), ("meta", host.LARGE)]:
        host.own(tensor(device, size), b"weights")
    assert counter.calls == []
    host.own(tensor("cpu", host.LARGE), b"weights")
    assert counter.calls == [("own", 4096, b"weights")]


def test_processes_that_our_hooks_start_are_not_counted(counter, monkeypatch):
    monkeypatch.setenv(host.FOLDER, "/reports")
    with host.ours():
        assert host.FOLDER not in host.os.environ
    assert host.os.environ[host.FOLDER] == "/reports"
    assert counter.calls == [("pause",), ("resume", 7)]


def test_phases_only_go_forward(counter):
    phases = host.Host.__new__(host.Host)
    phases.phase = host.LOAD
    for phase in (host.STEP, host.STEP, host.LOAD, host.AFTER, host.STEP):
        phases.enter(phase)
    assert counter.calls == [("phase", host.STEP), ("phase", host.AFTER)]


def test_without_the_library_nothing_happens(monkeypatch):
    monkeypatch.setattr(host, "COUNTER", None)
    with host.ours():
        pass
    phases = host.Host(types.SimpleNamespace())
    phases.enter(host.STEP)
    phases.end()
    phases.weigh()
