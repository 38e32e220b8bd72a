# Memory that grows from step to step, or from batch to batch, and how often it grows.

import ast
import collections
import dataclasses
import heapq
import itertools
import linecache
import math
import sys
import time
import types

from plimsoll import allocator
from plimsoll._holding.holder import Holder
from plimsoll._predict import capacity, epochs, finish, growth, late_growth, lengths, loops, outer, rounds
from plimsoll._predict.levels import may_spread, spread

MIB = 1 << 20


def torch_with(levels):
    # A fake PyTorch with one device, whose allocated bytes take these values in turn.
    def stats(device):
        return {"allocated_bytes": {"all": {"current": next(levels)}}}

    cuda = types.SimpleNamespace(
        device_count=lambda: 1,
        max_memory_allocated=lambda device: 0,
        mem_get_info=lambda device: (1 << 40, 1 << 40),
        memory_reserved=lambda device: 1 << 40,
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
    assert not row["resets"] and not row["quickens"] and not row["climbs"] and row["unit"] == "step"
    assert not row["states"]
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


def rounds_of(text, kept):
    # The rows for the outer loops of a program that calls `step`; `kept(n)` are the bytes allocated at the n-th call.
    name = f"<program {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    found, levels, loops = outer.Outer(torch_with(iter([]))), [], []

    def step():
        frame = sys._getframe(1)
        loops[:] = loops or [(it, frame.f_code) for it in lengths.around(frame)]
        levels.append(kept(len(levels)))
        found.torch = torch_with(itertools.repeat(levels[-1]))
        found.note(frame, loops)

    sys.modules.setdefault("plimsoll_program", types.ModuleType("plimsoll_program"))
    exec(compile(text, name, "exec"), {"step": step})
    return found.rows([loop for loop, _ in loops]), found.left()


def test_memory_that_grows_with_each_round_of_an_outer_loop_is_a_row_of_that_loop():
    # The rounds have 1, 2, 3, … steps.
    program = "for update in range(9):\n    for n in range(update + 1):\n        step()\n"
    (row,), left = rounds_of(program, lambda step: 20 * MIB * round(math.sqrt(2 * step + 2) - 1))
    assert (row["unit"], row["bytes"], row["every"], row["steps"], row["total"]) == ("round", 20 * MIB, 1, 9, 9)
    assert left == 8  # as in the latest complete round
    assert rounds_of(program, lambda step: 20 * MIB)[0] == []
    # Two epochs in each round: memory grows with the outer loop, not with the epochs.
    epochs = "for update in range(9):\n    for epoch in range(2):\n        for n in range(3):\n            step()\n"
    (row,), _ = rounds_of(epochs, lambda step: 20 * MIB * (step // 6))
    assert (row["bytes"], row["every"], row["total"]) == (20 * MIB, 1, 9)


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
    assert spread(levels)[:2] == (16 * MIB, 5)
    # One rise is not enough, but a reason to go on.
    assert may_spread(levels[:8]) and not may_spread([MIB] * 8) and not may_spread(levels)


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


Pair = collections.namedtuple("Pair", ("first", "second"))


class Ring:
    def __init__(self, capacity):
        self.capacity, self.memory, self.best, self.other = capacity, [0] * 10, [0] * 10, [0] * 10

    def push(self, it):
        if len(self.memory) < self.capacity:
            self.memory.append(None)
        if self.capacity > len(self.best):
            heapq.heappush(self.best, it)
        if len(self.other) > 0:
            print(self.other)


def test_a_container_grows_until_it_is_full():
    def left(name):
        found = capacity.limited(dataclasses.replace(holder(f"reached as `{name}`"), bytes=1000), sys._getframe(1))
        return found.left_bytes

    kept, ring, last, free = collections.deque([Pair(1, 2)] * 10, maxlen=25), Ring(30), [0] * 10, [0] * 10
    if len(last) >= 12:
        last.pop(0)
    while len(free) > 12:
        print(free)
    assert left("kept") == left("kept[…]") == 1500
    assert left("ring.memory[…].state") == left("ring.best") == 2000
    assert left("last") == 200
    assert left("free") is left("ring.other") is left("nothing") is None
    assert (kept, ring) != (None, None)


def test_iterations_before_the_first_step_count_once():
    pace = lengths.Pace()
    assert pace.scaled(100_000, 1, 1000) == 100  # so far, each step took a thousand
    assert pace.scaled(100_000, 201, 1200, is_last=True) == 99_001
    pace = lengths.Pace()
    assert [pace.scaled(100, step, 4 * step, is_last=True) for step in (1, 2, 3)] == [25, 25, 25]


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
        found = epochs.Epochs(None)
        for it in levels:
            found.begins([it])
        return found

    (row,) = after(0, 100 * MIB, 120 * MIB, 140 * MIB, 160 * MIB).rows(50)
    assert (row["bytes"], row["steps"], row["total"], row["unit"]) == (20 * MIB, 6, 50, "epoch")
    assert after(0, 100 * MIB, 120 * MIB, 140 * MIB, 160 * MIB).rows(None) == []
    # Early stopping may have ended the epochs, so fewer are enough.
    (row,) = after(0, 20 * MIB, 40 * MIB).rows(None, breaks=True)
    assert (row["bytes"], row["total"], row["unit"]) == (20 * MIB, None, "epoch")
    assert after(0, 100 * MIB, 120 * MIB, 140 * MIB).rows(50) == []  # too few
    assert after(0, 100 * MIB, 120 * MIB, 120 * MIB, 160 * MIB).rows(50) == []


def test_memory_that_grows_with_each_model_of_an_outer_loop_is_a_row():
    def after(*mib):
        found = epochs.Epochs(None)
        for it in mib:
            found.begins([it * MIB])
        return found

    # Two epochs for each model, the first without optimizer states.
    found = after(100, 125, 200, 225, 300, 325, 400)
    (row,) = found.rows(16)
    assert (row["bytes"], row["every"], row["steps"], row["total"]) == (100 * MIB, 2, 8, 16)
    assert after(100, 125, 200, 125, 200, 125, 200).rows(16) == []
    # Only the latest epochs grow.
    (row,) = after(*[100] * 10, 120, 140, 160, 180).rows(50)
    assert (row["bytes"], row["every"], row["times"]) == (20 * MIB, 1, 4)
    # Of an unknown number of epochs, more must be seen.
    assert after(100, 120, 140, 160, 180).rows(None) == []
    assert len(after(100, 120, 140, 160, 180, 200, 220, 240).rows(None)) == 1
    assert found.is_open() and not after(100, 200, 200, 200, 200, 200).is_open()


class Unfrozen:
    # Gradients and states of one more parameter every five steps, which need 3 MiB; `left` parameters are frozen.
    def __init__(self, left):
        self.bytes, self.left = {}, left

    def note(self, device, level):
        own = self.bytes.setdefault(device, [])
        own.append(len(own) // 5 * 3 * MIB)
        return own[-1]

    def room(self, device):
        return self.left * 3 * MIB


def test_gradients_and_states_grow_until_all_parameters_have_them():
    levels = [(nth // 5 * 3 + 10) * MIB for nth in range(32)]
    found = growth.Growth(torch_with(iter(levels)), Unfrozen(left=4))
    for level in levels:
        found.note({(0, "allocated"): (level + nth_mib(level), 1)}, varies=False)
    found.total = 1000
    (row,) = found.rows()
    assert (row["bytes"], row["every"], row["total"], row["states"]) == (3 * MIB, 5, 32 + 4 * 5, True)
    # With the activations that more parameters need, the peak rises by 4 MiB each time.
    assert row["peak_bytes"] == 4 * MIB
    assert not found.growing()
    found.total = 40
    assert [(row["total"], row["states"]) for row in found.rows()] == [(40, False)]


def nth_mib(level):
    # A third more, for activations.
    return (level - 10 * MIB) // 3


def test_an_epoch_that_keeps_more_than_those_before_gets_more_batches():
    def batches(*levels, has_time):
        told = iter(it * MIB for it in levels)
        finish = types.SimpleNamespace(torch=torch_with(told), cut=False, take=lambda _: has_time, saw=lambda _: None)
        found = late_growth.LateGrowth(finish)
        iterator = types.SimpleNamespace(plimsoll_given=0, plimsoll_length=100, plimsoll_line=("train.py", 7))
        found.begins([0])
        while True:
            iterator.plimsoll_given += 1
            if iterator.plimsoll_given <= len(levels):
                found.stepped()
            if not found.goes_on(iterator) or iterator.plimsoll_given == 100:
                return iterator.plimsoll_given, found.rows

    assert batches(100, 100, has_time=True) == (2, [])
    # A list gets one more tensor, but no more.
    assert batches(100, 120, 120, has_time=True) == (3, [])
    assert batches(100, 110, 120, 130, 140, 150, has_time=True) == (100, [])
    given, (row,) = batches(100, 110, 120, 130, 140, 150, has_time=False)
    assert (given, row["left"], row["grows"][0]["bytes"]) == (6, 94, 10 * MIB)


def test_two_containers_are_full_after_the_rest_of_both():
    found = growth.Growth(None)
    two = [types.SimpleNamespace(left_bytes=1000, text="`a`"), types.SimpleNamespace(left_bytes=1000, text="`b`")]
    assert found.until(two, 10, 1, 20) == 110


def test_a_guard_that_a_container_exceeds_is_no_capacity():
    def room(source, many):
        frame = types.SimpleNamespace(
            f_locals={"kept": many},
            f_globals={},
            f_code=types.SimpleNamespace(co_filename="none.py", co_flags=0),
        )
        whole = types.SimpleNamespace(tree=ast.parse(source))
        before, capacity.Source.at = capacity.Source.at, lambda file, modules: whole
        try:
            return capacity.room(
                types.SimpleNamespace(text="`kept` (list of tensors), a global of a.py", bytes=100), [frame]
            )
        finally:
            capacity.Source.at = before

    assert room("if len(kept) < 100: kept.append(x)", [1] * 50) == 100
    assert room("if len(kept) < 8: kept.append(x)\nkept.append(y)", [1] * 50) is None
    assert room("while len(kept) > 0: kept.pop()", [1] * 50) is None


def test_the_limit_of_a_deque_without_a_name_is_in_its_text():
    text = "a deque of 10 tensors of at most 40, a global of the module buffers"
    assert capacity.room(types.SimpleNamespace(text=f"`kept` ({text})", bytes=100), []) == 300


def test_a_loop_over_a_cycle_has_no_length(tmp_path):
    loop = ast.parse("for x in cycle(loader):\n    step()").body[0]
    frame = types.SimpleNamespace(
        f_locals={}, f_globals={}, f_code=types.SimpleNamespace(co_filename="cycle.py"), f_lineno=2
    )
    lengths.LOADERS["cycle.py", 1] = 3
    try:
        assert lengths.length_of_loop(loop, frame) is None
    finally:
        del lengths.LOADERS["cycle.py", 1]
