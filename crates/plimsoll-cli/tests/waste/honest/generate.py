import torch

net = torch.nn.Sequential(torch.nn.Embedding(1000, 512), torch.nn.Linear(512, 1000)).cuda().eval()


@torch.no_grad()
def generate(n):
    seq = torch.zeros(64, 1, dtype=torch.long, device="cuda")
    cache = []
    for _ in range(n):
        logits = net(seq[:, -1:])
        cache.append(logits[:, :, :64])
        nxt = logits.argmax(-1)
        seq = torch.cat([seq, nxt], 1)
    return seq, torch.cat(cache, 1)


seq, kept = generate(64)
print(seq.shape, kept.shape)
