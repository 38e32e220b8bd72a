# Finds the owner of a tensor: planted holders of each kind, and objects whose own code must not run.

import asyncio
import collections
import functools
import gc
import sys
import threading
import time
import weakref

import pytest

torch = pytest.importorskip("torch")

import plimsoll
from plimsoll._holding import climb, growing
from plimsoll._holding.falling import Falling
from plimsoll._holding.growing import Growing
from plimsoll._holding.survey import Survey

HERE = "the module test_holding"


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    for module in (climb, growing):
        monkeypatch.setattr(module, "SECONDS", 60.0)  # on a busy machine


def made():
    return torch.ones(300)


def one(get):
    # The kind and the text of the only holder. No variable here refers to the tensor.
    (found,) = plimsoll.holders(get())
    return found.kind, found.text


class Trainer:
    seen = []

    def __init__(self):
        self.history = [made() for _ in range(3)]


class Slots:
    __slots__ = ("kept",)


class Node:
    pass


history, trainer, errors = [made() for _ in range(212)], Trainer(), []


def test_a_container_of_a_module_is_named_with_what_it_keeps():
    assert one(lambda: history[5]) == ("global", f"`history` (list of 212 tensors), a global of {HERE}")
    (holder,) = plimsoll.holders(history[5])
    assert (holder.tensors, holder.bytes, str(holder)) == (212, 212 * 1536, holder.text)


def test_an_attribute_is_named_with_its_class_and_where_its_object_is():
    kind, text = one(lambda: trainer.history[0])
    assert kind == "global"
    expected = "`self.history` of `Trainer` (list of 3 tensors), reached as `trainer.history`, a global of " + HERE
    assert text == expected
    Trainer.seen.append(made())
    assert one(lambda: Trainer.seen[0]) == (
        "class attribute",
        "`Trainer.seen` (list of 1 tensor), an attribute of the class",
    )
    slots = Slots()
    slots.kept = made()
    kind, text = one(lambda: slots.kept)
    assert kind == "local" and text.startswith(
        "`self.kept` of `Slots`, reached as `slots.kept`, a local of `test_an_attr"
    )


def test_containers_within_containers_are_one():
    rows = collections.deque({"loss": (made(), step)} for step in range(4))
    kind, text = one(lambda: rows[2]["loss"][0])
    assert kind == "local" and text.startswith("`rows` (deque of 4 tensors), a local of `test_containers_within")


def test_submodules_parameters_and_buffers_are_attributes():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ModuleList([torch.nn.Linear(2, 2)]))
    model[1][0].register_buffer("mean", made())
    model[1][0].cache = made()
    for name in ("weight", "mean", "cache"):
        kind, text = one(lambda: getattr(model[1][0], name))
        assert text.startswith(f"`self.{name}` of `Linear`, reached as `model[1][0].{name}`, a local of"), text


def test_closures_defaults_and_caches_of_functions_are_named():
    def make():
        kept = []

        def hook(*_):
            kept.append(made())
            return kept

        return hook

    layer = torch.nn.Linear(2, 2)
    layer.register_forward_hook(make())
    hook = next(iter(layer._forward_hooks.values()))
    hook()
    kind, text = one(lambda: hook()[0])
    assert kind == "closure" and text.startswith("`kept` (list of 2 tensors), which `test_closures"), text
    assert ".hook` (test_holding.py:" in text and "closes over, held by `hook`" in text

    def step(seen=[made()], *, more={"x": made()}):
        pass

    for get, name in ((lambda: step.__defaults__[0][0], "seen"), (lambda: step.__kwdefaults__["more"]["x"], "more")):
        kind, text = one(get)
        assert kind == "default argument" and text.startswith(f"`{name}` (") and "a default argument of" in text

    @functools.lru_cache(None)
    def cached():
        return made()

    assert "whose results lru_cache keeps" in one(cached)[1]


def fails():
    batch = made()
    errors.append(weakref.ref(batch))
    raise RuntimeError("no")


def test_a_traceback_is_named_with_its_exception_and_the_local():
    try:
        fails()
    except RuntimeError as why:
        kept = why
    kind, text = one(errors.pop())
    assert kind == "traceback" and text.startswith("`batch`, a local of `fails` (test_holding.py:"), text
    assert "in the traceback of `RuntimeError`, held by `kept`, a local of" in text
    del kept


def test_generators_coroutines_and_threads_are_named():
    seen = []

    def numbers():
        batch = made()
        seen.append(weakref.ref(batch))
        yield 1
        yield batch

    async def waits():
        batch = made()
        seen.append(weakref.ref(batch))
        await asyncio.sleep(0)
        return batch

    steps, later = numbers(), waits()
    next(steps)
    later.send(None)
    for nth, name in enumerate(("generator `", "coroutine `")):
        kind, text = one(seen[nth])
        assert kind == "generator" and text.startswith("`batch`, a local of the " + name), text
    later.close()
    ready, done = threading.Event(), threading.Event()

    def load():
        batch = [made()]
        seen.append(weakref.ref(batch[0]))
        ready.set()
        done.wait()

    thread = threading.Thread(target=load, name="loader")
    thread.start()
    ready.wait()
    kind, text = one(seen[-1])
    done.set()
    thread.join()
    assert kind == "thread" and text.startswith("`batch` (list of 1 tensor), a local of `load`")
    assert text.endswith("in the thread `loader`")


def in_a_cycle():
    one, other = Node(), Node()
    one.other, other.other = other, one
    one.kept = [made()]
    return weakref.ref(one.kept[0])


def test_only_the_collector_frees_a_cycle_and_that_is_said():
    gc.collect()
    gc.disable()
    try:
        found = in_a_cycle()
        kind, text = one(found)
        assert kind == "cycle" and text.startswith(
            "`self.kept` of `Node` (list of 1 tensor), a reference cycle that only"
        )
        assert text.endswith("the collector is off (gc.disable())")
    finally:
        gc.enable()
    gc.collect()
    assert found() is None


def test_a_graph_and_a_gradient_are_named_by_their_tensors():
    weight = torch.ones(300, requires_grad=True)
    losses = [(weight * 2).exp().sum() for _ in range(3)]
    kind, text = one(lambda: losses[1].grad_fn.next_functions[0][0]._raw_saved_result.data)
    assert kind == "graph" and text.startswith("the autograd graph of `losses`, a local of"), text
    sum(losses).backward()
    kind, text = one(lambda: weight.grad)
    assert kind == "gradient" and text.startswith("`.grad` of `weight`, a local of"), text


def test_a_saved_tensor_is_not_unpacked():
    def unpack(_):
        raise AssertionError("a hook of the program's ran")

    weight = torch.ones(300, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda it: it, unpack):
        losses = [weight.exp().sum()]
    assert one(lambda: losses[0])[0] == "local"


class Hostile:
    def refuse(self, *_):
        raise AssertionError("the program's code ran")

    __getattr__ = __getattribute__ = __eq__ = __repr__ = __len__ = __iter__ = refuse
    __class__ = property(refuse)

    def __hash__(self):
        return hash("__builtins__")


def test_no_code_of_the_programs_runs():
    class Tensor(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_):
            raise AssertionError("the program's code ran")

    hostile = Hostile()
    object.__setattr__(hostile, "kept", made())
    assert one(lambda: object.__getattribute__(hostile, "kept"))[1].startswith("`self.kept` of `Hostile`, reached")
    odd = {hostile: made()}
    assert one(lambda: list(odd.values())[0])[1].startswith("`odd` (dict of 1 tensor), a local of")
    subclass = [torch.Tensor._make_subclass(Tensor, made())]
    assert one(lambda: subclass[0])[1].startswith("`subclass` (list of 1 tensor), a local of")


def test_a_walk_leaves_no_reference_and_names_nothing_of_its_own():
    kept = [made()]
    before = sys.getrefcount(kept), sys.getrefcount(kept[0])
    for _ in range(2):
        found = [it.text for it in plimsoll.holders(kept[0])]
        assert len(found) == 1, found
    Survey(torch, None)
    assert (sys.getrefcount(kept), sys.getrefcount(kept[0])) == before
    gc.disable()
    seen = weakref.ref(kept.pop())
    gc.enable()
    assert seen() is None
    assert [it.kind for it in plimsoll.holders(made())] == ["unknown"]
    with pytest.raises(TypeError):
        plimsoll.holders(3)


def test_many_tensors_and_deep_structures_take_bounded_time(monkeypatch):
    many = [[made()] for _ in range(20_000)]
    deep = [made()]
    found = weakref.ref(deep[0])
    for _ in range(5000):
        deep = [deep]
    began = time.monotonic()
    assert "`many` (list of 20000 tensors)" in one(lambda: many[77][0])[1]
    monkeypatch.setattr(climb, "SECONDS", 1.0)
    assert one(found)[0] == "unknown"
    assert time.monotonic() - began < 30


def grown(keep):
    # Finds the owners of memory that a training loop accumulates.
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32))
    optimizer, watch, nodes = torch.optim.Adam(model.parameters()), Growing(torch), []
    for step in range(12):
        out = model(torch.ones(64, 32))
        loss = out.square().mean()
        loss.backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()
        keep(out, loss, nodes)
        if step >= 5:
            watch.stepped({None: (step - 5) << 12}, step, False)
    latest = watch.rows()
    watch.grew(None, 1 << 15)
    # What was found before the last step is reported only if the program ends there.
    assert [it["text"].partition(", after step ")[2] for it in latest] == ["9"] * len(latest)
    assert not any(", after step " in it["text"] for it in watch.rows())
    # Other tests in this process may have left objects that were collected or changed in the
    # meantime.
    return [it for it in watch.found[None] if "`grown`" in it.text]


def test_what_keeps_more_from_step_to_step_is_named_and_what_a_step_works_with_is_not():
    (found,) = grown(lambda out, loss, nodes: nodes.append(loss))
    assert found.text.startswith("`nodes` (list of 12 tensors with their autograd graphs), a local of `grown`")
    assert found.bytes > 12 * 64 * 32 * 4

    def total(out, loss, nodes):
        nodes[:] = [sum(nodes, loss)]

    (found,) = grown(total)
    assert found.text.startswith("`nodes` (list of 1 tensor with its autograd graph), a local of `grown`")

    def node(out, loss, nodes):
        nodes.append(Node())
        nodes[-1].out = out.detach()

    (found,) = grown(node)
    assert found.text.startswith("`self.out` of `Node`, reached as `nodes[…].out`, a local of `grown`"), found.text
    assert grown(lambda out, loss, nodes: None) == []

    def failed(out, loss, nodes):
        try:
            fails(out.detach())
        except ValueError as error:
            nodes.append(error)

    def fails(batch):
        doubled, shifted = batch * 2, batch + 1
        raise ValueError(len(doubled) + len(shifted))

    (found,) = [it for it in grown(failed) if "`fails`" in it.text]
    assert found.text.startswith("`batch`, `doubled`, `shifted`, locals of `fails` (test_holding.py:"), found.text
    assert "in the traceback of `ValueError`, held by `nodes`, a local of `grown`" in found.text


def steps(optimizer, parameters, falling, count):
    for step in range(count):
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        falling.stepped(optimizer, step + 1, 1 << 20)


def test_states_of_frozen_parameters_and_of_a_dropped_optimizer_are_named(monkeypatch):
    falling = Falling(torch)
    monkeypatch.setattr(falling.known, "get", lambda it, name: name == "is_cuda" or getattr(it, name))
    parameters = [torch.nn.Parameter(torch.ones(256, 256)) for _ in range(2)]
    optimizer = torch.optim.Adam(parameters)
    steps(optimizer, parameters, falling, 3)
    parameters[0].requires_grad_(False)
    parameters[0].grad = None
    steps(optimizer, parameters, falling, 8)
    (row,) = falling.rows()
    assert (
        row["text"]
        == "the gradients of 1 parameter, which are frozen; the optimizer still keeps their states, 512.00 KiB"
    )
    del optimizer
    steps(torch.optim.SGD(parameters[1:]), parameters, falling, 3)
    (row,) = falling.rows()
    assert (row["text"], row["bytes"]) == (
        "the states of an optimizer that no longer exists",
        4 * 256 * 256 * 4 + 2 * 4,
    )


def test_an_optimizer_that_is_made_again_is_not_missing(monkeypatch):
    falling = Falling(torch)
    monkeypatch.setattr(falling.known, "get", lambda it, name: name == "is_cuda" or getattr(it, name))
    parameters = [torch.nn.Parameter(torch.ones(256, 256))]
    for _ in range(3):
        steps(torch.optim.Adam(parameters), parameters, falling, 3)
    assert falling.rows() == []


def test_parameters_gradients_buffers_and_optimizer_state_are_not_surveyed():
    gc.collect()
    before = set(Survey(torch, None).found)  # left by other tests in this process
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
    texts = " ".join(set(Survey(torch, None).found) - before)
    assert not any(name in texts for name in ("weight", "running_mean", "Adam", "model")), texts
