"""What was measured, as a spec that `advise --cluster` reads."""

import json

import pytest
from doctor_cases import between, diagnosis, node

from samestep.advise.cluster import Cluster, read_cluster
from samestep.doctor.diagnosis import Exchange


def exchanges(**rates):
    return [Exchange(name=name, bytes=1, seconds=1.0, bytes_per_s=rate) for name, rate in rates.items()]


def test_the_spec_of_two_machines_says_what_the_exchange_reaches_of_the_slowest_link(tmp_path):
    links = [between(0, 1), between(0, 2, bytes_per_s=1.0e8), between(1, 2)]
    three = [node(index) for index in range(3)]
    found = diagnosis(*three, links=links, exchanges=exchanges(sum=8e7, inside=4e8), exchange_latency_s=1e-3)
    found.write(tmp_path)
    cluster = read_cluster(tmp_path / "cluster.yaml")
    assert cluster.gpus_per_node == 2 and cluster.inside.bytes_per_s == 4e8
    assert cluster.between.bytes_per_s == 1e8
    assert cluster.between.achieved == pytest.approx(0.8)
    assert cluster.between.latency_s == pytest.approx(1e-3 / 10), "a sum over 6 ranks is 10 hops long"
    assert json.loads((tmp_path / "doctor.json").read_text())["cluster"]["gpus_per_node"] == 2


def test_an_exchange_that_is_as_fast_as_the_link_still_counts_as_measured():
    found = diagnosis(exchanges=exchanges(sum=2.4e8, inside=4e8))
    cluster = Cluster.model_validate(found.cluster())
    assert cluster.between.bytes_per_s == 2.4e8 and 0.99 < cluster.between.achieved < 1


def test_one_machine_has_no_link_to_others_and_what_was_not_measured_is_no_spec():
    alone = diagnosis(node(0), links=[], exchanges=exchanges(sum=3e8))
    assert Cluster.model_validate(alone.cluster()).between is None
    assert diagnosis(exchanges=[], exchange_latency_s=None).cluster() is None
