import torch

net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
fast = torch.compile(net)
opt = torch.optim.AdamW(net.parameters())
for _ in range(4):
    opt.zero_grad()
    loss = fast(torch.randn(8192, 512, device="cuda")).square().mean()
    loss.backward()
    opt.step()
