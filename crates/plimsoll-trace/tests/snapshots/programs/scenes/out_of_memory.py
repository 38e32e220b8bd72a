"""Programs that run out of memory."""

import os
import subprocess
import sys

import torch

from .base import CONFIG, MIB, OPT, Model, Saved, adamw, limit, loss_of, room, scene, tokens, train


def fails(r, program):
    """Runs a program that must fail. Takes the snapshot where it catches the exception, as users do."""
    try:
        program()
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError as error:
        r.failed(error)
        r.take()
        return True
    return False


@scene()
def oom_forward(r):
    """A batch that is too large for the process's limit."""
    r.expect(fails=True)
    r.start()
    model = Model(r).cuda()
    optimizer = adamw(model)
    train(r, model, optimizer, 3)
    room(r, 16 * MIB)
    fails(r, lambda: train(r, model, optimizer, 1, batch=lambda step: 64, look=9))


@scene()
def oom_all(r):
    """Like oom_forward, with C++ frames, and an observer that takes the snapshot at the moment of the
    failure."""
    r.expect(fails=True)
    r.start("all")
    model = Model(r, layers=2).cuda()
    optimizer = adamw(model)
    train(r, model, optimizer, 2)
    room(r, 16 * MIB)

    def observe(device, asked, total, free):
        if r.snapshot is None:
            r.take()
    torch._C._cuda_attach_out_of_memory_observer(observe)
    fails(r, lambda: train(r, model, optimizer, 1, batch=lambda step: 64, look=9))


@scene()
def oom_goes_on(r):
    """The failure is caught, the batch is halved until it fits, and training continues."""
    r.expect(fails=True, leak=False)
    r.start()
    model = Model(r).cuda()
    optimizer = adamw(model)
    train(r, model, optimizer, 3)
    room(r, 64 * MIB)
    batch = 64
    for step in range(8):
        try:
            loss_of(model, tokens(batch)).backward()
            optimizer.step()
        except torch.cuda.OutOfMemoryError as error:
            r.failed(error)
            batch //= 2
        optimizer.zero_grad()
        torch.cuda.empty_cache()
        r.step()
    r.moment("at the end", [model], [optimizer])


@scene()
def oom_backward(r):
    """The forward pass fits, but the gradients do not."""
    r.expect(fails=True)
    r.start()
    model = Model(r).cuda()
    optimizer = OPT.SGD(model.parameters(), 0.01)
    with Saved() as saved:
        x = tokens(16)
        loss = loss_of(model, x)
    torch.cuda.empty_cache()
    r.moment("after forward", [model], [optimizer], inputs=[x], activations=saved.places)
    room(r, 2 * MIB)
    fails(r, loss.backward)


@scene()
def oom_optimizer(r):
    """The first step of an optimizer, with no room for its state."""
    r.expect(fails=True)
    r.start()
    model = Model(r).cuda()
    optimizer = adamw(model)
    x = tokens(1)
    loss_of(model, x).backward()
    r.moment("after backward", [model], [optimizer], inputs=[x])
    torch.cuda.empty_cache()
    room(r, 4 * MIB)
    fails(r, optimizer.step)


def runs_out_in_step(r, optimizer, more, layers=3, **options):
    """The first step of an optimizer, with room for `more` bytes of its state."""
    r.expect(fails=True)
    r.start()
    model = Model(r, layers=layers).cuda()
    optimizer = optimizer(model.parameters(), **options)
    loss_of(model, tokens(1)).backward()
    torch.cuda.empty_cache()
    room(r, more)
    fails(r, optimizer.step)


@scene()
def oom_adam_late(r):
    """Memory runs out when half of Adam's state is made."""
    states = 2 * sum(p.numel() * 4 for p in Model(r).parameters())
    r.expect(needs=states)
    runs_out_in_step(r, OPT.Adam, 24 * MIB)


@scene()
def oom_amsgrad(r):
    """An optimizer with three state tensors per parameter."""
    states = 3 * sum(p.numel() * 4 for p in Model(r).parameters())
    r.expect(needs=states)
    runs_out_in_step(r, OPT.Adam, 24 * MIB, amsgrad=True)


def states_of(r, parts, layers=3):
    """The bytes of `parts` tensors for each parameter."""
    return parts * sum(p.numel() * 4 for p in Model(r, layers=layers).parameters())


@scene()
def oom_sgd_momentum(r):
    """SGD makes its momentum buffers in the first step, as copies of the gradients."""
    r.expect(needs=states_of(r, 1, layers=8))
    runs_out_in_step(r, OPT.SGD, 6 * MIB, layers=8, lr=0.1, momentum=0.9)


@scene()
def oom_sgd_momentum_loop(r):
    """Like oom_sgd_momentum, one parameter after another, without foreach."""
    r.expect(needs=states_of(r, 1, layers=8))
    runs_out_in_step(r, OPT.SGD, 6 * MIB, layers=8, lr=0.1, momentum=0.9, foreach=False)


@scene()
def oom_rmsprop(r):
    """An optimizer with one state tensor per parameter."""
    r.expect(needs=states_of(r, 1, layers=8))
    runs_out_in_step(r, OPT.RMSprop, 6 * MIB, layers=8)


@scene()
def oom_rmsprop_centered(r):
    """An optimizer with three state tensors per parameter: squares, momentum, averages."""
    r.expect(needs=states_of(r, 3))
    runs_out_in_step(r, OPT.RMSprop, 20 * MIB, momentum=0.9, centered=True)


@scene()
def oom_foreach(r):
    """The optimizer's state exists, but there is no room for the temporaries of its step."""
    r.expect(fails=True)
    r.start()
    model = Model(r).cuda()
    optimizer = OPT.Adam(model.parameters())
    for step in range(3):
        loss_of(model, tokens(1)).backward()
        if step < 2:
            optimizer.step()
            optimizer.zero_grad()
    torch.cuda.empty_cache()
    room(r, 4 * MIB)
    fails(r, optimizer.step)


@scene()
def oom_layer(r):
    """A forward pass of twelve identical layers, with room for about four. The size of all of them is measured first."""
    r.expect(fails=True)
    model = Model(r, layers=12, vocabulary=512).cuda()
    x = torch.randint(0, 512, (32, 128), device="cuda")
    torch.zeros(1, device="cuda")
    free = torch.cuda.memory_allocated()
    hidden = model.embed(x)
    begin = torch.cuda.memory_allocated()
    for block in model.blocks:
        hidden = block(hidden)
    needs = torch.cuda.memory_allocated() - begin
    r.expect(needs=needs, layers=12)
    del hidden
    assert torch.cuda.memory_allocated() == free
    model = None
    torch.cuda.empty_cache()
    r.start()
    model = Model(r, layers=12, vocabulary=512).cuda()
    room(r, needs * 2 // 5)
    fails(r, lambda: model(x))


@scene()
def oom_evaluation(r):
    """Training fits, but an evaluation with larger batches does not."""
    r.expect(fails=True)
    r.start()
    model = Model(r).cuda()
    optimizer = adamw(model)
    train(r, model, optimizer, 4)
    room(r, 8 * MIB)

    def evaluate():
        model.eval()
        with torch.no_grad():
            for _ in range(4):
                loss_of(model, tokens(96))
    fails(r, evaluate)


@scene()
def oom_loading(r):
    """A checkpoint is loaded to the device in addition to the model that it is for."""
    r.expect(fails=True)
    r.start()
    model = Model(r).cuda()
    optimizer = adamw(model)
    train(r, model, optimizer, 2)
    path = f"{r.args.out}/{r.name}.checkpoint"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    torch.cuda.empty_cache()
    room(r, 8 * MIB)

    def resume():
        saved = torch.load(path, map_location="cuda")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    fails(r, resume)
    os.remove(path)


def caches(r):
    """Caches of sequences, 8 MiB each, two per segment of 20 MiB; then a request of 32 MiB."""
    r.start()
    limit(r, 218 * MIB)
    held = [torch.empty(8 * MIB, dtype=torch.uint8, device="cuda") for _ in range(20)]
    r.moment("caches", cache=held)
    return fails(r, lambda: held.append(torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")))


@scene()
def fragmented(r):
    r.expect(fails=True, expandable_fits=True)
    caches(r)


@scene(**{CONFIG: "expandable_segments:True"})
def fragmented_expandable(r):
    r.expect(fails=caches(r))


@scene()
def comb(r):
    """Every second one of many blocks is freed; then a block as large as two of them is requested."""
    r.expect(fails=True)
    r.start()
    limit(r, 260 * MIB)
    width = 4 * MIB
    held = [torch.empty(width, dtype=torch.uint8, device="cuda") for _ in range(60)]
    del held[::2]
    r.moment("comb", cache=held)
    fails(r, lambda: held.append(torch.empty(6 * width, dtype=torch.uint8, device="cuda")))


@scene()
def oom_huge(r):
    """A request of an absurd size: the attention scores of a long sequence."""
    r.expect(fails=True, shape=[16, 81920, 81920])
    r.start()
    q = torch.randn(16, 81920, 64, device="cuda")
    fails(r, lambda: torch.softmax(q @ q.transpose(1, 2), -1))


def growing(r, model, optimizer, steps):
    """Steps whose batches double in size."""
    train(r, model, optimizer, steps, batch=lambda step: 8 << step, look=-1)


@scene(alone=True)
def oom_device(r):
    """The device itself is full, because of this process."""
    r.expect(fails=True)
    r.start()
    weights = torch.empty(torch.cuda.mem_get_info()[0] - 700 * MIB, dtype=torch.uint8, device="cuda")
    model = Model(r).cuda()
    optimizer = adamw(model)
    r.moment("at first", [model], [optimizer], cache=[weights])
    fails(r, lambda: growing(r, model, optimizer, 6))


@scene(real=True, alone=True)
def oom_other_process(r):
    """The device is full, because of another process."""
    r.expect(fails=True, outside=True)
    torch.zeros(1, device="cuda")
    take = torch.cuda.mem_get_info()[0] - 1500 * MIB
    other = subprocess.Popen(
        [sys.executable, "-c", f"import torch, time; x = torch.empty({take}, dtype=torch.uint8, device='cuda'); "
         "print('held', flush=True); time.sleep(60)"], stdout=subprocess.PIPE)
    try:
        other.stdout.readline()
        r.start()
        model = Model(r).cuda()
        optimizer = adamw(model)
        fails(r, lambda: growing(r, model, optimizer, 7))
    finally:
        other.kill()
