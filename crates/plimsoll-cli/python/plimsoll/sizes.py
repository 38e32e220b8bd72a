"""Sizes in the program's input and output: powers of 1,024."""

from __future__ import annotations

import re

UNITS = {"": 1, "b": 1}
for nth, letter in enumerate("kmgt", 1):
    UNITS.update({letter: 1 << 10 * nth, f"{letter}ib": 1 << 10 * nth, f"{letter}b": 10 ** (3 * nth)})


def parse(size: int | str) -> int:
    """Bytes of a size such as ``"6GiB"``, ``"512 MiB"``, ``"2GB"`` or a number of bytes.

    >>> parse("1.5GiB")
    1610612736
    """
    if isinstance(size, int) and not isinstance(size, bool):
        number, unit = float(size), ""
    else:
        found = (
            re.fullmatch(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", size) if isinstance(size, str) else None
        )
        if found is None or found[2].lower() not in UNITS:
            raise ValueError(f"{size!r} is not a size: expected a number of bytes, or a string such as '6GiB'")
        number, unit = float(found[1].replace("_", "")), found[2].lower()
    bytes = int(number * UNITS[unit])
    if bytes <= 0:
        raise ValueError(f"{size!r} is not a size: it must be more than zero")
    return bytes


def shown(bytes: int) -> str:
    """Bytes in words, with two decimals.

    >>> shown(1610612736)
    '1.50 GiB'
    """
    for name, unit in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(bytes) > unit:
            return f"{bytes / unit:.2f} {name}"
    return f"{bytes} bytes"
