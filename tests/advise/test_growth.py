"""Growth: an overhead of milliseconds grows with every node that comes, one of seconds hardly at all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep.advise.calibration import shipped
from samestep.advise.growth import Growth, Rate
from samestep.advise.learning import learn
from samestep.advise.places import Places
from samestep.advise.series import Series, read_tables

GROWTH = Growth(inside=Rate(usual=0.5, by_size=0.2), nodes=Rate(usual=0.3, by_size=0.2))
CELLS = Places.of([1, 4, 8], [1, 1, 2])
AT = Places.of([16, 64], [4, 16])


def overhead_s(growth: Growth, step_s: list[float], *, is_in_seconds: bool = True) -> np.ndarray:
    return growth.step_s(CELLS, np.array(step_s), AT, is_in_seconds=is_in_seconds) - step_s[0]


def test_it_is_the_power_that_its_size_tells() -> None:
    tenth, second = overhead_s(GROWTH, [0.2, 0.25, 0.3]), overhead_s(GROWTH, [0.2, 0.25, 1.2])
    assert tenth == pytest.approx(0.1 * np.array([2, 8]) ** 0.3)
    assert second == pytest.approx(1.0 * np.array([2, 8]) ** 0.1)
    # no less than it was, however large
    steep = Growth(inside=GROWTH.inside, nodes=Rate(usual=0.3, by_size=0.5))
    assert overhead_s(steep, [2.0, 5.0, 99.0]) == pytest.approx([97.0, 97.0])


def test_of_an_unknown_size_it_has_the_usual_one() -> None:
    one, other = (
        overhead_s(GROWTH, [unit * s for s in (0.2, 0.25, 0.3)], is_in_seconds=False) / unit
        for unit in (1, 1000)
    )
    assert one == pytest.approx(other)
    # the control: in seconds the unit decides
    assert overhead_s(GROWTH, [200, 250, 300])[1] / 1000 < 0.6 * overhead_s(GROWTH, [0.2, 0.25, 0.3])[1]


def test_earlier_cells_of_the_same_tier_count_half_as_much_each() -> None:
    """Taken to the largest world first: cells that follow the law change nothing."""
    cells, at = Places.of([1, 4, 8, 16, 32], [1, 1, 2, 4, 8]), Places.of([64], [16])
    follow = 0.2 + 0.1 * 2.0 ** (0.3 * np.array([-2, -1, 0]))
    found = GROWTH.step_s(cells, np.array([0.2, 0.25, *follow]), at)
    assert found[0] == pytest.approx(0.2 + 0.1 * 2**0.3)
    odd = GROWTH.step_s(cells, np.array([0.2, 0.25, follow[0], 0.2, follow[2]]), at)
    assert odd[0] == pytest.approx(0.2 + 0.1 * 2**0.3 * (4 + 1) / (4 + 2 + 1))
    # what happens within a node is another matter
    inside = GROWTH.step_s(cells, np.array([0.2, 9.0, *follow]), at)
    assert inside[0] == pytest.approx(found[0])


@given(st.lists(st.floats(0.01, 10.0), min_size=2, max_size=5), st.integers(1, 4))
def test_more_gpus_never_have_less_overhead(times: list[float], gpus_per_node: int) -> None:
    gpus = gpus_per_node * 2 ** np.arange(len(times))
    cells = Places.of(gpus, 2 ** np.arange(len(times)))
    at = Places.of(gpus[-1] * np.array([1, 2, 4, 1000]), cells.nodes[-1] * np.array([1, 2, 4, 1000]))
    found = shipped().learnt.growth.step_s(cells, np.array(times), at)
    assert (np.diff(found) >= -1e-9 * found[:-1]).all() and np.isfinite(found).all()


def series(growth: Growth, seed: int) -> list[Series]:
    """Jobs that follow it, with overheads from milliseconds to seconds."""
    generator = np.random.default_rng(seed)
    places = Places.of([1, 4, 8, 16, 32], [1, 1, 1, 2, 4])
    found = []
    for index in range(60):
        overhead = 10.0 ** generator.uniform(-2.2, 0.3)
        node = growth.step_s(places[:2], np.array([0.5, 0.5 + overhead]), places[2:3])[0]
        links = 0.5 + overhead * 3
        more = growth.step_s(places[:4], np.array([0.5, 0.5 + overhead, node, links]), places[4:])[0]
        step_s = np.array([0.5, 0.5 + overhead, node, links, more])
        found.append(Series(f"{index}", "made up", "model", False, places, step_s))
    return found


def test_what_series_follow_is_learnt() -> None:
    found = learn(series(GROWTH, 1)).growth
    assert found.inside.usual == pytest.approx(0.5, abs=0.01)
    assert found.nodes.usual == pytest.approx(0.3, abs=0.01)
    assert found.nodes.by_size == pytest.approx(0.2, abs=0.02)
    # the control: others teach something else
    flat = Growth(inside=Rate(usual=0.1, by_size=0.0), nodes=Rate(usual=0.1, by_size=0.0))
    assert learn(series(flat, 1)).growth.nodes.usual == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(
    ("unit", "batch", "expected"),
    [("images/s", "64", 6.4), ("Items / sec", "64", 6.4), ("tok/s", "64", None), ("images/s", "", None),
     ("steps/s summed over workers", "64", 0.1)],
)  # fmt: skip
def test_throughputs_are_in_seconds_where_a_batch_counts_the_same(
    tmp_path, unit: str, batch: str, expected: float | None
) -> None:
    rows = [("1", "10"), ("2", "19"), ("4", "36")]
    lines = [f"x,m,8x V100,{n},throughput,{value},{unit},{batch},,weak,s1," for n, value in rows]
    header = "source,model,hardware,n_gpus,metric,value,unit,batch_per_gpu,n_nodes,scaling,series_id,note"
    (tmp_path / "table.csv").write_text("\n".join([header, *lines]))
    (found,) = read_tables(tmp_path / "table.csv")
    assert found.is_in_seconds == (expected is not None)
    assert found.step_s[0] == pytest.approx(expected or 0.1)
