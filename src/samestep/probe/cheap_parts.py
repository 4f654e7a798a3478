"""How the tensors of a model share the digits of `Replica.parts`; for who writes and who reads, no torch."""

from itertools import pairwise

DIGITS = 4
"""Hexadecimal digits of one part."""
MOST_PARTS = 256


def part_bounds(num_tensors: int) -> list[tuple[int, int]]:
    """The tensors that each part stands for, first and one beyond the last: a single one if there is room."""
    num_parts = min(num_tensors, MOST_PARTS)
    ends = [num_tensors * i // num_parts for i in range(num_parts + 1)] if num_parts else []
    return list(pairwise(ends))


def differing_parts(one: str, other: str) -> list[int]:
    """Which parts of two replicas differ."""
    cut = [[text[i : i + DIGITS] for i in range(0, len(text), DIGITS)] for text in (one, other)]
    return [i for i, (a, b) in enumerate(zip(*cut, strict=False)) if a != b]
