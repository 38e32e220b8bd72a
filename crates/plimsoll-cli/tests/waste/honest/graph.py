# A captured graph reads its input without a line that names it.
import torch

static_x = torch.zeros(16 << 20, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = static_x * 2
for _ in range(3):
    graph.replay()
    z = torch.randn(32 << 20, device="cuda")
    print(z.shape, y.shape)
