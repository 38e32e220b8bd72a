"""Shards the model's parameters, gradients and optimizer states over the ranks of `run --devices N` (FSDP2:
`fully_shard` of the repeated blocks and of the model). Each rank computes its own rows of the batch. Rounding differs,
because gradients are sums over ranks, and dropout draws different masks.

The program still behaves as a single process: outside the model's calls, every rank has the complete batch and runs the
same code.
"""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from . import blocks, checkpoint, context, observers, parts, ranks

if TYPE_CHECKING:
    from .rows import Rows

# The collectives that `fully_shard` and we use, under their names in all versions of PyTorch.
COLLECTIVES = (
    "all_gather_single",
    "all_gather_into_tensor",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "all_reduce",
)
LAUNCH = "plimsoll run --devices N --with fsdp -- python train.py"


class Fsdp:
    """Shards the model over ranks."""

    name = "fsdp"

    def __init__(self, value: int | None) -> None:
        self.mesh: Any = None
        self.rank = self.world = 0
        self.sharded = 0  # the number of modules to which `fully_shard` was applied
        self.lines: list[str] = []
        self.sent = self.steps = self.calls = 0  # bytes that this rank sends, optimizer steps, calls to the model

    def begin(self) -> None:
        if not ranks.are_own():
            return
        ranks.hide()
        ranks.seed()
        self.rank, self.world = ranks.number("RANK"), ranks.number("WORLD_SIZE")
        observers.listeners["stepped"].append(self.stepped)
        distributed = torch.distributed
        self.begin_group = distributed.init_process_group

        @functools.wraps(self.begin_group)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            if self.is_joining:
                return self.begin_group(*args, **kwargs)
            context.refuse(
                self.name,
                "the program initializes torch.distributed itself: shard its model there, with fully_shard"
                " (torch.distributed.fsdp) instead of DistributedDataParallel",
            )

        self.is_joining = False
        distributed.init_process_group = distributed.distributed_c10d.init_process_group = init_process_group
        for name in COLLECTIVES:
            if hasattr(distributed, name):
                setattr(distributed, name, self.counted(getattr(distributed, name)))

        for name in ("backward", "grad"):
            setattr(torch.autograd, name, self.first_order(getattr(torch.autograd, name)))

        # In PyTorch 2.8, these functions read only this rank's part of the norm.
        place = torch.nn.utils
        for name in ("clip_grad_norm_", "get_total_norm"):
            call = unsharded(getattr(place, name))
            setattr(place, name, call)
            setattr(place.clip_grad, name, call)

    def first_order(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function, to reject second derivatives. A second derivative needs a sharded module's parameters, but
        they are freed after its backward pass.
        """
        signature = inspect.signature(original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.sharded and signature.bind(*args, **kwargs).arguments.get("create_graph"):
                context.refuse(self.name, "the program takes gradients of gradients (create_graph=True)")
            return original(*args, **kwargs)

        return call

    def counted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a collective, to count the bytes that it sends. In a ring, each rank sends all parts of the complete
        tensor except one part; an all-reduce is a reduce-scatter and an all-gather.
        """

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            whole = max(it.nbytes for it in [*args, *kwargs.values()] if isinstance(it, torch.Tensor))
            times = 2 if original.__name__ == "all_reduce" else 1
            self.sent += times * whole * (self.world - 1) // self.world
            return original(*args, **kwargs)

        return call

    def first(self, root: Any) -> None:
        self.check(root)
        device = next((it.device for it in root.parameters()), torch.device("cpu"))
        if self.mesh is None:
            self.is_joining = True
            self.mesh = ranks.join(device.type)
            self.is_joining = False
            if device.type == "cpu" and not averages():
                context.refuse(
                    self.name, f"Gloo of PyTorch {torch.__version__} adds gradients where it should average them"
                )
        self.shard(root)

    def check(self, root: Any) -> None:
        """Rejects a model or a program that cannot be sharded."""
        why = context.wrapped_class(root)
        if not self.world:
            launched = torch.distributed.is_available() and torch.distributed.is_torchelastic_launched()
            why = (
                f"fsdp starts the ranks itself, without torchrun: {LAUNCH}"
                if launched
                else f"fsdp needs several GPUs: {LAUNCH}"
            )
        elif not hasattr(torch.distributed.fsdp, "fully_shard"):
            why = f"PyTorch {torch.__version__} has no torch.distributed.fsdp.fully_shard"
        if why is not None:
            context.refuse(self.name, why)
        if any(torch.nn.parameter.is_lazy(it) for it in root.parameters()):
            context.refuse(self.name, "the model has parameters that its first call creates (such as LazyLinear)")
        parts.check(self.name, root)
        own = {id(it) for it in root.parameters()}
        for optimizer in list(observers.optimizers):
            if any(id(it) in own for group in optimizer.param_groups for it in group["params"]) and any(
                id(it) in own for it in optimizer.state
            ):
                context.refuse(self.name, "the optimizer has states before the first call to the model")

    def shard(self, root: Any) -> None:
        """Shards the blocks and the model, and their parameters in the optimizers."""
        fully_shard = torch.distributed.fsdp.fully_shard
        for tensor in [*root.parameters(), *root.buffers()]:
            torch.distributed.broadcast(tensor.detach(), 0)
        found = [block for _, block in blocks.find(root) if any(True for _ in block.parameters())]
        for block in [*found, root]:
            before = dict(block.named_parameters())
            kinds = {it.dtype for it in before.values() if not is_sharded(it)}
            if len(kinds) > 1:
                names = ", ".join(sorted(str(it) for it in kinds))
                context.refuse(self.name, f"{type(block).__name__} has parameters of several types ({names})")
            fully_shard(block, mesh=self.mesh)
            replace({id(it): (it, block.get_parameter(name)) for name, it in before.items() if not is_sharded(it)})
            self.sharded += 1
        root._register_state_dict_hook(whole_state)
        root.register_load_state_dict_pre_hook(functools.partial(sharded_state, self.mesh))
        for optimizer in list(observers.optimizers):
            optimizer.register_state_dict_post_hook(lambda optimizer, state: whole(state))
        self.lines += lines(root, bool(found), self.world)

    def around(self, root: Any, following: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from .rows import All, Lazy, Own, Rows, Sum

        checkpoint.without_cache(root, kwargs)
        cut = parts.Parts(self.name, self.world, args, kwargs)
        if len(cut.sizes) < self.world:
            context.refuse(self.name, f"a batch of {cut.batch} cannot be divided over {self.world} ranks")
        rows = Rows(cut.sizes, self.rank, self.mesh.get_group())
        self.calls += 1
        if self.calls <= 3:
            self.compare([it for it in cut.leaves if cut.is_cut(it)])
        own: Callable[..., Any] = lambda it: (
            (Own.apply(it, rows) if it.requires_grad else rows.own(it)) if cut.is_cut(it) else it
        )
        args, kwargs = torch.utils._pytree.tree_unflatten([own(it) for it in cut.leaves], cut.structure)
        with parts.Reduction(self.name, cut.sizes) as reduction, Masks(self.calls * self.world + self.rank, root):
            result = following(*args, **kwargs)
        has_loss = parts.has_loss(result)
        share = self.share(reduction, rows, has_loss)

        def joined(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                if value is None or isinstance(value, (bool, int, float, str)):
                    return value
                context.refuse(self.name, f"the model returns a {type(value).__name__}, which cannot be concatenated")
            if value.dim() == 0:
                return Sum.apply(value if share is None else value * share, rows)
            if value.size(0) != rows.sizes[rows.rank]:
                context.refuse(self.name, "the model returns a tensor whose first dimension is not the batch")
            return Lazy(value, rows) if has_loss else All.apply(value, rows)

        return torch.utils._pytree.tree_map(joined, result)

    def share(self, reduction: parts.Reduction, rows: Rows, has_loss: bool) -> Any:
        """The weight of this rank's loss in the mean over all ranks; None if the loss is a sum."""
        known = reduction.weights([rows.sizes[rows.rank]], has_loss)
        if known is None:
            return None
        if not isinstance(known[0], torch.Tensor):
            return known[0] / sum(rows.sizes)
        total = known[0].clone()
        torch.distributed.all_reduce(total, group=rows.group)
        return known[0] / total

    def compare(self, tensors: Any) -> None:
        """Rejects batches that differ between ranks. All ranks must have the same batch. They do not if, for example, a
        generator is seeded from the clock.
        """
        marks = [
            it.detach().double().sum() if not it.is_complex() else it.detach().abs().double().sum() for it in tensors
        ]
        own = torch.stack(marks)
        least, most = own.clone(), own.clone()
        torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN, group=self.mesh.get_group())
        torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX, group=self.mesh.get_group())
        with context.unread():
            is_same = bool(((least == most) | (least != least)).all().cpu()) or getattr(
                context.host, "has_no_values", False
            )
        if not is_same:
            context.refuse(
                self.name, "the ranks have different batches: seed the generators that the program draws its data from"
            )

    def stepped(self, optimizer: Any) -> None:
        self.steps += 1

    def report(self) -> dict[str, Any]:
        detail = f"{self.world} ranks, {self.sharded} modules sharded" if self.sharded else context.untrained()
        return dict(applied=bool(self.sharded), detail=detail, lines=self.lines, bytes=self.sent // max(self.steps, 1))


class Masks:
    """Makes random numbers inside the model differ between ranks and calls. Outside the model, random numbers are the
    program's own, and the same on all ranks.
    """

    def __init__(self, number: int, root: Any) -> None:
        self.number = number
        device = next((it.device for it in root.parameters()), torch.device("cpu"))
        self.fork = torch.random.fork_rng([device.index or 0] if device.type == "cuda" else [])

    def __enter__(self) -> None:
        self.fork.__enter__()
        torch.manual_seed((torch.initial_seed() + 0x9E3779B97F4A7C15 * self.number) % (1 << 63))

    def __exit__(self, *failure: object) -> Any:
        return self.fork.__exit__(*failure)


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is distributed over ranks."""
    return isinstance(tensor, torch.distributed.tensor.DTensor)


def averages() -> bool:
    """Whether Gloo can average gradients; in PyTorch 2.8 it cannot."""
    from torch import distributed

    part = torch.zeros(1)
    distributed.reduce_scatter_tensor(part, torch.ones(distributed.get_world_size()), op=distributed.ReduceOp.AVG)
    return bool(part.item() == 1.0)


def unsharded(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function so that it returns the unsharded result."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return whole(original(*args, **kwargs))

    return call


def replace(pairs: dict[int, tuple[Any, Any]]) -> None:
    """Replaces the program's references to the old parameters by references to the sharded parameters: in its
    optimizers, lists and dictionaries.
    """
    mine = {id(it) for it in pairs.values()}
    changed: Callable[..., Any] = lambda it: pairs[id(it)][1] if id(it) in pairs else it
    for holder in gc.get_referrers(*(old for old, _ in pairs.values())):
        if isinstance(holder, list):
            holder[:] = [changed(it) for it in holder]
        elif isinstance(holder, dict) and id(holder) not in mine:
            holder.update({key: changed(it) for key, it in holder.items() if id(it) in pairs})


def whole(state: Any) -> Any:
    """The nested dictionary `state` with unsharded tensors, in the form that a single-process program saves."""
    return torch.utils._pytree.tree_map(lambda it: it.full_tensor() if is_sharded(it) else it, state)


def whole_state(module: Any, state: Any, prefix: str, metadata: Any) -> None:
    """A hook: makes the saved state of a model contain unsharded tensors."""
    for name, value in state.items():
        state[name] = value.full_tensor() if is_sharded(value) else value


def sharded_state(mesh: Any, module: Any, state: Any, prefix: str, *rest: Any) -> None:
    """A hook: shards a saved state before the model loads it."""
    from torch.distributed.tensor import Shard, distribute_tensor

    own = dict(module.named_parameters(remove_duplicate=False))
    for name, parameter in own.items():
        value = state.get(prefix + name)
        if value is not None and is_sharded(parameter) and not is_sharded(value):
            state[prefix + name] = distribute_tensor(value.to(parameter.device), mesh, [Shard(0)])


def lines(root: Any, has_blocks: bool, world: int) -> list[str]:
    """The code that has the same effect."""
    found = [path for path, _ in blocks.find(root)]
    each = [f"for block in {blocks.expression(root, found)}:", "    fully_shard(block)"] if has_blocks else []
    return [
        f"# start it with: torchrun --nproc-per-node {world} train.py",
        "import os",
        "from torch.distributed.fsdp import fully_shard",
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
        'torch.distributed.init_process_group("nccl")',
        *each,
        "fully_shard(model)  # before the optimizer is made",
        f"# each rank loads its part of the batch, such as by DistributedSampler: 1/{world} of it",
    ]
