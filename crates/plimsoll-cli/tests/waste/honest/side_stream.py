# A second stream may still read x when the host has read it for the last time.
import torch

side = torch.cuda.Stream()
x = torch.randn(32 << 20, device="cuda")
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    y = x.sin()
h = torch.randn(64 << 20, device="cuda")
torch.cuda.current_stream().wait_stream(side)
print(h.shape, y.shape)
