"""Training without leaks, in which every category is known."""

import torch
import torch.nn as nn

from .base import CONFIG, OPT, Model, adamw, loss_of, scene, tokens, train


def adam(parameters):
    return OPT.AdamW(parameters, 1e-4)


def usual(optimizer, steps=6, batch=lambda step: 8, micro=1, loss_of=loss_of, again=None, stacks="python", **kwargs):
    def program(r):
        r.expect(leak=False)
        r.start(stacks)
        model = Model(r, again=again).cuda()
        train(r, model, optimizer(model.parameters()), steps, batch, micro, loss_of, **kwargs)
    return program


def autocast_loss(model, x):
    with torch.autocast("cuda", torch.bfloat16):
        return loss_of(model, x)


def lengths(step):
    return [8, 3, 11, 5, 9, 2, 12, 6, 7, 4, 10, 8, 3, 9][step % 14]


for name, program in {
    "steady": usual(adam, steps=12),
    "steady_all": usual(adam, steps=5, stacks="all"),
    "variable_batch": usual(adam, steps=14, batch=lengths),
    "adam_fused": usual(lambda p: OPT.Adam(p, 1e-4, fused=True)),
    "adam_single": usual(lambda p: OPT.Adam(p, 1e-4, foreach=False)),
    "adam_amsgrad": usual(lambda p: OPT.Adam(p, 1e-4, amsgrad=True)),
    "sgd_plain": usual(lambda p: OPT.SGD(p, 0.01)),
    "sgd_momentum": usual(lambda p: OPT.SGD(p, 0.01, momentum=0.9, foreach=True)),
    "adagrad": usual(lambda p: OPT.Adagrad(p, 0.01)),
    "accumulation": usual(adam, steps=5, micro=4),
    "checkpoint_reentrant": usual(adam, again=True),
    "checkpoint_new": usual(adam, again=False),
    "checkpoint_all": usual(adam, again=False, steps=4, stacks="all"),
    "autocast": usual(adam, loss_of=autocast_loss),
}.items():
    program.__name__ = name
    scene()(program)


@scene(**{CONFIG: "expandable_segments:True"})
def expandable(r):
    usual(adam, steps=10, batch=lengths)(r)


@scene()
def half_model(r):
    """Parameters in bfloat16; gradients are not set to None."""
    r.expect(leak=False)
    r.start()
    model = Model(r).cuda().bfloat16()
    optimizer = adamw(model)
    train(r, model, optimizer, 6, look=3, tell=("forward",), set_to_none=False)


@scene()
def param_groups(r):
    """Two parameter groups, and a frozen embedding."""
    r.expect(leak=False)
    r.start()
    model = Model(r).cuda()
    model.embed.requires_grad_(False)
    groups = [{"params": [p for p in model.parameters() if p.requires_grad and p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.requires_grad and p.dim() < 2], "weight_decay": 0.0}]
    train(r, model, adam(groups))


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        square = x * x
        return grad * square * 3


@scene()
def custom_function(r):
    class Cubed(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = Model(r, layers=2)

        def forward(self, x):
            return Cube.apply(self.model(x))
    r.expect(leak=False)
    r.start()
    model = Cubed().cuda()
    train(r, model, adamw(model))


@scene()
def annotated(r):
    r.expect(leak=False, scopes=["epoch", "train_step", "evaluate"])
    r.start(global_record_annotations=True)
    model = Model(r).cuda()
    optimizer = adamw(model)
    for epoch in range(2):
        with torch.profiler.record_function("epoch"):
            for step in range(4):
                with torch.profiler.record_function("train_step"):
                    loss_of(model, tokens(8)).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                r.step()
            with torch.profiler.record_function("evaluate"), torch.no_grad():
                loss_of(model, tokens(16))
    r.moment("at the end", [model], [optimizer])


@scene()
def ring(r):
    """The recording keeps only its last events."""
    r.expect(leak=False, truncated=True)
    r.start(max_entries=1500)
    model = Model(r).cuda()
    optimizer = adamw(model)
    train(r, model, optimizer, 14, look=-1, end=False)
    r.moment("at the end", [model], [optimizer])
    r.take()


@scene()
def late(r):
    """The recording begins after training has started."""
    r.expect(leak=False)
    model = Model(r).cuda()
    optimizer = adamw(model)
    train(r, model, optimizer, 8, look=-1, before=lambda step: r.start() if step == 2 else None)
    r.take()


@scene()
def pinned(r):
    r.expect(leak=False)
    r.start(record_pinned_host_memory=True)
    model = Model(r).cuda()
    optimizer = adamw(model)
    train(r, model, optimizer, 5, look=-1, given=lambda step: torch.randint(0, 4096, (8, 128)).pin_memory().to(
        "cuda", non_blocking=True))


@scene()
def last_pass(r):
    """The recording ends inside the optimizer's step, while all of its temporaries are live."""
    r.expect(leak=False, verdict="WarmingUp")
    r.start()
    model = Model(r, layers=2).cuda()
    optimizer = adamw(model)
    train(r, model, optimizer, 3, look=-1, end=False)
    loss_of(model, tokens(8)).backward()
    real = torch._foreach_addcdiv_

    def take(*given, **options):
        if r.snapshot is None:
            r.moment("at the end", [model], [optimizer])
            r.take()
        return real(*given, **options)
    torch._foreach_addcdiv_ = take
    optimizer.step()


@scene()
def first_pass_is_last(r):
    """Like last_pass, in the optimizer's first step."""
    r.expect(leak=False, verdict="TooFewSteps")
    r.start()
    model = Model(r, layers=2).cuda()
    optimizer = adamw(model)
    loss_of(model, tokens(8)).backward()
    real = torch._foreach_addcdiv_

    def take(*given, **options):
        if r.snapshot is None:
            r.moment("at the end", [model], [optimizer])
            r.take()
        return real(*given, **options)
    torch._foreach_addcdiv_ = take
    optimizer.step()


class Lion(OPT.Optimizer):
    """An optimizer of the user's own."""

    def __init__(self, parameters, lr=1e-4):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["mean"] = torch.zeros_like(p)
                update = state["mean"].mul(0.9).add_(p.grad, alpha=0.1)
                p.add_(update.sign_(), alpha=-group["lr"])
                state["mean"].lerp_(p.grad, 0.01)


@scene()
def own_optimizer(r):
    """The recording ends with the optimizer's step and its temporary."""
    r.expect(leak=False)
    r.start()
    model = Model(r, layers=2).cuda()
    train(r, model, Lion(model.parameters()), 5, set_to_none=False)


class Convolutions(nn.Module):
    """BatchNorm; with `tables`, also a mask and codes with the sizes of parameters."""

    def __init__(self, width=64, tables=True):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
            for _ in range(4))
        self.head = nn.Linear(width, width)
        self.mask, self.codes = None, 0
        if tables:
            del self.mask, self.codes
            self.register_buffer("mask", torch.ones(width, width).tril())
            self.register_buffer("codes", torch.arange(width).float())

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        x = self.head(x.mean((2, 3)))
        return ((x if self.mask is None else x @ self.mask) + self.codes).pow(2).mean()


def convolving(r, optimizer, late=False, device=None, steps=6):
    """Training. If `late`, the recording begins at the third step."""
    r.expect(leak=False)
    if not late:
        r.start()
    if device:
        with torch.device(device):
            model = Convolutions(tables=False)
    else:
        model = Convolutions().cuda()
    optimizer = optimizer(model.parameters())
    train(r, model, optimizer, steps, given=lambda step: torch.randn(4, 64, 8, 8, device="cuda"), look=steps - 2,
          loss_of=lambda model, x: model(x), tell=("backward",),
          before=lambda step: r.start() if late and step == 2 else None)
    r.take()


for name, program in {
    "buffers": lambda r: convolving(r, adam),
    "buffers_late": lambda r: convolving(r, adam, late=True),
    "buffers_late_sgd": lambda r: convolving(r, lambda p: OPT.SGD(p, 0.01), late=True),
    "buffers_late_momentum": lambda r: convolving(r, lambda p: OPT.SGD(p, 0.01, momentum=0.9), late=True),
    "buffers_made_there": lambda r: convolving(r, adam, device="cuda"),
}.items():
    program.__name__ = name
    scene()(program)
