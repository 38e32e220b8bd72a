# bf16 autocast around the outermost module call; results are converted to f32, as accelerate does. Changes the numbers.

import torch
from torch.utils._pytree import tree_map

from . import context


class Autocast:
    name = "bf16"

    def __init__(self, value):
        self.applied = 0

    def around(self, root, following, args, kwargs):
        device = next((it.device for it in root.parameters()), torch.device("cpu"))
        kind = device.type
        if kind == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
            context.refuse(self.name, "this GPU has no bf16 instructions")
        if torch.is_autocast_enabled(kind):
            context.refuse(self.name, "the program uses autocast itself")
        with torch.autocast(kind, dtype=torch.bfloat16):
            result = following(*args, **kwargs)
        self.applied += 1
        return tree_map(self.widened, result)

    def widened(self, value):
        is_narrow = isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16
        return value.float() if is_narrow else value

    def report(self):
        lines = ['with torch.autocast("cuda", dtype=torch.bfloat16):', "    output = model(...)  # and the loss"]
        return dict(applied=bool(self.applied), detail="" if self.applied else context.untrained(), lines=lines)
