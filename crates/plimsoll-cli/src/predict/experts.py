# Routers of mixtures of experts: they choose by values that were not computed, which would give every token to no expert,
# or to the first. The choice is assumed to give equal shares: row i takes the experts that follow those of row i - 1, in a
# circle. Values that depend on that are marked (`even`).

import sys

FEW = 512  # a choice among at most this many is one among experts, not words of a vocabulary
FEW_SINGLE = 128  # the same for a choice of one, which classifiers make, too
GENERATION = "transformers/generation/"
CALLERS = 12  # frames that are searched for it

CHOSEN = "topk argmax argmin max.dim min.dim sort sort.stable argsort.stable multinomial"
SCATTERED = "scatter.src scatter.value scatter_.src scatter_.value"


def choosing(known, operator, call):
    name = operator._schema.name.removeprefix("aten::")
    is_single = name in ("argmax", "argmin", "max", "min")
    has_values = name in ("topk", "max", "min", "sort")

    def choose(args, kwargs, result):
        tensor, dim = args[0], -1 if name == "multinomial" else argument(operator, "dim", args, kwargs)
        indices = result[1] if has_values else result
        if known.shadows and known.shadow(tensor) is not None:
            known.follow(operator, args, kwargs, result, None, False)
        elif dim is not None and is_choice(tensor, dim, is_single) and known.is_small(indices):
            known.keep(indices, shares(known.torch, indices, tensor.size(dim), dim, is_single), even=True)

    def dispatched(keys, *args, **kwargs):
        result = call(keys, *args, **kwargs)
        try:
            with known.quiet():
                choose(args, kwargs, result)
        except Exception as why:
            known.failed(operator, why)
        return result

    return dispatched


def is_choice(tensor, dim, is_single):
    # Whether this is probably a choice of experts: among few, for several rows, and not while text is generated.
    if not tensor.is_floating_point() or tensor.dim() < 2:
        return False
    if not 1 < tensor.size(dim) <= (FEW_SINGLE if is_single else FEW):
        return False
    frame, left = sys._getframe(1), CALLERS
    while frame is not None and left:
        if GENERATION in frame.f_code.co_filename:
            return False
        frame, left = frame.f_back, left - 1
    return True


def shares(torch, indices, count, dim, is_single):
    # The indices of equal shares among `count` experts.
    chosen = 1 if is_single else indices.size(dim)
    rows = torch.arange(indices.numel() // max(chosen, 1), device="cpu")[:, None]
    # A sort returns every index: its rows differ in the first of them.
    flat = (rows * (chosen if chosen < count else 1) + torch.arange(chosen, device="cpu")[None, :]) % count
    if is_single:
        return flat.view(indices.size())
    return flat.view(indices.movedim(dim, -1).size()).movedim(-1, dim)


def scattering(wrapped):
    # The gates of chosen experts, scattered into a tensor of zeros: nonzero where an expert was chosen.
    def scattering(known, operator, call):
        dispatched = wrapped(operator, call)

        def with_gates(keys, *args, **kwargs):
            result = dispatched(keys, *args, **kwargs)
            try:
                with known.quiet():
                    keep_gates(known, args, kwargs, result, operator)
            except Exception as why:
                known.failed(operator, why)
            return result

        return with_gates

    return scattering


def keep_gates(known, args, kwargs, result, operator):
    torch, (tensor, dim, index) = known.torch, args[:3]
    if not known.shadows or known.shadow(result) is not None or not known.is_small(result, even=True):
        return
    chosen = known.shadow(index)
    if chosen is None or not index.is_cuda or not known.entry(index).even:
        return
    is_in_place = operator._schema.name.endswith("_")
    before = None if is_in_place else known.shadow(tensor)
    before = torch.zeros(result.size(), dtype=result.dtype, device="cpu") if before is None else before
    source = argument(operator, "value", args, kwargs)
    known.keep(result, before.scatter(dim, chosen, 1 if source is None else source), changed=is_in_place, even=True)


def argument(operator, name, args, kwargs):
    # An argument by its name; None if the operator has none of that name.
    for at, it in enumerate(operator._schema.arguments):
        if it.name == name:
            return kwargs.get(name, args[at] if at < len(args) else it.default_value)
    return None
