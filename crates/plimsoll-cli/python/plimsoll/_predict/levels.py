"""How levels of memory rise: evenly, in one of several steps, faster and faster, or not at all. A level is the number of
bytes that are allocated at the end of a step, or the peak until then.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..allocator import LEAST_GROWTH

ROWS = 6  # the number of latest steps that are examined for growth
TIMES = 3  # how often memory must be seen to grow, if it grows in one of several steps
MANY = 16  # from this many levels on, quarters of the steps are compared
LONG = 64  # the minimum number of rises if steps vary
UNENDED = 16 << 20  # less growth in the later half of the steps may end soon


def rises(levels: Sequence[int]) -> list[int]:
    """The rise of each level over the one before."""
    return [after - before for before, after in zip(levels, levels[1:])]


def rate(peaks: list[int]) -> int:
    """The bytes by which a peak rises per step, in the second half of the steps."""
    half = peaks[len(peaks) // 2 :]
    return (half[-1] - half[0]) // (len(half) - 1) if len(half) > 1 else 0


def is_climbing(peaks: list[int]) -> bool:
    """Whether a peak rose in at least every second of the latest steps and, if there are MANY steps, in each eighth of
    the second half. If there are LONG steps, only the eighths count, which must rise evenly: blocks are rounded, so a
    peak may stay the same for some steps.
    """
    last = rises(peaks)[-ROWS:]
    if len(last) < ROWS or len(peaks) < LONG and 2 * sum(it >= LEAST_GROWTH for it in last) < ROWS:
        return False
    if len(peaks) < MANY:
        return True
    rose = [it[-1] - it[0] for it in quarters(peaks[-(len(peaks) // 2) :])]
    return min(rose) >= LEAST_GROWTH and (len(peaks) < LONG or 3 * min(rose) >= max(rose))


def is_growing(levels: list[int]) -> bool:
    """Whether the latest levels never fell, and rose in at least every second step."""
    last = rises(levels[-ROWS - 1 :])
    return len(last) == ROWS and min(last) >= 0 and 2 * sum(it >= LEAST_GROWTH for it in last) >= ROWS


def is_even(levels: Sequence[int], least: int) -> bool:
    """Whether each level is at least so many bytes higher than the one before, and all rises are alike."""
    rose = rises(levels)
    return min(rose) >= least and max(rose) < 2 * min(rose)


def is_rising(levels: list[int]) -> bool:
    """Whether varying levels rise overall and are still rising at the end, for example if batches of different sizes
    are kept.
    """
    levels = levels[1:]
    if len(levels) < ROWS:
        return False
    if len(levels) < MANY:
        return sorted(levels)[-2] <= levels[-1] and levels[-1] - min(levels) >= LEAST_GROWTH
    parts, late = quarters(levels), max(len(levels) // 8, 4)
    if max(levels[-late:]) - max(levels[:-late]) < LEAST_GROWTH:
        return False
    return min(rises([min(it) for it in parts])) >= LEAST_GROWTH and min(parts[-1]) > max(parts[0])


def is_unended(levels: list[int]) -> bool:
    """Whether varying levels were still rising at the end: the lowest level in each of the latest eighths is higher than
    in the eighth before.
    """
    size = len(levels) // 8
    if size < 2:
        return False
    least = [min(levels[at : at + size]) for at in range(len(levels) - 8 * size, len(levels), size)]
    return min(rises(least[3:])) > 0 and least[-1] - least[3] >= UNENDED


def quarters(levels: list[int]) -> list[list[int]]:
    """Divides the levels, except the first few, into four parts of equal length."""
    size = len(levels) // 4
    begin = len(levels) - 4 * size
    return [levels[at : at + size] for at in range(begin, len(levels), size)]


def quickening(levels: list[int]) -> int:
    """The number of bytes by which each rise is larger than the previous one, if the rises themselves grow evenly;
    otherwise 0.
    """
    parts = [rises(it) for it in quarters(levels)]
    means = [sum(it) / len(it) for it in parts] if len(levels) >= LONG else [0.0]
    more = [after - before for before, after in zip(means, means[1:])]
    is_even = len(more) == 3 and all(max(it) - min(it) <= mean for it, mean in zip(parts, means))
    if not is_even or means[-1] < 1.1 * means[0] or min(more) < 0:
        return 0
    return int((means[-1] - means[0]) / (3 * (len(parts[0]) + 1)))


def short(levels: list[int]) -> tuple[int, int, int]:
    """The growth of a run that an unknown value ended after a few steps, in the form of `growth_of`."""
    rose = rises(levels[1:])  # the optimizer creates its states in the first step
    is_kept = len(rose) > 1 and min(rose) >= LEAST_GROWTH
    return (sorted(rose)[len(rose) // 2], 1, len(rose)) if is_kept else (0, 0, 0)


def since(levels: list[int]) -> int:
    """The index of the level after which memory grew in at least every second step."""
    at = len(levels) - 1
    while at > 1 and min(rises(levels[at - 2 : at + 1])) >= 0 and max(rises(levels[at - 2 : at + 1])) >= LEAST_GROWTH:
        at -= 1
    return at


def spread(levels: list[int]) -> tuple[int, int, int] | None:
    """Growth that occurs once in several steps: the bytes, the number of steps from one increase to the next, and
    how often it was seen. None if memory does not grow in this way. Compares the lowest levels between rises,
    because memory that only the current step needs may stay allocated until the step ends.
    """
    rose = large_rises(levels)
    found: list[int] = rose[-1:]
    every = rose[-1] - rose[-2] if len(rose) > 1 else 0
    while len(found) < len(rose) and abs(found[0] - rose[-len(found) - 1] - every) <= 1:
        found.insert(0, rose[-len(found) - 1])
    if len(found) < TIMES or every < 2 or len(levels) - found[-1] > every + 2:
        return None
    edges = [max(found[0] - every, 0), *found, len(levels)]
    least = [min(levels[begin:end]) for begin, end in zip(edges, edges[1:])]
    if min(rises(least)) < LEAST_GROWTH:
        return None
    # The level before the first rise does not count, because the program may not have allocated everything before it.
    return (least[-1] - least[1]) // (len(found) - 1), (found[-1] - found[0]) // (len(found) - 1), len(found)


def large_rises(levels: list[int]) -> list[int]:
    """The indices of the levels that are clearly higher than the levels before: of varying rises, only the large ones
    count. In the first two steps, optimizers create their states.
    """
    rose = rises(levels)
    least = max(LEAST_GROWTH, max(rose[2:], default=0) // 4)
    return [at for at, it in enumerate(rose, 1) if it >= least]


def may_spread(levels: list[int]) -> bool:
    """Whether memory rose in a few steps only, and a few more steps would show whether it does so regularly."""
    rose = [at for at in large_rises(levels) if at > 1]
    if not rose or len(rose) >= TIMES:
        return False
    last = rose[-1]
    every = last - rose[-2] if len(rose) > 1 else last
    is_kept = min(levels[last:]) - min(levels[1:last]) >= LEAST_GROWTH
    return is_kept and len(levels) <= last + every + 2


def growth_of(levels: list[int]) -> tuple[int, int, int]:
    """Describes the growth of memory: its bytes, the number of steps in which it occurs once, and how often it was
    seen. Zeros if memory does not grow.
    """
    if not is_growing(levels):
        found = spread(levels)
        if found is None and is_rising(levels) and len(levels) > MANY:
            parts = quarters(levels[1:])
            means = [sum(it) // len(it) for it in parts]
            return (means[-1] - means[0]) // (3 * len(parts[0])), 1, len(levels) - 1
        return found or (0, 0, 0)
    start = max(since(levels), len(levels) // 2)
    times = len(levels) - 1 - start
    if times < ROWS:
        # An allocated block may include the unused rest of a larger block, so individual rises vary. So use the
        # median.
        return sorted(rises(levels[-ROWS:]))[ROWS // 2 - 1], 1, len(levels) - 1 - since(levels)
    return (levels[-1] - levels[start]) // times, 1, len(levels) - 1 - since(levels)
