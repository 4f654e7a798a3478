"""A job on machines that were not measured: gradients as they were seen, the simulation on top."""

from dataclasses import replace

import pytest
from test_recommend import step

from samestep.advise.cluster import Cluster, read_cluster
from samestep.advise.context import NOTHING, Bar, Bars
from samestep.advise.hardware import gradient_bytes_in, on_cluster, parameters_of
from samestep.advise.offers import Overheads, Run, offers_of
from samestep.advise.waits import Waits
from samestep.errors import ConfigError
from samestep.observations import FORMAT, observations_path
from samestep.observed import VERSION

WORKSTATION = read_cluster("rtx-pcie")


def offers(*step_s, batch_size=64.0):
    rows = [step(2**place, seconds, batch_size=batch_size) for place, seconds in enumerate(step_s)]
    return offers_of(rows, Run(num_examples=6400), waits=Waits(), overheads=Overheads(start_s={}, epoch_s={}))


def fast(**link):
    return Cluster(name="fast", gpus_per_node=8, inside={"bytes_per_s": 1e15, "latency_s": 0.0} | link)


def test_with_links_that_cost_nothing_speedup_is_ideal():
    found = on_cluster(fast(), offers(0.8, 0.5, 0.4), NOTHING, 1e8)
    assert found.speedups == pytest.approx((1, 2, 4), rel=1e-6)
    assert found.train_s == pytest.approx((80, 40, 20), rel=1e-6)


def test_slower_links_are_slower():
    quick = on_cluster(fast(), offers(0.8, 0.5), NOTHING, 1e8)
    slow = on_cluster(fast(bytes_per_s=1e8), offers(0.8, 0.5), NOTHING, 1e8)
    assert slow.rows[1].step_s > 1.2 * quick.rows[1].step_s
    assert slow.rows[0].step_s == quick.rows[0].step_s


def test_at_worst_no_step_is_shorter_than_it_was_measured():
    found = on_cluster(fast(), offers(0.8, 0.5, 0.4), NOTHING, 1e8)
    assert [row.step_s for row in found.rows] == pytest.approx([0.8, 0.4, 0.2], rel=1e-6)
    for measured_s, best, worst in zip((0.8, 0.5, 0.4), found.rows, found.worst, strict=True):
        assert best.step_s <= worst.step_s * (1 + 1e-12)
        assert worst.step_s >= measured_s * (1 - 1e-12)
    # one GPU was measured and needs no link
    assert found.rows[0].step_s == pytest.approx(0.8) == found.worst[0].step_s
    told = found.to_json()["rows"][2]
    assert told["low_s"] == told["step_s"] < told["high_s"]
    assert told["train_high_s"] == pytest.approx(100 * told["high_s"])
    assert told["speedup_low"] == pytest.approx(0.8 / told["high_s"])


def test_what_a_smaller_batch_costs_is_counted_where_it_was_measured():
    bars = Bars(
        gpus=2, batch_size=64, ideal_s=0.4, measured_s=0.5,
        bars=(Bar(name="smaller batch", seconds=0.1, is_noise=False),),
    )  # fmt: skip
    found = on_cluster(fast(), offers(0.8, 0.5, 0.4), replace(NOTHING, bars=(bars,)), 1e6)
    # 0.8 s for 64 examples and 0.5 s for 32: 0.2 s that no batch makes fewer
    assert [row.step_s for row in found.rows] == pytest.approx([0.8, 0.5, 0.35], rel=1e-6)
    assert not any("smaller batch" in said for said in found.remarks)
    assert any("smaller batch" in said for said in on_cluster(fast(), offers(0.8), NOTHING, 1e6).remarks)


def test_more_gpus_than_one_node_has_are_left_out_and_that_is_said():
    one = WORKSTATION.model_copy(update={"between": None, "gpus_per_node": 2})
    found = on_cluster(one, offers(0.8, 0.5, 0.4), NOTHING, 1e8)
    assert [row.gpus for row in found.rows] == [1, 2]
    assert any("left out" in said for said in found.remarks)
    assert [row["kind"] for row in found.to_json()["rows"]] == ["simulated"] * 2


def test_one_node_that_is_too_small_for_all_is_refused():
    one = WORKSTATION.model_copy(update={"between": None, "gpus_per_node": 2})
    with pytest.raises(ConfigError, match="one node with 2 GPUs, and the fewest that are asked about are 4"):
        on_cluster(one, offers(0.8, 0.5, 0.4)[2:], NOTHING, 1e8)


def test_evaluation_and_checkpoints_take_there_what_they_took():
    rows = [step(2**place, seconds) for place, seconds in enumerate((0.8, 0.5))]
    run, overheads = Run(num_examples=6400, num_epochs=2), Overheads(start_s={}, epoch_s={1: 30.0})
    found = on_cluster(fast(), offers_of(rows, run, waits=Waits(), overheads=overheads), NOTHING, 1e8)
    assert found.train_s == pytest.approx((80 + 60, 40 + 60), rel=1e-6)
    assert found.train_high_s[1] == pytest.approx(100 * found.worst[1].step_s + 60)


def test_with_turns_less_of_the_exchange_can_be_hidden():
    """Gradients leave in the last of four turns: its backward pass is 2/3 of a quarter of the step."""
    slow = fast(bytes_per_s=1e9)
    rows = [replace(step(2**place, seconds), turns=4.0) for place, seconds in enumerate((0.8, 0.5))]
    in_turns = offers_of(
        rows, Run(num_examples=6400), waits=Waits(), overheads=Overheads(start_s={}, epoch_s={})
    )
    at_once, later = (on_cluster(slow, some, NOTHING, 2e8).rows[1] for some in (offers(0.8, 0.5), in_turns))
    assert later.step_s > at_once.step_s


def test_gradients_are_those_that_were_seen(tmp_path):
    path = observations_path(tmp_path / "looks" / "1", 0)
    path.parent.mkdir(parents=True)
    with pytest.raises(ConfigError, match="--parameters"):
        gradient_bytes_in([tmp_path])
    path.write_text(SEEN)
    assert gradient_bytes_in([tmp_path]) == 4 * 10 * 512 + 2 * 10 + 4


SEEN = (
    f'{{"row":"Start","format":"{FORMAT}","version":{VERSION},"samestep":"0","rank":0,"world_size":1,'
    '"attempt":0,"program":[],"steps_in_full":24,"most_bytes":1000000,"python":"3","host":"h","pid":1,"time":0}\n'
    '{"row":"Model","step":1,"model":0,"kind":"Net","wraps":[],"norms":[],"dropouts":[],"tensors":['
    '"weight float32 (10, 512) gradient","a name bfloat16 (10,) gradient","scale float32 () gradient",'
    '"frozen float32 (1000,)"]}\n'
)


@pytest.mark.parametrize(("text", "count"), [("25.6M", 25.6e6), ("7B", 7e9), ("120", 120), ("3k", 3000)])
def test_parameters(text, count):
    assert parameters_of(text) == count


@pytest.mark.parametrize("text", ["", "many", "-3", "0", "1e6"])
def test_parameters_that_are_none(text):
    with pytest.raises(ConfigError, match="--parameters is"):
        parameters_of(text)
