"""Several devices, compiled programs, private pools."""

import torch
import torch.nn as nn

from .base import OPT, Block, Model, adamw, loss_of, scene, tokens, train


@scene(devices=2)
def two_devices(r):
    r.expect(leak=False)
    r.start()
    halves = [Model(r, layers=2).cuda(0), Block(256 * r.scale).cuda(1)]
    down = nn.Linear(4096, 256 * r.scale).cuda(1)
    halves.append(down)
    optimizer = adamw(*halves)

    def loss_of_halves(halves, x):
        return halves[1](down(halves[0](x).to("cuda:1"))).pow(2).mean()
    train(r, halves, optimizer, 6, loss_of=loss_of_halves, look=3, tell=("forward", "backward"))


@scene()
def compiled(r):
    r.expect(leak=False)
    r.start()
    model = Model(r).cuda()
    step_model = torch.compile(model)
    optimizer = adamw(model)
    train(r, model, optimizer, 6, loss_of=lambda model, x: loss_of(step_model, x), look=3, saved=False,
          tell=("forward", "backward"))


@scene(real=True)
def compiled_all(r):
    r.expect(leak=False)
    r.start("all")
    model = Model(r, layers=2).cuda()
    train(r, model, adamw(model), 5, loss_of=torch.compile(loss_of))


@scene(real=True)
def compiled_graphs(r):
    r.expect(leak=False, private_pools=True)
    r.start()
    model = Model(r).cuda()
    step_model = torch.compile(model, mode="reduce-overhead")
    optimizer = adamw(model)
    train(r, model, optimizer, 8, loss_of=lambda model, x: loss_of(step_model, x), look=-1,
          before=lambda step: torch.compiler.cudagraph_mark_step_begin())


@scene()
def memory_pool(r):
    r.expect(leak=False, private_pools=True)
    r.start()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        model = Model(r).cuda()
    optimizer = adamw(model)
    train(r, model, optimizer)


@scene(real=True)
def captured(r):
    """A complete step as a CUDA graph. Replays make no requests, so no snapshot shows them."""
    r.expect(leak=False, private_pools=True, verdict="TooFewSteps")
    r.start()
    model = Model(r).cuda()
    optimizer = OPT.AdamW(model.parameters(), 1e-4, capturable=True)
    x = tokens(8)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad()
    with torch.cuda.graph(graph):
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
    for _ in range(5):
        x.copy_(tokens(8))
        graph.replay()
        r.step()
    r.moment("at the end", [model], [optimizer], inputs=[x])
    r.take()


@scene(real=True)
def graphed_callables(r):
    r.expect(leak=False, private_pools=True)
    r.start()
    width = 256 * r.scale
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).cuda()
    example = torch.randn(64, width, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (example,))
    optimizer = OPT.SGD(model.parameters(), 0.01, momentum=0.9)
    for _ in range(6):
        graphed(torch.randn(64, width, device="cuda", requires_grad=True)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        r.step()
    r.moment("at the end", [model], [optimizer])
    r.take()
