"""Scenes that show what counts as a step, and series of steps that grow, fall or vary for different
reasons."""

import gc

import torch
import torch.nn as nn

from .base import OPT, scene, train


def small(r, **options):
    """A model with as few requests per step as possible."""
    r.start(**options)
    width = 128 * r.scale
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).cuda()
    return model, OPT.SGD(model.parameters(), 0.01, momentum=0.9)


def batch(step=0, rows=256):
    return torch.randn(rows, 128, device="cuda")


def loss_of(model, x):
    return model(x).pow(2).mean()


def training(r, model, optimizer, steps, loss_of=loss_of, after=None):
    train(r, model, optimizer, steps, given=batch, look=-1, loss_of=loss_of, after=after)
    r.take()


@scene()
def leak_every_tenth(r):
    """A metric that is kept on the device in every tenth step."""
    r.expect(leak=True, verdict="Leaking")
    model, optimizer = small(r)
    logged = []

    def log(step, x, loss):
        if step % 10 == 0:
            logged.append(model[0].weight.norm(dim=0))
    training(r, model, optimizer, 30, after=log)


@scene()
def leak_every_seventh_from_the_fifth(r):
    """Like leak_every_tenth, with another period and a later start."""
    r.expect(leak=True, verdict="Leaking")
    model, optimizer = small(r)
    logged = []

    def log(step, x, loss):
        if step % 7 == 5:
            logged.append(model[0].weight.norm(dim=0))
    training(r, model, optimizer, 34, after=log)


def serve(model, x):
    return [part.softmax(-1) for part in (model(x), model(x[:8]))]


@scene()
def leak_on_the_line_of_answers(r):
    """A server that keeps each answer until the next, and a part of each, made by the same line, forever."""
    r.expect(leak=True, verdict="Leaking")
    model, _ = small(r)
    sessions, answer = [], None
    rows = [500, 3100, 1200, 2400, 900, 2800, 1700, 600, 2200, 3000, 1100, 1400, 2700, 800, 1900, 2500, 700, 2900, 1300]
    with torch.no_grad():
        for step in rows:
            answer, kept = serve(model, batch(rows=step))
            sessions.append(kept)
            r.step()
    r.take()


class Turn:
    """A step's state, which refers to itself."""

    def __init__(self, out):
        self.out, self.me = out, self


@scene()
def cycles(r):
    """Each step leaves an object that refers to itself and its output. The program collects garbage every ninth step."""
    r.expect(leak=False, verdict="HeldUntilGc", pattern="ReferenceCycles")
    model, optimizer = small(r)
    gc.disable()

    def loss(model, x):
        out = model(x)
        Turn(out.detach() * 2)
        return out.pow(2).mean()

    def collect(step, x, loss):
        if step % 9 == 6:
            gc.collect()
    training(r, model, optimizer, 40, loss_of=loss, after=collect)


@scene()
def cycles_by_themselves(r):
    """Like cycles, but Python decides when the collector runs."""
    r.expect(leak=False, verdict="HeldUntilGc", pattern="ReferenceCycles")
    model, optimizer = small(r)
    gc.collect()
    gc.set_threshold(300, 1, 1)

    def loss(model, x):
        out = model(x)
        turn = Turn(out.detach() * 2)
        turn.more = [[turn, []] for _ in range(25)]
        return out.pow(2).mean()
    training(r, model, optimizer, 50, loss_of=loss)


@scene()
def cleared_each_epoch(r):
    """A list of outputs that is cleared at the end of each epoch. It is not a leak, and the collector is not involved."""
    r.expect(leak=False, verdict="HeldUntilCleared", pattern="ClearedAtOnce")
    model, optimizer = small(r)
    outputs = []

    def loss(model, x):
        out = model(x)
        outputs.append(out.detach() * 2)
        return out.pow(2).mean()

    def epoch(step, x, loss):
        if step % 8 == 7:
            outputs.clear()
    training(r, model, optimizer, 44, loss_of=loss, after=epoch)


@scene()
def falling(r):
    """Data is freed step by step, so the level falls."""
    r.expect(leak=False, verdict="Falling")
    model, optimizer = small(r)
    data = [torch.empty(1 << 16, device="cuda") for _ in range(20)]

    def drop(step, x, loss):
        if data:
            data.pop()
    training(r, model, optimizer, 16, after=drop)


def compiling(r, calls, **options):
    """Calls a compiled forward pass this many times."""
    r.start()
    width = 256 * r.scale
    model = torch.compile(nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)).cuda(), **options)
    # The compiler's scopes are recorded only while a profiler runs.
    with torch.no_grad(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        for _ in range(calls):
            model(torch.randn(64, width, device="cuda"))
            r.step()
    r.take()


@scene()
def compiled_forward(r):
    """A compiled forward pass, called twice. The compiler's work does not count as a step."""
    r.expect(leak=False, verdict="TooFewSteps")
    compiling(r, 2)


@scene()
def autotuned_forward(r):
    """Like compiled_forward, with kernels that are tuned on the device."""
    r.expect(leak=False, verdict="TooFewSteps")
    compiling(r, 2, mode="max-autotune-no-cudagraphs")


@scene()
def compiled_calls(r):
    """A compiled forward pass, called often. Each call is a step."""
    r.expect(leak=False, verdict="Steady")
    compiling(r, 14)
