"""Numbers of ranks as text."""

from __future__ import annotations

from collections.abc import Iterable


def spans(ranks: Iterable[int], separator: str = ", ") -> str:
    """Ranks in ascending order, consecutive ones as a range: `2-7, 9`."""
    found: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return separator.join(str(first) if first == last else f"{first}-{last}" for first, last in found)
