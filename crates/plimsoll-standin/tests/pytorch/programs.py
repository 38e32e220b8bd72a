"""Small training programs of common kinds. After every step, each prints the allocated bytes, the peak of allocated
bytes and the peak of reserved bytes. The output is compared with that of other devices (expected/).

usage: python programs.py [NAME ...]      all of them without a name; no library but PyTorch's own is needed
"""

import gc
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda"


def tell(name, step):
    torch.cuda.synchronize()
    numbers = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(name, step, *numbers, flush=True)


def train(name, model, batch, loss, optimizer, steps=3, autocast=None, accumulate=1):
    model.to(device)
    optimizer = optimizer(model.parameters())
    for step in range(steps):
        for _ in range(accumulate):
            x, y = batch()
            with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
                value = loss(model, x, y)
            (value / accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
        tell(name, step)


def cross_entropy(model, x, y):
    logits = model(x)
    return F.cross_entropy(logits.flatten(0, -2), y.flatten())


def images(count, size, classes):
    return lambda: (
        torch.randn(count, 3, size, size, device=device),
        torch.randint(0, classes, (count,), device=device),
    )


def tokens(count, length, words):
    return lambda: (lambda x: (x, x))(torch.randint(0, words, (count, length), device=device))


def adamw(fused):
    return lambda parameters: torch.optim.AdamW(parameters, fused=fused, foreach=None if fused else True)


def momentum(parameters):
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


class Residual(nn.Module):
    def __init__(self, width, stride=1):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.skip = nn.Identity() if stride == 1 else nn.Conv2d(width, width, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.before_attention(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.before_mlp(x))


class Decoder(nn.Module):
    def __init__(self, words=5000, length=512, width=512, heads=8, layers=6, checkpoint=False):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.checkpoint = checkpoint

    def forward(self, x):
        x = self.word(x) + self.place(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if self.checkpoint else block(x)
        return self.head(self.norm(x))


def mlp():
    model = nn.Sequential(nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10))
    batch = lambda: (torch.randn(512, 784, device=device), torch.randint(0, 10, (512,), device=device))
    train("mlp", model, batch, cross_entropy, momentum)


def convolutions():
    # Without cuDNN, because its workspaces on a GPU depend on the algorithm that it measures as fastest.
    with torch.backends.cudnn.flags(enabled=False):
        layers = [nn.Conv2d(3, 64, 7, 2, 3), Residual(64), Residual(64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        train("convolutions", nn.Sequential(*layers, nn.Linear(64, 100)), images(16, 128, 100), cross_entropy, momentum)


def transformer():
    train("transformer", Decoder(), tokens(8, 512, 5000), cross_entropy, adamw(True))


def transformer_bf16():
    train("transformer_bf16", Decoder(), tokens(8, 512, 5000), cross_entropy, adamw(True), autocast=torch.bfloat16)


def transformer_checkpoint():
    train("transformer_checkpoint", Decoder(checkpoint=True), tokens(8, 512, 5000), cross_entropy, adamw(False))


def transformer_accumulate():
    train("transformer_accumulate", Decoder(), tokens(2, 384, 5000), cross_entropy, adamw(True), accumulate=4)


def growing_lengths():
    lengths = iter([64, 200, 128, 333, 500, 90, 412, 256])
    batch = lambda: tokens(8, next(lengths), 5000)()
    train("growing_lengths", Decoder(layers=4), batch, cross_entropy, adamw(False), steps=8)


def sorting_and_gathering():
    """Kernels that request scratch memory from PyTorch's allocator, according to the device's properties."""
    table = nn.Embedding(1000, 64, device=device)
    for step in range(3):
        x = torch.randn(1_000_000, device=device)
        x.sort(), x.topk(1000), x.cumsum(0), x.view(1000, 1000).sum(0), x.mean()
        table(torch.zeros(100_000, dtype=torch.long, device=device)).sum().backward()
        tell("sorting_and_gathering", step)


def pinned_and_streams():
    side = torch.cuda.Stream()
    for step in range(3):
        host = torch.empty(4 << 20).pin_memory()
        with torch.cuda.stream(side):
            there = host.to(device, non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        there.record_stream(torch.cuda.current_stream())
        there = there * 2
        tell("pinned_and_streams", step)


def captured_graph():
    model, x = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).to(device), None
    side = torch.cuda.Stream()
    x = torch.randn(256, 1024, device=device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(x).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x).sum().backward()
    for step in range(2):
        graph.replay()
        tell("captured_graph", step)


def runs_out():
    held = []
    try:
        while True:
            held.append(torch.empty(3 << 28, device=device))
    except torch.OutOfMemoryError:
        tell("runs_out", len(held))
    held.clear()
    torch.cuda.empty_cache()
    tell("runs_out", "after")


def random_edges(nodes, edges):
    # Coalesced on the host: on the device, the number of remaining entries would be read from it.
    places = torch.randint(0, nodes, (2, edges))
    return torch.sparse_coo_tensor(places, torch.ones(edges), (nodes, nodes)).coalesce().to(device)


def graph_layers(name="graph_layers", form=torch.sparse_csr):
    edges = random_edges(20000, 200000).to_sparse(layout=form)
    first, second = nn.Linear(64, 128, device=device), nn.Linear(128, 16, device=device)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()])
    for step in range(2):
        hidden = torch.sparse.mm(edges, first(torch.randn(20000, 64, device=device))).relu()
        torch.sparse.mm(edges, second(hidden)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        tell(name, step)


def graph_layers_coo():
    graph_layers("graph_layers_coo", torch.sparse_coo)


def sparse_product():
    edges = random_edges(20000, 200000)
    for form, matrix in ("coo", edges), ("csr", edges.to_sparse_csr()):
        two_steps = torch.sparse.mm(matrix, matrix)
        tell("sparse_product", form)
        del two_steps


def sparse_solution():
    matrix, sides = random_edges(5000, 40000).to_sparse_csr(), torch.randn(5000, 64, device=device)
    torch.triangular_solve(sides, matrix)
    tell("sparse_solution", "matrix")
    torch.triangular_solve(sides[:, :1], matrix)
    tell("sparse_solution", "vector")
    torch.sparse.sampled_addmm(matrix, sides, sides.t())
    tell("sparse_solution", "sampled")


def sparse_embedding():
    model = nn.EmbeddingBag(50000, 64, mode="sum", sparse=True)
    batch = lambda: (torch.randint(0, 50000, (256, 32), device=device), None)
    train("sparse_embedding", model, batch, lambda model, x, y: model(x).square().mean(), torch.optim.SparseAdam)


def speech():
    model = nn.Sequential(nn.Linear(80, 512), nn.GELU(), nn.Linear(512, 32))
    steps, samples, letters = 400, 16, 60
    batch = lambda: (
        torch.randn(steps, samples, 80, device=device),
        torch.randint(1, 32, (samples * letters,), dtype=torch.int),
    )
    loss = lambda model, x, y: F.ctc_loss(model(x).log_softmax(2), y, [steps] * samples, [letters] * samples)
    train("speech", model, batch, loss, adamw(False))


PROGRAMS = [
    mlp,
    convolutions,
    transformer,
    transformer_bf16,
    transformer_checkpoint,
    transformer_accumulate,
    growing_lengths,
    sorting_and_gathering,
    pinned_and_streams,
    captured_graph,
    graph_layers,
    graph_layers_coo,
    sparse_product,
    sparse_solution,
    sparse_embedding,
    speech,
    runs_out,
]

if __name__ == "__main__":
    chosen = sys.argv[1:]
    for program in PROGRAMS:
        if not chosen or program.__name__ in chosen:
            torch.manual_seed(0)
            program()
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
