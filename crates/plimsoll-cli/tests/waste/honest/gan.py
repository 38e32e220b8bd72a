import torch
import torch.nn as nn

G = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 784)).cuda()
D = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1)).cuda()
og = torch.optim.Adam(G.parameters())
od = torch.optim.Adam(D.parameters())
crit = nn.BCEWithLogitsLoss()


def step_d(real):
    od.zero_grad()
    ones = torch.ones(len(real), 1, device="cuda")
    loss = crit(D(real), ones)
    loss.backward()
    fake = G(torch.randn(len(real), 64, device="cuda")).detach()
    loss2 = crit(D(fake), torch.zeros(len(real), 1, device="cuda"))
    loss2.backward()
    od.step()


def step_g(n):
    og.zero_grad()
    loss = crit(D(G(torch.randn(n, 64, device="cuda"))), torch.ones(n, 1, device="cuda"))
    loss.backward()
    og.step()


for it in range(5):
    step_d(torch.randn(8192, 784, device="cuda"))
    step_g(8192)
