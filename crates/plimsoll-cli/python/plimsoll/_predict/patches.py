"""Patches of PyTorch inside the user's Python processes, so that a program takes the same path as on a GPU, even though
the values that the program reads from the device are zero and other ranks may be absent.

watch.py and start.py install them. GPU allocations stay the same, except in send_objects: it sends Python
objects through the host, whereas NCCL would use a few hundred bytes on the GPU.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any


def trust_values(torch: Any) -> None:
    """Makes PyTorch's own checks of values pass. Where PyTorch itself reads a value to check it or to divide by it,
    a zero would end a program that runs on a GPU. The read itself, and the memory that it needs, do not change.
    TorchScript compiles some of these functions, so it gets the original functions.
    """
    import functools

    def answered(original: Callable[..., Any], answer: Any) -> Callable[..., Any]:
        @functools.wraps(original)
        def read(tensor: Any) -> Any:
            value = original(tensor)
            is_known = not isinstance(tensor, torch.Tensor) or not tensor.is_cuda or torch.compiler.is_compiling()
            return value if is_known else answer(value)

        return read

    # The checks of torch.distributions, and torch._check_tensor_all.
    for place in (torch, torch.Tensor):
        if hasattr(place, "_is_all_true"):
            place._is_all_true = answered(place._is_all_true, lambda _: torch.ones((), dtype=torch.bool, device="cpu"))
    # An optimizer whose state came from a checkpoint has its step count (and for NAdam, a product) on the device. If
    # the optimizer reads a value between 0 and 1, it never divides by zero.
    modules: list[tuple[str, Any]] = list(sys.modules.items())
    for name, module in modules:
        if name.startswith("torch.optim.") and hasattr(module, "_get_value"):
            module._get_value = answered(module._get_value, lambda value: value or 0.5)


def end_generation(module: Any) -> None:
    """Makes generated text have its maximum length. transformers reads from the device whether every sequence has
    ended. Here, no sequence ends before the maximum length, which the host knows.
    """
    criteria, mixin = module.StoppingCriteriaList, module.GenerationMixin
    call, has_unfinished = criteria.__call__, mixin._has_unfinished_sequences
    is_long = None  # whether the sequences of the last check have their maximum length

    def judged(self: Any, input_ids: Any, *args: Any, **options: Any) -> Any:
        nonlocal is_long
        most = self.max_length
        is_long = None if most is None else input_ids.shape[-1] >= most
        return call(self, input_ids, *args, **options)

    def goes_on(self: Any, this_peer_finished: Any, *args: Any, **options: Any) -> Any:
        nonlocal is_long
        is_finished, is_long = this_peer_finished if is_long is None else is_long, None
        return has_unfinished(self, is_finished, *args, **options)

    criteria.__call__, mixin._has_unfinished_sequences = judged, goes_on


def end_groups(torch: Any, pid: int) -> None:
    """Ends this process's groups when the interpreter exits. Libraries such as DeepSpeed keep theirs, and a thread of
    PyTorch watches each until the process has ended. If it wakes after the destructors of PyTorch's libraries have run,
    it aborts the process. Here that is likely, because the process takes longer to exit than it takes without `predict`.
    """
    if os.getpid() == pid and torch.distributed.is_available() and torch.distributed.is_initialized():
        with contextlib.suppress(Exception):
            torch.distributed.destroy_process_group()


def send_objects(torch: Any) -> None:
    """Sends Python objects between ranks through the host. Normally, ranks send Python objects, and first the objects'
    sizes, through GPUs, and the sizes would arrive as zeros. Here the same ranks exchange them through the host.
    """
    import functools
    import inspect

    from torch import distributed

    if not distributed.is_gloo_available():
        return
    host_groups = {}  # by the world, because a program may destroy the world and make a new one, and by the ranks

    def host_group(ranks: list[int]) -> Any:
        key = distributed.group.WORLD, tuple(ranks)
        if key not in host_groups:
            # PyTorch names groups by a counter: a group that only some ranks make must not advance it.
            world = distributed.distributed_c10d._world
            count, world.group_count = world.group_count, 1 << 40
            try:
                host_groups[key] = distributed.new_group(ranks, backend="gloo", use_local_synchronization=True)
            finally:
                world.group_count = count
        return host_groups[key]

    def uses_nccl(group: Any) -> bool:
        is_member = group is not None and group != distributed.GroupMember.NON_GROUP_MEMBER
        return is_member and distributed.get_backend(group) == "nccl"

    def on_host(original: Callable[..., Any], redirect: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def call(*args: Any, **options: Any) -> Any:
            bound = signature.bind(*args, **options)
            group = bound.arguments.get("group") or distributed.group.WORLD
            if uses_nccl(group) and redirect(bound.arguments, group) and "device" in bound.arguments:
                bound.arguments["device"] = None
            return original(*bound.args, **bound.kwargs)

        return call

    def among_all(arguments: Any, group: Any) -> bool:
        arguments["group"] = host_group(distributed.get_process_group_ranks(group))
        return True

    def between_two(peer: str) -> Callable[..., Any]:
        # Only these two ranks make this call, so only they can create a group for it.

        def redirect(arguments: Any, group: Any) -> bool:
            its_rank = arguments.get(peer)
            if its_rank is None and arguments.get(f"group_{peer}") is not None:
                its_rank = distributed.get_global_rank(group, arguments[f"group_{peer}"])
            if its_rank is None or its_rank == distributed.get_rank():
                return False  # a receive from any rank, or an error that PyTorch reports
            arguments.pop(f"group_{peer}", None)
            arguments[peer] = its_rank
            arguments["group"] = host_group(sorted((its_rank, distributed.get_rank())))
            return True

        return redirect

    kinds = dict.fromkeys(
        "all_gather_object gather_object broadcast_object_list scatter_object_list".split(), among_all
    )
    kinds.update(send_object_list=between_two("dst"), recv_object_list=between_two("src"))
    for name, redirect in kinds.items():
        original = getattr(distributed.distributed_c10d, name, None)
        if original is not None:
            replaced = on_host(original, redirect)
            setattr(distributed.distributed_c10d, name, replaced)
            setattr(distributed, name, replaced)


def stand_alone(torch: Any) -> None:
    """Starts process groups without the other ranks. GPU tensors go through PyTorch's own NCCL code, whose memory is
    counted; host tensors go through PyTorch's `fake` group.
    """
    import importlib

    from torch import distributed

    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # this import registers the group

    class Store(distributed.Store):
        """Answers for the absent ranks. The only value that they would have written is NCCL's unique ID of 128
        bytes.
        """

        def __init__(self) -> None:
            super().__init__()
            self.values: dict[str, Any] = {}

        def set(self, key: Any, value: Any) -> None:
            self.values[key] = value

        def get(self, key: Any) -> Any:
            return self.values.get(key, bytes(128))

        def add(self, key: Any, more: Any) -> Any:
            self.values[key] = self.values.get(key, 0) + more
            return self.values[key]

        def wait(self, keys: Any, timeout: Any = None) -> None:
            pass

        def check(self, keys: Any) -> bool:
            return all(key in self.values for key in keys)

    original, store = distributed.init_process_group, Store()

    def init_process_group(
        backend: Any = None, init_method: Any = None, timeout: Any = None, *args: Any, **options: Any
    ) -> Any:
        place = dict(rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]), store=store)
        kept = {name: options[name] for name in ("pg_options", "device_id") if name in options}
        return original("cpu:fake,cuda:nccl", **place, **kept)

    for module in (distributed, distributed.distributed_c10d, distributed.device_mesh):
        module.init_process_group = init_process_group

    # NCCL splits a communicator with data from every rank. Without the other ranks, a subgroup gets a new communicator.
    c10d = distributed.distributed_c10d
    c10d._get_split_source = lambda *args, **options: None

    def split_group(
        parent_pg: Any = None,
        split_ranks: Any = None,
        timeout: Any = None,
        pg_options: Any = None,
        group_desc: Any = None,
        **options: Any,
    ) -> Any:
        parent = distributed.get_process_group_ranks(parent_pg or distributed.group.WORLD)
        own = distributed.get_rank()
        mine = None
        for ranks in split_ranks:
            ranks = [parent[rank] for rank in ranks]
            group = distributed.new_group(ranks, timeout=timeout, pg_options=pg_options, group_desc=group_desc)
            mine = group if own in ranks else mine
        return distributed.GroupMember.NON_GROUP_MEMBER if mine is None else mine

    for module in (distributed, c10d, distributed.device_mesh):
        if hasattr(module, "split_group"):
            module.split_group = split_group
