# not needed at the peak: flat, logits
import torch
import torch.nn.functional as F

net = torch.nn.Sequential(torch.nn.Embedding(32000, 64), torch.nn.Linear(64, 32000)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    idx = torch.randint(0, 32000, (8, 512), device="cuda")
    logits = net(idx)
    flat = logits.view(-1, 32000)
    loss = F.cross_entropy(flat, idx.view(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
