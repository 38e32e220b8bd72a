import torch

net = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 1)).cuda()
opt = torch.optim.LBFGS(net.parameters(), max_iter=4, history_size=4)
x, y = torch.randn(8192, 512, device="cuda"), torch.randn(8192, 1, device="cuda")


def closure():
    opt.zero_grad()
    loss = (net(x) - y).square().mean()
    loss.backward()
    return loss


for _ in range(4):
    opt.step(closure)
