import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.report.wording import MOST_CHARACTERS, duration, exact, joined, number, ranks, told, visible


@given(st.text(st.characters(), max_size=3 * MOST_CHARACTERS))
def test_a_text_that_is_shown_has_bytes_and_no_control_characters(text):
    shown = visible(text)
    shown.encode("utf-8")
    assert not any(ord(c) < 32 and c not in "\t\n" for c in shown)
    assert len(shown) <= 6 * MOST_CHARACTERS + 40


def test_text_cannot_turn_around_what_stands_beside_it():
    assert visible("a\u202eb\x00\ud800é\n") == "a\\u202eb\\u0000\\ud800é\n"
    assert visible("x" * (MOST_CHARACTERS + 5)).endswith("x… (5 more characters)")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (True, "yes"), (12345, "12,345"), (0.123456, "0.1235"), (3.0, "3"), (math.inf, "inf"),
        (math.nan, "nan"), (1e300, "1e+300"), ([1, "a", None], "1, a, –"), ({"0": 12, "1": 4}, "0: 12, 1: 4"),
        ([[1, 2]], "[1, 2]"), ([], "–"), ("as it is", "as it is"),
    ],
)  # fmt: skip
def test_values_in_plain_words(value, text):
    assert told(value) == text


def test_times_counts_and_lists():
    assert [duration(s) for s in (0.04, 59.97, 75.2, 3600 * 5 + 61, math.nan)] == [
        "0.0 s", "1 min 0 s", "1 min 15 s", "5 h 1 min", "unknown",
    ]  # fmt: skip
    assert [joined(parts) for parts in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "", "a", "a and b", "a, b and c",
    ]  # fmt: skip
    assert ranks([1, 0, 1]) == "ranks 0 and 1" and ranks([3]) == "rank 3" and ranks([]) == ""
    assert ranks(range(1000)).endswith("14, 15 and more")
    assert number(1234567) == "1,234,567"
    assert (number(16384.0), number(65536 / 3), number(64 / 3)) == ("16,384", "21,845", "21.33")
    assert (number(0.000012345), number(-98765.4), number(1e20)) == ("1.234e-05", "-98,765", "1e+20")


@given(st.floats(width=32, allow_nan=False))
def test_numbers_of_32_bits_are_told_apart(value):
    assert float(exact(value)) == pytest.approx(value, rel=2**-25, abs=0)
