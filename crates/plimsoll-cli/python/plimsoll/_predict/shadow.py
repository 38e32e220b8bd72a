"""A shadow: the values of one storage on the host. And PyTorch's operators that shadows.py follows, by kind."""

from __future__ import annotations

from typing import Any

COMPARE = "eq.Scalar eq.Tensor ne.Scalar ne.Tensor lt.Scalar lt.Tensor le.Scalar le.Tensor gt.Scalar gt.Tensor ge.Scalar ge.Tensor"
LOGIC = (
    "logical_and.out logical_or.out logical_not.out logical_xor.out bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor"
    " bitwise_not isin.Tensor_Tensor isin.Tensor_Scalar"
)
REDUCE = (
    "sum.dim_IntList aminmax max min amax amin any any.dim any.dims all all.dim all.dims cumsum prod bincount histc"
)
ARITHMETIC = (
    "add.Tensor sub.Tensor mul.Tensor div.Tensor div.Tensor_mode floor_divide remainder.Tensor remainder.Scalar neg clamp"
    " clamp.Tensor clamp_min clamp_max maximum minimum abs.out mean.dim"
)
GATHER = (
    "index.Tensor index_select gather scatter_add masked_select where.self cat roll flip tril triu"
    " searchsorted.Tensor bucketize.Tensor"
)
MADE = "arange.start_out linspace.out"
CHANGED = (
    "copy_ fill_.Scalar zero_ scatter_add_ masked_fill_.Scalar masked_fill_.Tensor clamp_"
    " clamp_min_ clamp_max_ add_.Tensor sub_.Tensor mul_.Tensor bitwise_and_.Tensor bitwise_or_.Tensor index_put_"
    " _index_put_impl_ index_fill_.int_Scalar cumsum_ floor_divide_.Tensor logical_not_"
)
COUNTED = "nonzero _unique2 unique_consecutive unique_dim"


class Shadow:
    """The values of one storage on the host. `version` is PyTorch's counter of in-place changes. An in-place
    operator increments it after its kernel. `unsure` has a mark for each of `bytes`, set at the first byte of a
    value; it is None while all are sure.
    """

    def __init__(
        self, reference: Any, address: int, bytes: Any, version: int, changed: bool, even: bool, unsure: Any = None
    ) -> None:
        self.reference, self.address, self.bytes, self.even, self.unsure = reference, address, bytes, even, unsure
        self.versions = (version, version + 1) if changed else (version,)


def marks_of(shadow: Shadow, tensor: Any) -> Any:
    """The marks of a tensor's values in its storage, each at the first byte of the value."""
    size = tensor.element_size()
    return shadow.unsure.as_strided(
        tensor.size(), [it * size for it in tensor.stride()], tensor.storage_offset() * size
    )


def version(tensor: Any) -> int:
    """How often a tensor was changed in place; -1 in inference mode, which does not count."""
    return -1 if tensor.is_inference() else tensor._version
