"""``@pytest.mark.memory(peak_below="6GiB")``: fails a test that allocates more GPU memory than the limit.

On a machine without a GPU such a test is skipped; ``plimsoll predict --gpu NAME --whole -- pytest`` runs it there.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import pytest

from . import sizes
from .measure import Device, Measured, table
from .recording import no_gpu

MARK = "memory"
ROWS = 8  # the number of owners in a failure message
ABOUT = (
    "memory(peak_below=SIZE, reserved_below=SIZE): fail if the test allocates, or reserves, this much memory on any GPU,"
    " such as '6GiB'; skipped without a GPU (plimsoll)"
)


@dataclass
class Limits:
    """The limits that a ``memory`` mark sets, in bytes."""

    peak_below: int | None = None
    reserved_below: int | None = None


def pytest_configure(config: pytest.Config) -> None:
    """Registers the mark."""
    config.addinivalue_line("markers", ABOUT)


def read(mark: pytest.Mark) -> Limits:
    """Reads the limits in a mark. A test whose mark is invalid fails, even if the test would be skipped."""
    why = "expected peak_below=SIZE or reserved_below=SIZE, such as peak_below='6GiB'"
    if not mark.args and mark.kwargs and not set(mark.kwargs) - {"peak_below", "reserved_below"}:
        try:
            return Limits(**{name: sizes.parse(value) for name, value in mark.kwargs.items()})
        except ValueError as invalid:
            why = str(invalid)
    raise pytest.fail.Exception(f"@pytest.mark.{MARK}: {why}", pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a marked test if there is no GPU."""
    mark = item.get_closest_marker(MARK)
    if mark is not None:
        read(mark)
        why = missing()
        if why is not None:
            pytest.skip(f"{why}; `plimsoll predict --gpu NAME --whole -- pytest` measures the memory without a GPU")


def missing() -> str | None:
    """The reason why measuring is impossible; None if it is possible."""
    return no_gpu()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Measures a marked test, and fails it if it exceeds its limits."""
    mark = item.get_closest_marker(MARK)
    if mark is None:
        return (yield)
    limits = read(mark)
    measured = Measured()
    measured.begin(empty_cache=True)  # memory that earlier tests left in the allocator's cache must not count
    try:
        yield
    finally:
        devices = measured.end()
    said = [text for device in devices for text in failures(device, limits)]
    if said:
        pytest.fail("\n\n".join(said), pytrace=False)
    return None


def failures(device: Device, limits: Limits) -> list[str]:
    """The messages for the limits that a device exceeded."""
    said = []
    for what, peak, limit in (
        ("allocated", device.peak_bytes, limits.peak_below),
        ("reserved", device.reserved_bytes, limits.reserved_below),
    ):
        if limit is not None and peak >= limit:
            said.append(failure(device, what, peak, limit))
    return said


def failure(device: Device, what: str, peak: int, limit: int) -> str:
    """The message for one exceeded limit, with the amount and the owners at the peak."""
    over = f"{sizes.shown(peak - limit)} too much" if peak > limit else "the limit is exclusive"
    lines = [
        f"GPU {device.device}: at most {sizes.shown(peak)} were {what}; the limit is {sizes.shown(limit)} ({over})",
    ]
    if device.before_bytes:
        lines.append(f"{sizes.shown(device.before_bytes)} of them were allocated before the test")
    if device.owners:
        lines += ["allocated at the peak, by category and line:", *table(device.owners, ROWS)]
    elif device.note:
        lines.append(device.note)
    return "\n".join(lines)
