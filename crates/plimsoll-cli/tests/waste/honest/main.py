# A function that runs at exit reads a variable through `__main__`.
import atexit

import torch

x = torch.randn(64 << 20, device="cuda")
y = x.sum()


def report():
    import __main__

    print(__main__.x.mean().item())


atexit.register(report)
for _ in range(3):
    z = torch.randn(128 << 20, device="cuda")
    print(z.sum().item())
    del z
