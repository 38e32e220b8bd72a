import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a = nn.MultiheadAttention(d, 4, batch_first=True)
        self.n1 = nn.LayerNorm(d)
        self.n2 = nn.LayerNorm(d)
        self.m = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        y = self.n1(x)
        x = x + self.a(y, y, y, need_weights=False)[0]
        return x + self.m(self.n2(x))


class GPT(nn.Module):
    def __init__(self, v=5000, d=256, n=3):
        super().__init__()
        self.e = nn.Embedding(v, d)
        self.b = nn.ModuleList(Block(d) for _ in range(n))
        self.h = nn.Linear(d, v)

    def forward(self, idx, targets):
        x = self.e(idx)
        for b in self.b:
            x = b(x)
        return F.cross_entropy(self.h(x).flatten(0, 1), targets.flatten())


def main():
    model = GPT().cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(10):
        idx = torch.randint(0, 5000, (16, 256), device="cuda")
        targets = torch.roll(idx, -1, 1)
        loss = model(idx, targets)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 5 == 0:
            print(step, loss.item())


main()
