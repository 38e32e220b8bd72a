"""Assigns operators to kinds, to estimate how long they take on a GPU: operators of the same kind reach about the same
part of the GPU's bandwidth and arithmetic rate. The parts are in `src/plan/time/rates.rs`, which has a row for each
kind.
"""

from __future__ import annotations

import math
from typing import Any

import torch

# Operators that start no kernel.
FREE = set(
    "empty empty_like empty_strided new_empty new_empty_strided detach alias view _unsafe_view lift_fresh set_ resize_"
    " _local_scalar_dense record_stream is_pinned _pin_memory sym_size prim_layout".split()
)
# The names of the operators of each kind, without the underscore of in-place variants.
NAMES = {
    "product": "mm addmm bmm baddbmm _scaled_mm _grouped_mm dot mv addmv linear matmul",
    "gather": "index index_select gather embedding _embedding_bag _embedding_bag_forward_only take",
    "scatter": "index_add scatter_add scatter scatter_reduce index_copy masked_scatter masked_select nonzero bincount",
    "accumulate": "embedding_dense_backward _embedding_bag_backward _embedding_bag_dense_backward index_put",
    "sort": "sort topk unique _unique2 unique_consecutive cumsum cumprod argsort searchsorted multinomial median mode",
    "copy": "cat stack clone copy contiguous constant_pad_nd roll flip",
    "pad": "select_backward slice_backward slice_scatter select_scatter diagonal_backward",
    "recurrent": "_cudnn_rnn",
    "recurrent backward": "_cudnn_rnn_backward",
    "softmax": "_softmax _log_softmax _safe_softmax logsumexp nll_loss_forward nll_loss2d_forward",
    "softmax backward": "_softmax_backward_data _log_softmax_backward_data nll_loss_backward nll_loss2d_backward",
    "layer norm": "native_layer_norm _fused_rms_norm",
    "layer norm backward": "native_layer_norm_backward _fused_rms_norm_backward",
    "group norm": "native_group_norm",
    "group norm backward": "native_group_norm_backward",
    "batch norm": "cudnn_batch_norm native_batch_norm _batch_norm_with_update _native_batch_norm_legit batch_norm",
    "batch norm backward": "cudnn_batch_norm_backward native_batch_norm_backward batch_norm_backward",
    "reduction": "sum mean amax amin max min argmax argmin var std var_mean norm linalg_vector_norm prod any all",
}
BY_NAME = {name: kind for kind, names in NAMES.items() for name in names.split()}
# Matrix products of other sizes run in slower kernels.
ALIGNED = {2: 8, 4: 4}
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def of(packet: Any, args: tuple[Any, ...], tensors: list[Any]) -> str:
    """The kind of an operator; `tensors` are the GPU's tensors in its arguments and results."""
    name = packet.__name__
    found = BY_NAME.get(name) or BY_NAME.get(name.rstrip("_"))
    if found == "product":
        width = tensors[0].element_size()
        sizes = [size for it in tensors if it.dim() > 1 for size in it.shape[-2:]]
        if any(size % ALIGNED.get(width, 1) for size in sizes):
            return "product odd narrow" if width < 4 else "product odd"
        return "product narrow" if width < 4 else "product"
    if found == "reduction":
        return found if is_last(name, args) else "reduction of columns"
    if found is not None:
        is_uneven = found.startswith("layer norm") and not all(dense(it) for it in tensors)
        return f"{found} uneven" if is_uneven else found
    if "convolution" in name:
        return convolution(name, args, tensors)
    backward = " backward" if "backward" in name else ""
    if "attention" in name:
        return "attention" + backward
    if "pool" in name or "upsample" in name or "grid_sampl" in name:
        return "pool" + backward
    if name.startswith("_fused_") or name.startswith("_foreach_") or name.startswith("_amp_foreach"):
        return "list"
    largest = max(it.numel() for it in tensors)
    whole = [it for it in tensors if it.numel() == largest]
    is_dense = len({it.dtype for it in tensors if it.dim() and it.dtype != torch.bool}) <= 1 and all(
        dense(it) for it in whole
    )
    return "pointwise" if is_dense and all(it.numel() in (1, largest) for it in tensors) else "uneven"


def convolution(name: str, args: tuple[Any, ...], tensors: list[Any]) -> str:
    """The kind of a convolution, or of its backward pass."""
    backward = "backward" in name
    x, weight = (args[1], args[2]) if backward else (args[0], args[1])
    groups = args[-2] if backward else args[-1]
    words = ["convolution"]
    if groups > 1:
        words.append("by channels" if groups == x.shape[1] else "in groups")
    elif x.dim() == 4 and not x.is_contiguous() and dense(x):
        words.append("channels last")
    return " ".join(words + ["backward"] * backward)


def width(packet: Any, args: tuple[Any, ...]) -> int:
    """A size of the operator that must be large for the operator to be fast. For a convolution: the mean number of
    channels from which a value is computed. For a group norm: the number of groups in the batch. For a recurrent
    network: its steps, added up over layers and directions. 0 for other operators.
    """
    name = packet.__name__
    backward = "backward" in name
    if "convolution" in name:
        weight, groups = (args[2], args[-2]) if backward else (args[1], args[-1])
        return int(math.sqrt(weight.shape[0] / groups * weight.shape[1]))
    if name in ("_cudnn_rnn", "_cudnn_rnn_backward"):
        layers, is_batch_first, _, _, both_ways, batch_sizes = args[13:19] if backward else args[9:15]
        # The length of a packed sequence is the number of its batch sizes.
        steps = len(batch_sizes) or args[0].shape[1 if is_batch_first else 0]
        return int(steps * layers * (1 + both_ways))
    if "group_norm" in name:
        return int(args[5] * args[8] if backward else args[3] * args[6])
    return 0


def of_convolution(packet: Any, args: tuple[Any, ...], result: Any) -> int | None:
    """The FLOPs of a convolution; None for other operators. PyTorch's formula for the backward pass ignores groups."""
    if "convolution" not in packet.__name__:
        return None
    if "backward" in packet.__name__:
        computed, x, weight, passes, is_transposed = args[0], args[1], args[2], sum(args[-1][:2]), args[7]
    else:
        computed, x, weight, passes, is_transposed = result, args[0], args[1], 1, args[6]
    every = x if is_transposed else computed
    return int(2 * passes * (every.numel() // every.shape[1]) * math.prod(weight.shape))


def is_last(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a reduction adds values that are next to each other in memory."""
    x, place = args[0], 2 if "norm" in name else 1
    dims = args[place] if len(args) > place and isinstance(args[place], (list, tuple, int)) else None
    if dims is None or dims == [] or isinstance(dims, bool) or not x.dim():
        return True
    last = [dim % x.dim() for dim in ([dims] if isinstance(dims, int) else dims)]
    return x.dim() - 1 in last


def dense(tensor: Any) -> bool:
    """Whether a tensor's values fill their memory, in one of the usual orders of dimensions."""
    return bool(
        tensor.is_contiguous() or (tensor.dim() in LAST and tensor.is_contiguous(memory_format=LAST[tensor.dim()]))
    )


def moved(found: str, tensors: list[Any]) -> int:
    """The bytes that an operator reads and writes. Repeated values count once. If rows are looked up in a table, only
    as many bytes of the table count as the result has.
    """
    each = {id(it): min(it.nbytes, it.untyped_storage().nbytes()) for it in tensors}
    total = sum(each.values())
    if found == "gather" and tensors:
        largest = max(each.values())
        result = min(tensors[-1].nbytes, largest)
        total += min(0, result - largest)
    return int(total)
