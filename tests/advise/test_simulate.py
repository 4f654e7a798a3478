"""Simulated steps against closed forms and brute force, and what must hold of all of them."""

import math
import time
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from samestep.advise import simulate as module
from samestep.advise.cluster import Cluster, Link, Network, read_cluster
from samestep.advise.simulate import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    Bucket,
    Step,
    ddp_buckets,
    simulate,
    simulate_each,
)
from samestep.advise.simulate_exchange import exchange_s
from samestep.advise.simulate_stragglers import slowest
from samestep.errors import ConfigError

ROUNDING = 1e-14
"""A dozen operations of 2 ** -53 each."""
MEGABYTE = 1e6
ALGORITHMS = ("auto", "ring", "tree", "hierarchical")

links = st.builds(
    Link, bytes_per_s=st.floats(1e6, 1e12), latency_s=st.floats(0, 1e-3), achieved=st.floats(0.1, 1)
)
networks = st.builds(
    Network,
    bytes_per_s=st.floats(1e6, 1e12),
    latency_s=st.floats(0, 1e-3),
    links_per_node=st.integers(1, 9),
)
clusters = st.builds(
    Cluster, name=st.just("any"), gpus_per_node=st.integers(1, 20), inside=links, between=networks
)
buckets = st.lists(
    st.builds(Bucket, num_bytes=st.floats(1, 1e9), ready=st.floats(0, 1)), min_size=1, max_size=6
)


NOISES = st.sampled_from([0.0, 0.02, 0.3])


@st.composite
def steps(draw, noise=NOISES):
    held = draw(st.one_of(st.none(), buckets.map(tuple)))
    return Step(
        compute_s=draw(st.floats(1e-4, 100)),
        gradient_bytes=draw(st.floats(1, 3e9)) if held is None else sum(b.num_bytes for b in held),
        backward_share=draw(st.floats(0, 1)),
        update_s=draw(st.floats(0, 1)),
        noise=draw(noise),
        examples=draw(st.floats(0, 1000)),
        input_examples_per_s=draw(st.one_of(st.none(), st.floats(1, 1e6))),
        buckets=held,
    )


def flat(latency_s=5e-6, bytes_per_s=10e9, gpus_per_node=1):
    """One kind of link, wherever it goes."""
    between = Network(bytes_per_s=bytes_per_s, latency_s=latency_s)
    inside = Link(bytes_per_s=bytes_per_s, latency_s=latency_s)
    return Cluster(name="flat", gpus_per_node=gpus_per_node, inside=inside, between=between)


def at_end(num_bytes=100 * MEGABYTE, compute_s=0.1, **others):
    """A step that sends everything after backward."""
    held = (Bucket(num_bytes=num_bytes, ready=1.0),)
    return Step(compute_s=compute_s, gradient_bytes=num_bytes, buckets=held, **others)


# Closed forms


@pytest.mark.parametrize("gpus", [2, 3, 7, 8, 9, 64, 1000, 4096])
@pytest.mark.parametrize("gpus_per_node", [1, 8, 5000])
def test_ring_without_overlap(gpus, gpus_per_node):
    found = simulate(at_end(update_s=0.01), flat(gpus_per_node=gpus_per_node), gpus, algorithm="ring")
    due = 2 * (gpus - 1) / gpus * 100e6 / 10e9 + 2 * (gpus - 1) * 5e-6
    assert found.exchange_not_hidden_s == pytest.approx(due, rel=ROUNDING, abs=np.spacing(found.step_s))
    assert found.step_s == pytest.approx(0.11 + due, rel=ROUNDING)
    assert found.exchange_hidden_s == found.waiting_s == found.input_s == 0.0


@pytest.mark.parametrize(
    ("gpus", "depth"), [(2, 1), (3, 2), (4, 2), (5, 3), (1024, 10), (1025, 11), (4096, 12)]
)
def test_tree_without_overlap(gpus, depth):
    for gpus_per_node in (1, 5000):
        found = simulate(at_end(), flat(gpus_per_node=gpus_per_node), gpus, algorithm="tree")
        assert found.step_s == pytest.approx(0.1 + 2 * 100e6 / 10e9 + 2 * depth * 5e-6, rel=ROUNDING)


def test_hierarchical_is_a_ring_inside_and_a_ring_between_which_share_the_adapters():
    cluster = Cluster(
        name="two", gpus_per_node=8,
        inside=Link(bytes_per_s=100e9, latency_s=2e-6),
        between=Network(bytes_per_s=10e9, latency_s=9e-6, links_per_node=4),
    )  # fmt: skip
    found = simulate(at_end(), cluster, 32, algorithm="hierarchical")
    inside_s = 2 * 7 / 8 * 100e6 / 100e9 + 2 * 7 * 2e-6
    # eight ranks send an eighth of the bytes each, over an eighth of four adapters each
    between_s = 2 * 3 / 4 * (100e6 / 8) / (4 * 10e9 / 8) + 2 * 3 * 9e-6
    assert found.step_s == pytest.approx(0.1 + inside_s + between_s, rel=ROUNDING)
    one_node = simulate(at_end(), cluster, 8, algorithm="hierarchical")
    assert one_node.step_s == pytest.approx(
        simulate(at_end(), cluster, 8, algorithm="ring").step_s, rel=ROUNDING
    )


def test_a_ring_over_nodes_is_as_fast_as_its_slowest_link():
    cluster = Cluster(
        name="two", gpus_per_node=4,
        inside=Link(bytes_per_s=100e9, latency_s=2e-6),
        between=Network(bytes_per_s=10e9, latency_s=9e-6, links_per_node=2, achieved=0.5),
    )  # fmt: skip
    # of the 11 hops of a piece, 3 are between nodes for the slowest piece and 8 inside
    due = 2 * 11 / 12 * 100e6 / (10e9 * 2 * 0.5) + 2 * (8 * 2e-6 + 3 * 9e-6)
    assert simulate(at_end(), cluster, 12, algorithm="ring").step_s == pytest.approx(0.1 + due, rel=ROUNDING)


def test_auto_is_the_faster_of_ring_and_tree():
    small, large = at_end(1e3), at_end(1e11)
    for step, better in ((small, "tree"), (large, "ring")):
        found = simulate(step, flat(), 256).step_s
        assert found == simulate(step, flat(), 256, algorithm=better).step_s
        assert found < simulate(step, flat(), 256, algorithm="ring" if better == "tree" else "tree").step_s


@pytest.mark.parametrize("num_bytes", [10 * MEGABYTE, 5000 * MEGABYTE])
def test_with_full_overlap_the_step_is_the_longer_of_backward_and_exchange(num_bytes):
    held = (Bucket(num_bytes=num_bytes, ready=0.0),)
    step = Step(compute_s=0.3, gradient_bytes=num_bytes, buckets=held)
    found = simulate(step, flat(), 4, algorithm="ring")
    exchange = 2 * 3 / 4 * num_bytes / 10e9 + 6 * 5e-6
    assert found.step_s == pytest.approx(0.1 + max(0.2, exchange), rel=ROUNDING)
    assert found.exchange_s == pytest.approx(exchange, rel=ROUNDING)
    assert found.exchange_hidden_s == pytest.approx(min(0.2, exchange), rel=ROUNDING)


@settings(max_examples=50, deadline=None)
@given(steps(), clusters, st.sampled_from(ALGORITHMS))
def test_one_gpu_exchanges_nothing_and_waits_for_nobody(step, cluster, algorithm):
    found = simulate(step, cluster, 1, algorithm=algorithm)
    assert found.exchange_s == 0.0
    # the weights of a grid add up to 1 in rounding only
    assert found.waiting_s <= 1e-12 * found.step_s
    fetched = step.examples / (step.input_examples_per_s or math.inf)
    assert found.step_s == pytest.approx(max(step.compute_s + step.update_s, fetched), rel=1e-12)


# Brute force


def ring_message_by_message(num_bytes, gpus, latency_s, bytes_per_s):
    """When the last GPU has the last piece, if every message is a thing of its own."""
    sending_s = num_bytes / gpus / bytes_per_s
    has = np.zeros(gpus)  # when each GPU has the piece that it sends next
    free = np.zeros(gpus)  # when the link that leaves it is free
    for _ in range(2 * (gpus - 1)):
        free = np.maximum(has, free) + sending_s
        has = np.roll(free + latency_s, 1)
    return has.max()


@pytest.mark.parametrize("gpus", [2, 3, 5, 16, 100])
def test_ring_is_what_its_messages_take(gpus):
    found = exchange_s(np.array([3e6]), flat(), np.array([gpus]), "ring")[0, 0]
    # as many additions as messages one after the other
    assert found == pytest.approx(ring_message_by_message(3e6, gpus, 5e-6, 10e9), rel=2 * gpus * 2**-52)


def test_a_pair_of_buckets_by_hand():
    # forward to 1 s, backward to 3 s; sent for 1 s each over 2 GPUs: 10e9 bytes at 10e9 bytes/s
    held = (Bucket(num_bytes=10e9, ready=0.25), Bucket(num_bytes=10e9, ready=1.0))
    step = Step(compute_s=3.0, gradient_bytes=20e9, buckets=held, update_s=0.5)
    found = simulate(step, flat(latency_s=0.0), 2, algorithm="ring")
    assert found.step_s == pytest.approx(3 + 1 + 0.5, rel=ROUNDING)
    assert found.parts == pytest.approx(
        {"compute": 3.5, "waiting for the slowest": 0, "exchange not hidden": 1, "input pipeline": 0},
        rel=ROUNDING,
        abs=1e-14,
    )
    assert found.exchange_hidden_s == pytest.approx(1.0, rel=ROUNDING)


def test_buckets_wait_for_each_other():
    held = (
        Bucket(num_bytes=30e9, ready=0.5),
        Bucket(num_bytes=10e9, ready=0.75),
        Bucket(num_bytes=10e9, ready=1.0),
    )
    step = Step(compute_s=3.0, gradient_bytes=50e9, buckets=held)
    found = simulate(step, flat(latency_s=0.0), 2, algorithm="ring")
    assert found.step_s == pytest.approx(2 + 3 + 1 + 1, rel=ROUNDING)


@pytest.mark.parametrize(("gpus", "noise"), [(2, 0.1), (16, 0.05), (64, 0.3)])
def test_stragglers_are_as_late_as_drawn_ones(gpus, noise):
    step = Step(compute_s=0.1, gradient_bytes=400 * MEGABYTE, noise=noise)
    cluster = flat(gpus_per_node=8)
    rng = np.random.default_rng(0)
    sigma = math.sqrt(math.log1p(noise**2))
    num_draws = 4000
    ranks = rng.lognormal(-(sigma**2) / 2, sigma, (num_draws, gpus))
    seconds = exchange_s(np.array([b.num_bytes for b in step.exchanged]), cluster, np.array([gpus]))[:, 0]
    end = np.zeros(num_draws)
    for bucket, sent_s in zip(step.exchanged, seconds, strict=True):
        ready = np.max(ranks * 0.1 * (1 / 3 + 2 / 3 * bucket.ready), axis=1)
        end = np.maximum(ready, end) + sent_s
    drawn, error = end.mean(), end.std() / math.sqrt(num_draws)
    assert simulate(step, cluster, gpus).step_s == pytest.approx(drawn, abs=4 * error)
    # the negative control: without stragglers it would be far off
    assert abs(simulate(Step(compute_s=0.1, gradient_bytes=400e6), cluster, gpus).step_s - drawn) > 8 * error


@pytest.mark.parametrize("noise", [0.01, 0.1, 0.5, 1.0])
def test_the_slower_of_two_has_a_closed_form(noise):
    factors, weights = slowest(noise, np.array([1, 2]))
    sigma = math.sqrt(math.log1p(noise**2))
    # of two log-normal draws of mean 1 the larger has the mean 2 Φ(σ/√2)
    due = [1.0, 1 + math.erf(sigma / 2)]
    # the grid's error is (σ/8)²/24 of a mean, the same for one rank and for two but for the kink between them
    assert factors @ weights == pytest.approx(due, rel=(sigma / 8) ** 2 / 24 + 1e-12)
    assert weights.sum(axis=0) == pytest.approx(1.0, rel=1e-12)
    assert (weights >= 0).all()


def test_the_mean_of_the_largest_of_many_normal_draws():
    noise = 1e-6  # so small that a factor is 1 + noise · z
    gpus = np.array([3, 10, 100, 1000])
    factors, weights = slowest(noise, gpus)
    found = (factors @ weights - 1) / noise
    # 3: 3/(2√π); the others from tables of normal order statistics (Harter 1961)
    assert found == pytest.approx([3 / (2 * math.sqrt(math.pi)), 1.53875, 2.50759, 3.24144], abs=2e-5)


# What must always hold


@settings(max_examples=200, deadline=None)
@given(steps(), clusters, st.integers(1, 5000), st.sampled_from(ALGORITHMS))
def test_parts_add_up_exactly(step, cluster, gpus, algorithm):
    found = simulate(step, cluster, gpus, algorithm=algorithm)
    parts = list(found.parts.values())
    assert sum(map(Fraction, parts)) == Fraction(found.step_s)
    assert all(sum(order) == found.step_s for order in permutations(parts))
    assert all(part >= 0 for part in parts)
    assert found.exchange_hidden_s >= 0
    assert Fraction(found.exchange_s) == Fraction(found.exchange_hidden_s) + Fraction(
        found.exchange_not_hidden_s
    )


def test_parts_that_are_only_subtracted_would_not_add_up():
    """The negative control: differences of times that were not put on ticks."""
    # of times that are within a factor of 2 differences are exact anyway
    step = Step(compute_s=0.1, gradient_bytes=1e9, noise=0.1, update_s=0.003)
    ends, _ = module._ends(step, read_cluster("pcie-4gpu-25gbe"), np.arange(2, 200), "auto")
    parts = np.diff(ends, axis=0, prepend=0.0)
    wrong = [
        sum(map(Fraction, column)) != Fraction(end)
        for column, end in zip(parts.T.tolist(), ends[-1], strict=True)
    ]
    assert any(wrong)


@settings(max_examples=150, deadline=None)
@given(steps(), clusters, st.integers(1, 5000), st.floats(1, 100), st.sampled_from(ALGORITHMS), st.data())
def test_a_better_link_is_never_slower(step, cluster, gpus, better, algorithm, data):
    side = data.draw(st.sampled_from(["inside", "between"]))
    link = getattr(cluster, side)
    change = data.draw(
        st.sampled_from([{"bytes_per_s": link.bytes_per_s * better}, {"latency_s": link.latency_s / better}])
    )
    improved = cluster.model_copy(update={side: link.model_copy(update=change)})
    before = simulate(step, cluster, gpus, algorithm=algorithm)
    after = simulate(step, improved, gpus, algorithm=algorithm)
    assert after.step_s <= before.step_s * (1 + ROUNDING)
    assert after.exchange_s <= before.exchange_s + ROUNDING * before.step_s


@settings(max_examples=150, deadline=None)
@given(steps(), clusters, st.integers(1, 5000), st.integers(1, 5000), st.sampled_from(ALGORITHMS))
def test_more_gpus_never_exchange_or_step_faster(step, cluster, gpus, more, algorithm):
    few, many = simulate_each(step, cluster, [gpus, gpus + more], algorithm=algorithm)
    assert many.exchange_s >= few.exchange_s - ROUNDING * many.step_s
    # the weights of the stragglers add up to 1 in rounding only
    assert many.step_s >= few.step_s * (1 - 1e-12)


@settings(max_examples=50, deadline=None)
@given(steps(noise=st.just(0.0)), clusters, st.integers(2, 5000), st.sampled_from([0.01, 0.2]))
def test_noise_only_adds(step, cluster, gpus, noise):
    assume(step.backward_share > 0)
    calm = simulate(step, cluster, gpus)
    fields = {name: getattr(step, name) for name in step.__dataclass_fields__}
    noisy = simulate(Step(**{**fields, "noise": noise}), cluster, gpus)
    assert noisy.step_s >= calm.step_s * (1 - 1e-12)
    assert noisy.waiting_s > 0


def test_input_is_shared_by_the_ranks_of_a_node():
    step = Step(compute_s=0.1, gradient_bytes=1e6, examples=32, input_examples_per_s=1000)
    cluster = flat(gpus_per_node=4)
    one, full, two_nodes = simulate_each(step, cluster, [1, 4, 8])
    assert one.input_s == 0.0
    for found in (full, two_nodes):
        assert found.step_s == pytest.approx(4 * 32 / 1000, rel=ROUNDING)
        assert found.input_s == pytest.approx(found.step_s - found.compute_s - found.exchange_not_hidden_s)
    assert simulate(Step(compute_s=0.1, gradient_bytes=1e6, examples=32), cluster, 8).input_s == 0.0


def test_all_at_once_is_the_same_as_one_by_one():
    step = Step(compute_s=0.2, gradient_bytes=5e8, noise=0.04, examples=8, input_examples_per_s=300)
    cluster = read_cluster("aws-g5-12xlarge")
    worlds = [1, 2, 3, 4, 5, 8, 13, 4096]
    found = simulate_each(step, cluster, worlds)
    assert [one.gpus for one in found] == worlds
    assert [one.num_nodes for one in found] == [1, 1, 1, 1, 2, 2, 4, 1024]
    for one, world in zip(found, worlds, strict=True):
        alone = simulate(step, cluster, world)
        # sums over the grid may be made in another order
        assert one.step_s == pytest.approx(alone.step_s, rel=1e-12)
    assert simulate_each(step, cluster, []) == ()


def test_thousands_of_gpus_and_a_hundred_buckets_take_less_than_a_second():
    held = tuple(Bucket(num_bytes=25e6, ready=(k + 1) / 100) for k in range(100))
    step = Step(compute_s=0.5, gradient_bytes=25e8, buckets=held, noise=0.05)
    cluster = read_cluster("dgx-h100")
    start = time.process_time()
    assert simulate(step, cluster, 4096).num_nodes == 512
    assert time.process_time() - start < 1.0


# Buckets and bad input


def test_buckets_are_those_of_ddp():
    found = ddp_buckets(102.4e6)
    assert [b.num_bytes for b in found] == [
        FIRST_BUCKET_BYTES,
        *[BUCKET_BYTES] * 3,
        102.4e6 - 2**20 - 3 * BUCKET_BYTES,
    ]
    assert found[-1].ready == 1.0
    assert [b.ready for b in found] == sorted(b.ready for b in found)
    assert found[0].ready == pytest.approx(2**20 / 102.4e6)
    assert [b.num_bytes for b in ddp_buckets(10.0)] == [10.0]
    assert [b.num_bytes for b in ddp_buckets(2**20 + BUCKET_BYTES)] == [2**20, BUCKET_BYTES]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("compute_s", 0.0), ("compute_s", -1.0), ("compute_s", math.nan), ("compute_s", math.inf),
        ("gradient_bytes", 0.0), ("gradient_bytes", math.nan), ("backward_share", 1.1), ("update_s", -1.0),
        ("noise", 5.0), ("noise", math.nan), ("examples", -1.0), ("input_examples_per_s", 0.0),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_its_name(field, value):
    with pytest.raises(ConfigError, match=f"^`{field}` is {value}; it must be "):
        Step(**{"compute_s": 0.1, "gradient_bytes": 1e6, field: value})


def test_wrong_buckets_are_refused():
    with pytest.raises(ConfigError, match=r"`ready` is 1\.5; it must be from 0 to 1"):
        Bucket(num_bytes=1.0, ready=1.5)
    with pytest.raises(ConfigError, match=r"`num_bytes` is 0\.0; it must be above 0"):
        Bucket(num_bytes=0.0, ready=0.5)
    with pytest.raises(ConfigError, match=r"`gradient_bytes` is 5\.0; it must be what `buckets` hold, 7"):
        Step(compute_s=1.0, gradient_bytes=5.0, buckets=(Bucket(num_bytes=7.0, ready=1.0),))


def test_numbers_of_gpus_that_the_cluster_cannot_be_are_refused():
    step = Step(compute_s=0.1, gradient_bytes=1e6)
    for gpus in (0, -1):
        with pytest.raises(ConfigError, match="it must be 1 or more"):
            simulate(step, read_cluster("dgx-a100"), gpus)
    with pytest.raises(ConfigError, match="one node with 2"):
        simulate(step, read_cluster("rtx-3090-nvlink"), 4)
