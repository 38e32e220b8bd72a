# not needed at the peak: opt
import torch

base = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
head = torch.nn.Linear(2048, 10).cuda()
opt = torch.optim.AdamW([*base.parameters(), *head.parameters()])
for step in range(6):
    if step == 1:
        for p in base.parameters():
            p.requires_grad_(False)
    x = torch.randn(1024 if step < 2 else 120000, 2048, device="cuda")
    opt.zero_grad()
    loss = head(base(x)).square().mean()
    loss.backward()
    opt.step()
