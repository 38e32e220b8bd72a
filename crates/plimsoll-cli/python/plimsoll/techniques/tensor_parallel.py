"""Tensor parallelism: splits the linear layers of repeated transformer blocks over the ranks of `run --devices N`
(`parallelize_module`). The first layers of attention and of the MLP are split by columns, the last ones by rows.
All ranks compute the complete batch. Rounding differs, because sums are computed over ranks.

Layers are recognized by their names. A block must derive its number of heads from the sizes of its tensors
(`view(batch, tokens, -1, size)`), because each rank has only a part of the heads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import blocks, context, fsdp, observers, parts, ranks

# Names of linear layers, by how they are split.
COLUMNS = set(
    "q_proj k_proj v_proj q k v wq wk wv to_q to_k to_v query key value q_lin k_lin v_lin"
    " gate_proj up_proj gate up fc_in fc1 w1 w3 wi wi_0 wi_1 lin1 linear1".split()
)
ROWS = set("o_proj out_proj o wo to_out out_lin proj_out down_proj down fc_out fc2 w2 lin2 linear2".split())


class TensorParallel:
    """Splits linear layers over ranks."""

    name = "tensor-parallel"

    def __init__(self, value: int | None) -> None:
        self.mesh: Any = None
        self.world = 0
        self.split = self.sent = self.steps = 0  # layers, bytes that this rank sends, optimizer steps
        self.lines: list[str] = []

    def begin(self) -> None:
        if ranks.are_own():
            ranks.hide()
            ranks.seed()
            self.world = ranks.number("WORLD_SIZE")
            observers.listeners["stepped"].append(self.stepped)
            place = torch.nn.utils
            place.clip_grad_norm_ = place.clip_grad.clip_grad_norm_ = clipped(place.clip_grad_norm_)

    def first(self, root: Any) -> None:
        why = context.wrapped_class(root)
        if why is None and not self.world:
            why = f"{self.name} needs several GPUs: {fsdp.LAUNCH.replace('fsdp', self.name)}"
        if why is None and self.mesh is None and torch.distributed.is_initialized():
            why = "the program initializes torch.distributed itself: add the lines there"
        why = why or parts.hooked(root)
        if why is not None:
            context.refuse(self.name, why)
        found = [(path, block, plan_of(block)) for path, block in blocks.find(root)]
        found = [it for it in found if it[2]]
        if not found:
            context.refuse(
                self.name, "no repeated block has linear layers with known names (q_proj … o_proj, up_proj … down_proj)"
            )
        for _, block, plan in found:
            self.check(block, plan)
        device = next(root.parameters()).device
        if self.mesh is None:
            self.mesh = ranks.join(device.type)
        for tensor in [*root.parameters(), *root.buffers()]:
            torch.distributed.broadcast(tensor.detach(), 0)
        self.parallelize([(block, plan) for _, block, plan in found])
        root._register_state_dict_hook(fsdp.whole_state)
        self.lines += lines(root, [path for path, _, _ in found], found[0][2], self.world)

    def check(self, block: Any, plan: dict[str, str]) -> None:
        """Rejects layers that cannot be divided by the number of ranks."""
        for path, way in plan.items():
            layer = block.get_submodule(path)
            size = layer.out_features if way == "columns" else layer.in_features
            if size % self.world:
                context.refuse(self.name, f"{path} has {size} {way}, which is not divisible by {self.world} ranks")

    def parallelize(self, found: list[tuple[Any, dict[str, str]]]) -> None:
        """Splits the layers, and replaces their parameters in the optimizers."""
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        for block, plan in found:
            before = dict(block.named_parameters())
            styles = {path: ColwiseParallel() if way == "columns" else RowwiseParallel() for path, way in plan.items()}
            parallelize_module(block, self.mesh, styles)
            changed = {name: it for name, it in before.items() if block.get_parameter(name) is not it}
            fsdp.replace({id(it): (it, block.get_parameter(name)) for name, it in changed.items()})
            self.split += len(plan)
            for path, way in plan.items():
                if way == "rows":
                    block.get_submodule(path).register_forward_hook(self.count)
        for optimizer in list(observers.optimizers):
            optimizer.register_state_dict_post_hook(lambda optimizer, state: fsdp.whole(state))
            for group in optimizer.param_groups:
                # A foreach call cannot mix sharded and unsharded tensors.
                if any(fsdp.is_sharded(it) for it in group["params"]) and "foreach" in group:
                    group["foreach"] = group["fused"] = False

    def count(self, module: Any, args: Any, result: Any) -> None:
        """Adds the bytes of the all-reduce after a layer in the forward pass, and of the one in the backward pass."""
        if isinstance(result, torch.Tensor):
            self.sent += 2 * 2 * result.nbytes * (self.world - 1) // self.world

    def stepped(self, optimizer: Any) -> None:
        self.steps += 1

    def report(self) -> dict[str, Any]:
        detail = f"{self.world} ranks, {self.split} layers split" if self.split else context.untrained()
        return dict(applied=bool(self.split), detail=detail, lines=self.lines, bytes=self.sent // max(self.steps, 1))


def clipped(original: Callable[..., Any]) -> Callable[..., Any]:
    """`clip_grad_norm_` for a mixture of sharded and unsharded gradients: PyTorch's own function accepts only one of
    the two kinds in a call.
    """

    @functools.wraps(original)
    def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0, *args: Any, **kwargs: Any) -> Any:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        grads = [it.grad for it in parameters if it.grad is not None]
        if not any(hasattr(it, "to_local") for it in grads):
            return original(parameters, max_norm, norm_type, *args, **kwargs)
        norms = [fsdp.whole(torch.linalg.vector_norm(it, norm_type)) for it in grads]
        total = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
        for grad in grads:
            (grad.to_local() if hasattr(grad, "to_local") else grad).mul_(scale)
        return total

    return clip_grad_norm_


def plan_of(block: Any) -> dict[str, str]:
    """How the linear layers of a block are split, by columns or by rows: {path: way}. Layers are split only if the
    module that directly contains them has layers of both kinds.
    """
    found: dict[str, dict[str, str]] = {}
    for path, layer in block.named_modules():
        parent, _, name = path.rpartition(".")
        way = "columns" if name in COLUMNS else "rows" if name in ROWS else None
        if way is not None and type(layer) is torch.nn.Linear:
            found.setdefault(parent, {})[path] = way
    whole = (plan for plan in found.values() if {"columns", "rows"} <= set(plan.values()))
    return {path: way for plan in whole for path, way in plan.items()}


def lines(root: Any, paths: list[str], plan: dict[str, str], world: int) -> list[str]:
    """The code that has the same effect."""
    styles = {"columns": "ColwiseParallel()", "rows": "RowwiseParallel()"}
    return [
        f"# start it with: torchrun --nproc-per-node {world} train.py; all ranks load the same batches",
        "import os",
        "from torch.distributed.device_mesh import init_device_mesh",
        "from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module",
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
        f'mesh = init_device_mesh("cuda", ({world},))',
        "plan = {",
        *(f"    {path!r}: {styles[way]}," for path, way in plan.items()),
        "}",
        f"for block in {blocks.expression(root, paths)}:",
        "    parallelize_module(block, mesh, plan)  # do this before you create the optimizer; create it with foreach=False",
    ]
