# not needed at the peak: outs
import torch


def features(x, layers):
    outs = []
    for layer in layers:
        x = layer(x).relu()
        outs.append(x)
    pooled = [o.mean(0) for o in outs]
    stack = torch.stack(pooled)
    return stack, torch.randn(200_000, 1024, device="cuda").sum()


layers = [torch.nn.Linear(1024, 1024).cuda() for _ in range(8)]
with torch.no_grad():
    for _ in range(3):
        s, t = features(torch.randn(50_000, 1024, device="cuda"), layers)
