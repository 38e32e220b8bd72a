import torch

net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
data = [(torch.randn(512), i % 10) for i in range(256)]
loader = torch.utils.data.DataLoader(data, batch_size=64)
val = torch.utils.data.DataLoader(data, batch_size=128)
for epoch in range(2):
    net.train()
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(net(x.cuda()), y.cuda())
        loss.backward()
        opt.step()
        opt.zero_grad()
    net.eval()
    with torch.no_grad():
        right = 0
        for x, y in val:
            right += (net(x.cuda()).argmax(1).cpu() == y).sum().item()
    print(right)
