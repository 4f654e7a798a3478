"""Competition: who counts where, that misses cost weight, and that cells in between are gone through."""

from collections.abc import Callable

import numpy as np
import pytest

from samestep.advise.calibration import shipped
from samestep.advise.competition import EXPERIENCE, GROWTH, NAMES, Competition, Outlook
from samestep.advise.places import Floats, Places

WORLDS = Places.of([1, 2, 4])
STEP_S = np.array([0.20, 0.21, 0.22])
SHARED = {EXPERIENCE, "Amdahl", "universal scalability", "Pollux"}
"""Those that count where GPUs share a global batch that stays."""


def outlook(places: Places, step_s: np.ndarray, at: Places) -> Outlook:
    return Competition(places, step_s, at).outlook(shipped().learnt)


def leaders(found: Outlook, index: int = 0) -> set[str]:
    """Those that count more than a law that nobody named, ever so good a record."""
    return {name for name, weight in zip(NAMES, found.weights[:, index], strict=True) if weight > 0.1}


def test_who_counts_is_a_matter_of_where_the_question_lies() -> None:
    found = outlook(WORLDS, STEP_S, Places.of([8, 16], [1, 2]))
    assert leaders(found, 0) == {EXPERIENCE, "last efficiency", "logarithmic"}
    assert leaders(found, 1) == {EXPERIENCE, GROWTH, "last efficiency", "bandwidth", "Amdahl"}
    between = outlook(Places.of([4, 8, 16], [1, 1, 2]), STEP_S, Places.of([32], [4]))
    assert leaders(between) == {GROWTH, "hierarchical", "logarithmic"}
    shared = outlook(Places.of([1, 2], None, [32, 16]), STEP_S[:2] / [1, 2], Places.of([4], None, [8]))
    assert leaders(shared) == SHARED
    for each in (found, between, shared):
        assert each.weights.sum(axis=0) == pytest.approx(1.0)
        assert (each.weights[NAMES.index("linear speedup")] == 0).all()
    assert list(found.is_crossing) == [0, 1]
    assert list(between.is_between) == [1]


def test_out_of_one_small_node_others_count() -> None:
    """The next may have any link: a projection to it expects to lose more."""
    found = outlook(WORLDS, STEP_S, Places.of([16], [4]))
    assert leaders(found) == {EXPERIENCE, "Amdahl", "logarithmic", "universal scalability"}
    # once links were measured, the size of a node tells nothing more
    between = outlook(Places.of([2, 4, 8], [1, 1, 2]), STEP_S, Places.of([32], [8]))
    assert leaders(between) == {GROWTH, "hierarchical", "logarithmic"}
    # what a node has counts, not how many of its GPUs a world takes: the control
    large = Competition(WORLDS, STEP_S, Places.of([16], [4]), gpus_per_node=8).outlook(shipped().learnt)
    assert leaders(large) == {EXPERIENCE, GROWTH, "last efficiency", "bandwidth", "Amdahl"}
    assert found.log_s[0] > large.log_s[0]


def test_far_from_all_cells_a_range_holds_what_each_law_says_that_counts_there() -> None:
    cells, step_s = Places.of([1, 4, 8], [1, 1, 2]), np.array([0.2, 0.235, 0.6])
    found = outlook(cells, step_s, Places.of([32, 64], [8, 16]))
    assert list(found.is_far) == [False, True]
    low, high = shipped().interval(found, 0.8)
    says = [found.by_law[NAMES.index(name)] for name in leaders(found)]
    assert len(says) == 3
    for law in says:
        assert low[1] <= law[1] <= high[1]
    # nearer, who is far off is left out: the control
    assert any(not low[0] <= law[0] <= high[0] for law in says)


def test_another_batch_than_was_measured_is_no_matter_of_last_efficiency() -> None:
    found = outlook(WORLDS, STEP_S, Places.of([8], None, [0.5]))
    assert found.is_strong
    assert leaders(found) == SHARED


def test_a_larger_share_than_was_measured_is_a_matter_of_the_experience() -> None:
    """Laws that put all overhead in proportion to the share would see it grow with the batch."""
    gpus = np.array([1, 4, 16])
    cells = Places.of(gpus, None, 1024 / gpus)
    at = Places.of([12, 16, 32, 64], None, [1024] * 4)
    found = Competition(cells, 1 / gpus + 0.2, at, gpus_per_node=64).outlook(shipped().learnt)
    assert all(leaders(found, index) == {EXPERIENCE} for index in range(4))
    # no jump at the largest world: with a growing batch the truth is 1.2 s on any number
    assert (np.abs(np.diff(found.log_s)) < 0.2).all()


def test_where_a_batch_is_shared_out_the_interval_holds_what_each_law_says() -> None:
    gpus = np.array([1, 2, 4, 8])
    cells, at = Places.of(gpus, None, 1024 / gpus), Places.of([16, 32], None, [64, 32])
    # 5 % are not shared, and 2 % of noise look like a cost of every further GPU
    found = outlook(cells, np.array([1.02, 0.5145, 0.2818, 0.1721]), at)
    low, high = shipped().interval(found, 0.8)
    for name in SHARED:
        law = found.by_law[NAMES.index(name)]
        assert (low <= law).all() and (law <= high).all()
    # within a node, near to the cells, an interval need not: the control
    inside = outlook(Places.of(gpus), np.array([0.20, 0.23, 0.25, 0.29]), Places.of([16]))
    low, high = shipped().interval(inside, 0.8)
    assert not all(low[0] <= law[0] <= high[0] for law in inside.by_law)


def test_a_host_that_begins_to_fill_up_is_foreseen_to_go_on() -> None:
    """Clouds of points, batch 12 (MinkowskiEngine): the third GPU gains less than Amdahl's law allows."""
    gpus = np.array([1, 2, 3])
    cells, at = Places.of(gpus, None, 12 / gpus), Places.of([4], None, [3])
    bent = outlook(cells, np.array([2.691, 1.413, 1.064]), at)
    amdahl = bent.by_law[NAMES.index("Amdahl"), 0]
    assert bent.log_s[0] > amdahl + 0.02
    # cells that are Amdahl's: nothing is added
    straight = outlook(cells, 2.691 * (0.95 / gpus + 0.05), at)
    assert straight.log_s[0] == pytest.approx(straight.by_law[NAMES.index("Amdahl"), 0], abs=0.02)


def test_fewer_turns_of_the_same_size_are_a_matter_of_the_experience() -> None:
    """A batch of 1024 examples, 16 at once: between two worlds, a GPU does the same, half as often."""
    gpus, turns = np.array([1, 4, 8]), np.array([64, 16, 8])
    cells, step_s = Places.of(gpus[:2], None, 1024 / gpus[:2], turns[:2]), np.array([6.4, 1.7])
    found = outlook(cells, step_s, Places.of([8], None, [128], [8]))
    assert leaders(found) == {EXPERIENCE}
    # a GPU that has half as much at once does something else: the control
    halved = outlook(cells, step_s, Places.of([8], None, [128], [16]))
    assert leaders(halved) == SHARED


def test_who_missed_counts_less() -> None:
    """The cells are Amdahl's: the law that says so gains on one that does not."""
    gpus = np.array([1.0, 2.0, 4.0, 8.0])
    first, later = (
        outlook(Places.of(gpus[:count]), (1 + 0.3 * gpus)[:count], Places.of([16])) for count in (2, 4)
    )
    good, poor = NAMES.index("Amdahl"), NAMES.index("Pollux")
    assert first.weights[good] == first.weights[poor]
    assert later.weights[good] > 1.5 * later.weights[poor]


@pytest.mark.parametrize("jump", [1.0, 1.6])
def test_below_the_largest_world_steps_go_through_the_cells(jump: float) -> None:
    """Whatever happens between nodes, 2 GPUs are between 1 and 4 of the same node."""
    places = Places.of([1, 4, 8], [1, 1, 2])
    found = outlook(places, np.array([0.20, 0.22, 0.22 * jump]), Places.of([2, 16], [1, 4]))
    assert 0.20 < np.exp(found.log_s[0]) < 0.22
    assert leaders(found, 0) == {EXPERIENCE}
    # alone, it disagrees with nobody: its own scale tells how sure it is
    assert found.disagreement[0] == found.scale[0] > 0
    assert found.disagreement[1] != found.scale[1]


@pytest.mark.parametrize(
    "of",
    [
        lambda at: 0.95 + 0.05 * at.gpus,
        lambda at: 1 + 0.1 * (at.gpus - 1) / at.gpus + 0.01 * (at.gpus - 1),
        lambda at: 1 + 0.3 * np.log2(at.gpus),
    ],
    ids=["Amdahl", "ring", "logarithmic"],
)
def test_laws_that_five_cells_prove_count_for_most(of: Callable[[Places], Floats]) -> None:
    """Their forecasts, from three cells on, are right to the hundredth part: so they go on."""
    cells, at = Places.of([1, 2, 4, 8, 16]), Places.of([32, 64])
    truth = np.log(of(at))

    def right(found: Outlook) -> Floats:
        return np.asarray((found.weights * (np.abs(found.by_law - truth) < 0.01)).sum(axis=0))

    found = outlook(cells, of(cells), at)
    assert (right(found) > 0.8).all()
    assert found.log_s == pytest.approx(truth, abs=0.05)
    low, high = shipped().interval(found, 0.8)
    assert (low < truth).all() and (truth < high).all()
    # the controls: four cells prove nothing, nor do five of which one is off
    few = outlook(cells[:4], of(cells)[:4], at)
    off = outlook(cells, of(cells) * np.array([1, 1, 1, 1.05, 1]), at)
    assert (right(few) < 0.6).all() and (right(off) < 0.6).all()


def test_where_links_are_not_known_nothing_is_proven() -> None:
    cells, at = Places.of([1, 2, 3, 4, 6, 8]), Places.of([16, 16], [1, 2])
    found = outlook(cells, 0.95 + 0.05 * cells.gpus, at)
    inside, over = np.abs(found.log_s - np.log(0.95 + 0.05 * 16))
    assert inside < 0.05 < over


def test_smaller_shares_on_several_nodes_have_the_law_of_tiers() -> None:
    cells = Places.of([4, 8, 16], [1, 1, 2], [32, 16, 8])
    found = outlook(cells, np.array([0.8, 0.42, 0.3]), Places.of([32], [4], [4]))
    assert leaders(found) == SHARED | {"hierarchical"}


def test_more_gpus_with_no_more_to_do_are_never_faster_than_the_largest_world() -> None:
    """Slow links between small nodes: laws that are fitted across both tiers would say so."""
    cells, step_s = Places.of([1, 2, 4, 8, 16], [1, 1, 1, 2, 4]), np.array([0.2, 0.21, 0.22, 0.8, 1.1])
    found = outlook(cells, step_s, Places.of([17, 24, 64], [5, 6, 16]))
    assert (np.exp(found.log_s) >= 1.1 * (1 - 1e-12)).all()
    low, high = shipped().interval(found, 0.8)
    assert (low < np.log(1.1)).all() and (high > np.log(1.1)).all()
    # nor do they do more for each GPU where a batch is shared; with a larger share they may: the control
    shared = outlook(Places.of([1, 2, 4], None, [64, 32, 16]), np.array([0.8, 0.3, 0.1]),
                     Places.of([8, 8], None, [8, 64]))  # fmt: skip
    per_example = np.exp(shared.log_s) / [8, 64]
    assert per_example[0] >= 0.1 / 16 * (1 - 1e-12) and per_example[1] != pytest.approx(0.1 / 16, rel=1e-6)
