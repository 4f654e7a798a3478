"""What a test may put down to chance: figures measured on a machine that others use as well.

A check that once failed must hold twice in a row to count as holding. One that fails half of the time is
found out three times out of eight; one that fails by chance once in fifty, once in 1,300.
"""

from collections.abc import Callable

AGAIN = 2


def holds(check: Callable[[int], None]) -> None:
    """Make the check, `check(0)`; if it fails, `check(1)` and `check(2)` must hold."""
    try:
        check(0)
    except AssertionError as failed:
        print(f"once more, as it failed at first: {failed}")
        for attempt in range(1, 1 + AGAIN):
            check(attempt)
