"""Makes saved models take no disk space: values computed here are zeros, and blocks of zeros become holes in the
file. A file that the program saves has its real size and can be read, even if --scratch is smaller.
"""

from __future__ import annotations

import functools
import io
import json
import os
from typing import Any

BLOCK = 1 << 16
ZEROS = bytes(BLOCK)


class Sparse:
    """A file that is open for writing. The program or this file has opened it."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def write(self, data: Any) -> int:
        """Writes the data; blocks of zeros become holes."""
        data = memoryview(data).cast("B")
        begin, size = 0, len(data)
        while begin < size:
            is_hole = self.is_hole(data, begin)
            end = begin + BLOCK
            while end < size and self.is_hole(data, end) == is_hole:
                end += BLOCK
            end = min(end, size)
            if is_hole:
                self.file.seek(end - begin, os.SEEK_CUR)
            else:
                self.file.write(data[begin:end])
            begin = end
        return size

    def is_hole(self, data: memoryview, begin: int) -> bool:
        """Whether a full block of zeros begins here."""
        block = data[begin : begin + BLOCK]
        return len(block) == BLOCK and block.tobytes() == ZEROS

    def flush(self) -> None:
        """Writes the buffered data."""
        self.file.flush()

    def finish(self) -> None:
        """Sets the file's size: a hole at the end does not change the size by itself."""
        self.file.flush()
        end = self.file.tell()
        if os.fstat(self.file.fileno()).st_size < end:
            self.file.truncate(end)


def is_plain(file: str) -> bool:
    """Whether this is a file on the disk, which can have holes."""
    try:
        return (
            isinstance(file, (io.BufferedWriter, io.BufferedRandom))
            and file.seekable()
            and "a" not in getattr(file, "mode", "a")
        )
    except ValueError:
        return False


def torch_save(torch: Any) -> None:
    """Makes holes in files of `torch.save`."""
    original = torch.serialization.save

    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        zipped = kwargs.get("_use_new_zipfile_serialization", args[2] if len(args) > 2 else True)
        if not zipped or not (isinstance(f, (str, os.PathLike)) or is_plain(f)):
            return original(obj, f, *args, **kwargs)
        with open(f, "wb") if isinstance(f, (str, os.PathLike)) else Borrowed(f) as file:
            sparse = Sparse(file)
            try:
                return original(obj, sparse, *args, **kwargs)
            finally:
                sparse.finish()

    torch.save = torch.serialization.save = save


class Borrowed:
    """The program's own open file, as a context manager that does not close it."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __enter__(self) -> Any:
        return self.file

    def __exit__(self, *error: object) -> None:
        pass


def safetensors(module: Any) -> None:
    """Makes holes in safetensors files. The files have the library's format: tensors are sorted by the width of their
    type, the widest first, then by name, and the size of the header is a multiple of 8 bytes.
    """

    def serialize_file(tensors: dict[str, Any], filename: Any, metadata: Any) -> None:
        names = sorted(tensors, key=lambda name: (-WIDTHS.get(tensors[name][0], 1), name))
        header, offset = ({"__metadata__": metadata} if metadata is not None else {}), 0
        for name in names:
            kind, shape, data = tensors[name]
            header[name] = dict(dtype=kind, shape=list(shape), data_offsets=[offset, offset + len(data)])
            offset += len(data)
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        with open(filename, "wb") as file:
            sparse = Sparse(file)
            sparse.write(len(text).to_bytes(8, "little") + text)
            for name in names:
                sparse.write(tensors[name][2])
            sparse.finish()

    original = module.serialize_file

    @functools.wraps(original)
    def written(tensors: Any, filename: Any, metadata: Any = None) -> Any:
        try:
            known = {name: described(it) for name, it in tensors.items()}
        except (AttributeError, KeyError, TypeError):  # a version of the library or a type that is not known here
            return original(tensors, filename, metadata=metadata)
        return serialize_file(known, filename, metadata)

    module.serialize_file = written


def described(tensor: Any) -> tuple[str, Any, memoryview]:
    """The type, the shape and the bytes of a tensor given as a dictionary, or as the library's own class."""
    import ctypes

    if isinstance(tensor, dict):
        return name_of(tensor["dtype"]), tensor["shape"], memoryview(tensor["data"]).cast("B")
    area = (ctypes.c_ubyte * tensor.data_len).from_address(tensor.data_ptr) if tensor.data_len else b""
    return name_of(tensor.dtype), tensor.shape, memoryview(area).cast("B")


def name_of(kind: Any) -> str:
    """The library's name of a type."""
    return kind if kind in TYPES.values() else TYPES[kind]


WIDTHS = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
# The library's names of types.
TYPES = dict(
    bool="BOOL",
    uint8="U8",
    int8="I8",
    int16="I16",
    uint16="U16",
    int32="I32",
    uint32="U32",
    int64="I64",
    uint64="U64",
    float16="F16",
    bfloat16="BF16",
    float32="F32",
    float64="F64",
    float8_e4m3fn="F8_E4M3",
    float8_e5m2="F8_E5M2",
)
