"""Worst case: the same step with nothing hidden, on links that reach the least of their peak that is common.

The simulation is the best case: gradients travel behind the backward pass, links reach what the spec says. A
data sheet does not tell what exchanges reach of a peak. A tenth is what one TCP connection gets on a network
of 50 Gb/s (AWS gives 5 Gb/s to a flow), and the most with which four of five steps of every public source lie
between best and worst; a link of which somebody measured what it reaches is taken at that. How many steps lie
between if it is chosen without the source that is asked about, is told by `benchmarks.simulate`.
"""

from dataclasses import replace
from typing import TypeVar

from samestep.advise.cluster import Cluster, Link
from samestep.advise.simulate import Bucket, Step

LEAST_ACHIEVED = 0.1
_Link = TypeVar("_Link", bound=Link)


def at_worst(step: Step, cluster: Cluster, achieved: float = LEAST_ACHIEVED) -> tuple[Step, Cluster]:
    """What to simulate for the high end of an interval; the low end is the step on the cluster as given."""
    after_all = (Bucket(num_bytes=step.gradient_bytes, ready=1.0),)
    links = {"inside": _slow(cluster.inside, achieved), "between": _slow(cluster.between, achieved)}
    return replace(step, buckets=after_all), cluster.model_copy(update=links)


def _slow(link: _Link | None, achieved: float) -> _Link | None:
    if link is None or link.achieved < 1:
        return link
    return link.model_copy(update={"achieved": achieved})
