# What PyTorch is told otherwise inside the user's Python processes, so that a program takes the course there that it
# takes on a card, though every value that is read from the device is zero and other ranks may not be there.
#
# The launcher puts this file before watch.py in one sitecustomize.py; Watch there and its last lines say when each of
# these is done. What is asked of the allocator stays as it is, but for send_objects: NCCL would take some hundred bytes
# of the GPU to carry Python objects.

import os
import sys


def trust_values(torch):
    # Where PyTorch itself reads a value only to check it, or to divide by it, a zero would end a program that runs on a
    # card. What the reading takes of memory is as before. TorchScript, which compiles some of these, finds the originals.
    import functools

    def answered(original, answer):
        @functools.wraps(original)
        def read(tensor):
            value = original(tensor)
            is_known = not isinstance(tensor, torch.Tensor) or not tensor.is_cuda or torch.compiler.is_compiling()
            return value if is_known else answer(value)

        return read

    # The checks of torch.distributions, and torch._check_tensor_all.
    for place in (torch, torch.Tensor):
        if hasattr(place, "_is_all_true"):
            place._is_all_true = answered(place._is_all_true, lambda _: torch.ones((), dtype=torch.bool, device="cpu"))
    # An optimizer whose state came from a checkpoint has its count of steps, and NAdam its product, on the device. Nothing
    # that it divides by is zero where these are between 0 and 1.
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.optim.") and hasattr(module, "_get_value"):
            module._get_value = answered(module._get_value, lambda value: value or 0.5)


def keep_inductor(module):
    # What Inductor tunes goes into the run's own caches, also where the program itself names others.
    place = os.path.join(os.environ["PLIMSOLL_PREDICT_CACHES"], "inductor")

    def cache_dir():
        os.makedirs(place, exist_ok=True)
        return place

    module.cache_dir = module.default_cache_dir = cache_dir


def keep_triton(module):
    # The same for Triton.
    module.cache.dir = os.path.join(os.environ["PLIMSOLL_PREDICT_CACHES"], "triton")


def end_generation(module):
    # transformers asks the device whether every sequence has its end: under every strategy none has one before its
    # greatest length, which the program knows.
    criteria, mixin = module.StoppingCriteriaList, module.GenerationMixin
    call, has_unfinished = criteria.__call__, mixin._has_unfinished_sequences
    is_long = None  # of the sequences that were judged last; an assistant's are judged in between

    def judged(self, input_ids, *args, **options):
        nonlocal is_long
        most = self.max_length
        is_long = None if most is None else input_ids.shape[-1] >= most
        return call(self, input_ids, *args, **options)

    def goes_on(self, this_peer_finished, *args, **options):
        nonlocal is_long
        is_finished, is_long = this_peer_finished if is_long is None else is_long, None
        return has_unfinished(self, is_finished, *args, **options)

    criteria.__call__, mixin._has_unfinished_sequences = judged, goes_on


def send_objects(torch):
    # Python objects that ranks send each other through GPUs, their sizes first, would arrive as zeros: they go through the
    # host instead, among the same ranks.
    import functools
    import inspect
    from torch import distributed

    if not distributed.is_gloo_available():
        return
    twins = {}  # by the world, which may end and begin anew, and the ranks

    def twin(ranks):
        key = distributed.group.WORLD, tuple(ranks)
        if key not in twins:
            # PyTorch counts groups, and names them by that: of one that only some ranks make, none may be counted.
            world = distributed.distributed_c10d._world
            count, world.group_count = world.group_count, 1 << 40
            try:
                twins[key] = distributed.new_group(ranks, backend="gloo", use_local_synchronization=True)
            finally:
                world.group_count = count
        return twins[key]

    def carries(group):
        in_it = group is not None and group != distributed.GroupMember.NON_GROUP_MEMBER
        return in_it and distributed.get_backend(group) == "nccl"

    def on_host(original, redirect):
        signature = inspect.signature(original)

        @functools.wraps(original)
        def call(*args, **options):
            bound = signature.bind(*args, **options)
            group = bound.arguments.get("group") or distributed.group.WORLD
            if carries(group) and redirect(bound.arguments, group) and "device" in bound.arguments:
                bound.arguments["device"] = None
            return original(*bound.args, **bound.kwargs)

        return call

    def among_all(arguments, group):
        arguments["group"] = twin(distributed.get_process_group_ranks(group))
        return True

    def between_two(peer):
        # Only these two make this call, so that only they can make a group for it.
        def redirect(arguments, group):
            its_rank = arguments.get(peer)
            if its_rank is None and arguments.get(f"group_{peer}") is not None:
                its_rank = distributed.get_global_rank(group, arguments[f"group_{peer}"])
            if its_rank is None or its_rank == distributed.get_rank():
                return False  # from whichever rank, or PyTorch's to refuse
            arguments.pop(f"group_{peer}", None)
            arguments[peer] = its_rank
            arguments["group"] = twin(sorted((its_rank, distributed.get_rank())))
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


def stand_alone(torch):
    # Process groups begin without the other ranks. What is on the GPU goes through PyTorch's own code for NCCL, whose
    # memory counts; what is on the host through PyTorch's fake group.
    import torch.testing._internal.distributed.fake_pg
    from torch import distributed

    class Store(distributed.Store):
        # Answers for all. What another rank would have written is a name of NCCL's, of this many bytes.
        def __init__(self):
            super().__init__()
            self.values = {}

        def set(self, key, value):
            self.values[key] = value

        def get(self, key):
            return self.values.get(key, bytes(128))

        def add(self, key, more):
            self.values[key] = self.values.get(key, 0) + more
            return self.values[key]

        def wait(self, keys, timeout=None):
            pass

        def check(self, keys):
            return all(key in self.values for key in keys)

    original, store = distributed.init_process_group, Store()

    def init_process_group(backend=None, init_method=None, timeout=None, *args, **options):
        place = dict(rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]), store=store)
        kept = {name: options[name] for name in ("pg_options", "device_id") if name in options}
        return original("cpu:fake,cuda:nccl", **place, **kept)

    for module in (distributed, distributed.distributed_c10d, distributed.device_mesh):
        module.init_process_group = init_process_group

    # A communicator of a part is split off the whole by what every rank tells of itself. Alone it is made by itself
    # instead, of its own ranks.
    c10d = distributed.distributed_c10d
    c10d._get_split_source = lambda *args, **options: None

    def split_group(parent_pg=None, split_ranks=None, timeout=None, pg_options=None, group_desc=None, **options):
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
