"""Laws that are chosen for each source by the others: what they are judged on has no part in the choice."""

import sys
from pathlib import Path

import numpy as np
import pytest

from samestep.advise.places import Places
from samestep.advise.series import Series

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.advise import ANEW, OURS, TRIED, Forecast, with_laws_chosen_anew

AMDAHL, LOGARITHMIC = "Amdahl", "logarithmic"
ERROR = 0.1
"""Of whoever is not right."""


def forecasts(source: str, right: str, *, nodes: int = 1, count: int = 3) -> list[Forecast]:
    """Of a source in which one law is right."""
    places = Places.of([1, 2, 4], [1, 1, nodes])
    return [
        Forecast(
            series=Series(f"{source} {index}", source, "model", False, places, np.ones(3)),
            given=2, asked=2, is_held=True, log_width=0.1,
            log_errors={name: ERROR * (name != right) for name in (*TRIED, OURS)},
        )
        for index in range(count)
    ]  # fmt: skip


def chosen(rows: list[Forecast], source: str) -> list[float]:
    return [row.log_errors[ANEW] for row in with_laws_chosen_anew(rows) if row.series.source == source]


def test_what_others_found_right_is_chosen() -> None:
    rows = [*forecasts("a", AMDAHL), *forecasts("b", AMDAHL)]
    assert chosen(rows, "a") == [0.0] * 3


def test_a_source_does_not_choose_for_itself() -> None:
    """It would have chosen Amdahl, and been right: the control."""
    rows = [*forecasts("a", AMDAHL, count=30), *forecasts("b", LOGARITHMIC, count=2)]
    assert chosen(rows, "a") == [ERROR] * 30
    assert chosen(rows, "b") == [ERROR] * 2


def test_each_situation_has_a_choice_of_its_own() -> None:
    inside = [*forecasts("a", AMDAHL), *forecasts("b", AMDAHL)]
    crossing = [*forecasts("c", LOGARITHMIC, nodes=2), *forecasts("d", LOGARITHMIC, nodes=2)]
    assert [chosen(inside + crossing, source)[0] for source in "abcd"] == [0.0] * 4


def test_where_there_is_no_other_ours_stands() -> None:
    rows = [*forecasts("a", AMDAHL), *forecasts("b", AMDAHL, nodes=2)]
    assert chosen(rows, "a") == pytest.approx([ERROR] * 3)
