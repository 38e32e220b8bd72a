# Memory that grows from step to step, or from batch to batch, and how often it grows.

import ast
import linecache
import sys
import time
import types

from plimsoll import allocator
from plimsoll._holding.holder import Holder
from plimsoll._predict import epochs, finish, growth, loops, rounds

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
        found.note({}, varies=False)
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
    (row,) = grown([MIB * nth for nth in range(10)]).rows()
    assert (row["bytes"], row["every"], row["times"], row["steps"], row["total"]) == (MIB, 1, 8, 10, None)
    assert not row["resets"] and not row["quickens"] and not row["climbs"] and not row["epochs"]
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
    assert steps_of("n = 0\nwhile n < 3:\n    n += 1\n    step()") == 3
    assert steps_of("n = 0\nwhile n < 3:\n    step()\n    n += 1") == 3
    assert steps_of("n = 0\nwhile n < 3 or n < 2:\n    n += 1\n    step()") is None
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


def test_a_loop_that_does_not_grow_goes_from_its_first_batches_to_its_last(monkeypatch):
    given, row = batches(100, [MIB] * 200)
    assert given == list(range(100)) and row is None  # it takes no time
    monkeypatch.setattr(loops, "SHORT", 0.0)
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


def risen(peaks):
    found = growth.Growth(torch_with(iter([0] * len(peaks))))
    for peak in peaks:
        found.note({(0, "allocated"): (peak, 1)}, varies=False)
    return found


def test_a_peak_that_rises_although_nothing_stays_is_a_row_if_the_number_of_steps_is_known():
    found = risen([MIB * nth for nth in range(40)])
    assert found.is_unsure() and found.rows() == []
    found.total = 100
    (row,) = found.rows()
    assert (row["bytes"], row["steps"], row["climbs"]) == (MIB, 40, True)
    # Blocks are rounded, so the peak of some steps is the same.
    found = risen([2 * MIB * (nth // 2) for nth in range(40)])
    found.total = 100
    assert [row["bytes"] for row in found.rows()] == [2 * MIB * 9 // 19]
    # It rose only at first.
    assert risen([MIB * min(nth, 20) for nth in range(40)]).climbing() == []


def test_rises_in_one_of_several_steps_are_found_among_small_ones():
    levels = [16 * MIB * (nth // 5) + (nth % 3) * MIB // 4 for nth in range(20)]
    assert growth.spread(levels)[:2] == (16 * MIB, 5)
    # One rise is not enough, but a reason to go on.
    assert growth.may_spread(levels[:8]) and not growth.may_spread([MIB] * 8) and not growth.may_spread(levels)


def test_the_iterations_of_a_while_loop_that_counts_are_known():
    assert steps_of("i, n = 0, 0\ni = 8\nn = 20\nwhile i < 2 * n:\n    step()\n    i += 4") == 8
    assert steps_of("kept, i = [], 2\nwhile i < 5:\n    step()\n    i += 1") == 3
    for unknown in (
        "while True:\n    step()\n    break",
        "n = i = 1\nwhile i < n + 2:\n    i += n\n    step()",
        "i = 0\nwhile i < 5:\n    i += 1\n    step()\n    if i == 9: i = 0",
        "i = 9\nwhile i > 5:\n    step()\n    i -= 1",
        "i, most = iter([0, 1]), 0\nwhile most < 1:\n    step()\n    most = next(i)",
    ):
        assert steps_of(unknown) is None, unknown


def test_a_loop_that_breaks_at_a_number_of_steps_has_this_length():
    assert steps_of("most = 3\nfor n in range(99):\n    step()\n    if n + 1 >= most: break") == 3
    assert steps_of("for n in range(99):\n    if n >= 7:\n        break\n    step()") == 7
    assert steps_of("for n in range(5):\n    step()\n    if n == 30: break") == 5
    assert steps_of("for n in range(5):\n    step()\n    if step is None: break") == 5


def holder(text):
    return Holder("global", text, 1, MIB)


def test_a_deque_grows_until_it_is_full():
    assert rounds.room(holder("`kept` (deque of 200 tensors of at most 300), a global of train.py")) == 100
    assert rounds.room(holder("`kept` (deque of 200 tensors), a global of train.py")) is None


def test_what_a_statement_frees_under_a_condition_is_not_extrapolated():
    def bounded(source):
        return rounds.bounded([ast.parse(source)], holder("`kept` (list of 3 tensors), a global of train.py"))

    assert bounded("for i in x:\n    kept.append(i)\n    if i % 250 == 0:\n        kept.clear()")
    assert bounded("for i in x:\n    kept = torch.cat([kept, i])[-100:]")
    assert bounded("for i in x:\n    if i not in kept:\n        kept[i] = f(i)")
    assert bounded("for i in x:\n    kept.append(i)\n    if len(kept) > 9: kept.pop(0)")
    assert not bounded("for i in x:\n    kept = torch.cat([kept, i[:100]])")
    assert not bounded("for i in x:\n    kept.append(i[-100:])\n    other.clear()")


def test_memory_that_grows_evenly_from_epoch_to_epoch_is_a_row():
    def after(*levels):
        found = epochs.Epochs(torch_with(iter(levels)))
        for _ in levels:
            found.begins()
        return found

    (row,) = after(0, 100 * MIB, 120 * MIB, 140 * MIB, 160 * MIB).rows(50)
    assert (row["bytes"], row["steps"], row["total"], row["epochs"]) == (20 * MIB, 6, 50, True)
    assert after(0, 100 * MIB, 120 * MIB, 140 * MIB, 160 * MIB).rows(None) == []
    assert after(0, 100 * MIB, 120 * MIB, 140 * MIB).rows(50) == []  # too few
    assert after(0, 100 * MIB, 120 * MIB, 120 * MIB, 160 * MIB).rows(50) == []
