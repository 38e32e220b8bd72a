# Memory that grows from step to step, or from batch to batch, and how often it grows.

import linecache
import sys
import time
import types

from plimsoll import allocator
from plimsoll._predict import finish, growth, loops

MIB = 1 << 20


def torch_with(levels):
    # A fake PyTorch with one device, whose allocated bytes take these values in turn.
    def stats(device):
        return {"allocated_bytes": {"all": {"current": next(levels)}}}

    cuda = types.SimpleNamespace(
        device_count=lambda: 1, mem_get_info=lambda device: (1 << 40, 1 << 40), memory_reserved=lambda device: 1 << 40
    )
    return types.SimpleNamespace(cuda=cuda, _C=types.SimpleNamespace(_cuda_memoryStats=stats))


def grown(levels):
    found = growth.Growth(torch_with(iter(levels)))
    for _ in levels:
        found.note({})
    return found


def test_before_the_first_use_of_cuda_nothing_is_allocated():
    def stats(device):
        raise RuntimeError("Invalid device argument")

    cuda = types.SimpleNamespace(device_count=lambda: 2, memory_allocated=lambda device: 0)
    assert allocator.levels(types.SimpleNamespace(cuda=cuda, _C=types.SimpleNamespace(_cuda_memoryStats=stats))) == [
        0,
        0,
    ]


def test_memory_that_grows_in_each_of_the_latest_steps_is_a_row():
    assert grown([MIB * nth for nth in range(10)]).rows() == [
        {"device": 0, "bytes": MIB, "every": 1, "times": 8, "steps": 10, "total": None, "resets": False, "quickens": 0}
    ]
    assert grown([MIB] * 10).rows() == []
    assert grown([MIB, 2 * MIB, MIB] * 4).rows() == []


def test_more_steps_are_wanted_while_growth_may_go_on():
    assert grown([0, MIB, 2 * MIB]).is_unsure()
    assert not grown([0, MIB, MIB]).is_unsure()
    assert grown([MIB * nth for nth in range(10)]).is_unsure()
    assert not grown([MIB * nth for nth in range(growth.CONFIRM)]).is_unsure()
    # Memory grows in every second step.
    assert all(grown([MIB * (nth // 2) for nth in range(steps)]).is_unsure() for steps in (5, 6, 7, 8))
    # A list that is cleared, and a cache that becomes full.
    assert not grown([MIB * (nth % 20) for nth in range(21)]).is_unsure()
    assert not grown([MIB * min(nth, 50) for nth in range(60)]).is_unsure()
    assert grown([MIB * min(nth, 50) for nth in range(60)]).rows() == []


def steps_of(text):
    # The number of steps in the program's loops, seen from the first call to `step`.
    name = f"<program {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    found = []

    def step():
        if not found:
            found.append(grown([0]).of_loops(sys._getframe(1), 1, 1))

    own = {"step": step}
    sys.modules.setdefault("plimsoll_program", types.ModuleType("plimsoll_program"))
    exec(compile(text, name, "exec"), own)
    return found[0]


def test_the_number_of_steps_is_read_from_the_loops():
    assert steps_of("for n in range(7):\n    step()") == 7
    assert steps_of("epochs = 3\nfor e in range(epochs):\n    for b in [1, 2, 3, 4]:\n        step()") == 12
    assert steps_of("for n, b in enumerate(range(2, 12)):\n    step()") == 10
    assert steps_of("n = 0\nwhile n < 3:\n    n += 1\n    step()") is None
    assert steps_of("for b in (it for it in range(3)):\n    step()") is None


def test_a_loop_that_never_ends_has_no_number_of_steps():
    found = grown([0])
    found.of_loops = lambda frame, steps, given: sys.maxsize
    found.look(sys._getframe(), 1, 1)
    assert found.total is None


def test_a_loader_at_the_address_of_another_is_not_that_one():
    class Loader:
        pass

    loaders, kept = finish.Loaders(), Loader()
    numbers = [loaders.number(Loader()) for _ in range(3)]  # each is freed, and the next one may reuse its address
    assert len({*numbers, loaders.number(kept)}) == 4
    assert loaders.number(kept) == loaders.number(kept)


class Iterator:
    # The attributes of a DataLoader's iterator over a dataset that can be indexed.
    _dataset_kind = 0

    def __init__(self, size):
        self._sampler_iter = iter(range(size))


def batches(size, levels, seconds=100.0):
    until = time.monotonic() + seconds
    finish = types.SimpleNamespace(
        torch=torch_with(iter(levels)),
        loops=[],
        cut=False,
        left=lambda: until - time.monotonic(),
        take=lambda more: False,
    )
    iterator = Iterator(size)
    loop = loops.Loop(finish, iterator, range(size), lambda it: next(it._sampler_iter))
    given = []
    try:
        while True:
            given.append(loop.batch())
    except StopIteration:
        return given, loop.row()


def test_a_loop_that_does_not_grow_goes_from_its_first_batches_to_its_last():
    given, row = batches(100, [MIB] * 200)
    assert given == [0, 1, 2, 3, 4, 5, 6, 99]
    assert (row["given"], row["total"], row["left"], row["grows"]) == (8, 100, 92, [])


def test_a_loop_that_grows_gets_all_of_its_batches_if_there_is_time():
    given, row = batches(100, [MIB * nth for nth in range(300)])
    assert given == list(range(100)) and row is None


def test_what_a_loop_without_time_would_have_grown_by_is_in_its_row(monkeypatch):
    monkeypatch.setattr(loops, "PATIENCE", 0.0)
    given, row = batches(100, [MIB * nth for nth in range(300)], seconds=0.0)
    assert given[-1] == 99 and len(given) == 8
    assert [(it["device"], it["bytes"]) for it in row["grows"]] == [(0, MIB)]
