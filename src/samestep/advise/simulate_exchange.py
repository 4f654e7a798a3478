"""How long the gradients of one bucket take to be summed over all GPUs, by closed forms.

With S bytes, N GPUs, n nodes, m GPUs on the fullest node, and a link of latency L and rate B:

    ring           2 (N − 1)/N · S/B  +  2 (N − 1) L       along all GPUs, over the slowest link
    tree           2 S/B  +  2 ⌈log₂ N⌉ L                   two binary trees, pipelined
    hierarchical   ring inside nodes (m, all S)  +  ring between nodes (n, all S over the node's adapters)

(Patarasuk and Yuan 2009 for the ring; Sanders, Speck and Träff 2009 for the two trees.) The ranks of a node
share its adapters: each of m has an m-th part of their rate and sends an m-th part of S. Hops between nodes
are never quicker than those inside, since they begin and end there. Knows nothing of steps or of overlap, nor
of networks that are slower the more nodes send.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from samestep.advise.cluster import Cluster, Link

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Algorithm = Literal["auto", "ring", "tree", "hierarchical"]
"""`auto`: ring or tree, whichever is faster for the bucket, as NCCL chooses."""

_NO_LINK = Link(bytes_per_s=1e300, latency_s=0.0)
"""Stands for a link that nothing crosses."""


def num_nodes(cluster: Cluster, gpus: Ints) -> Ints:
    """How many nodes the GPUs take when they fill node after node."""
    return -(-gpus // cluster.gpus_per_node)


def exchange_s(num_bytes: Floats, cluster: Cluster, gpus: Ints, algorithm: Algorithm = "auto") -> Floats:
    """Seconds for each number of bytes (rows) and of GPUs (columns); none for one GPU."""
    sizes = num_bytes[:, np.newaxis]
    if algorithm == "ring":
        return _ring(sizes, cluster, gpus)
    if algorithm == "tree":
        return _tree(sizes, cluster, gpus)
    if algorithm == "hierarchical":
        return _hierarchical(sizes, cluster, gpus)
    return np.minimum(_ring(sizes, cluster, gpus), _tree(sizes, cluster, gpus))


def _ring(sizes: Floats, cluster: Cluster, gpus: Ints) -> Floats:
    nodes = num_nodes(cluster, gpus)
    # the slowest piece goes over every link but one, and that one is inside a node if any is
    hops_between = np.where(nodes > 1, np.where(gpus > nodes, nodes, nodes - 1), 0)
    hops_inside = gpus - 1 - hops_between
    inside, between_s = cluster.inside or _NO_LINK, _hop_between_s(cluster)
    return _ring_bytes(gpus) * sizes / _slowest_rate(cluster, nodes) + 2 * (
        hops_inside * inside.latency_s + hops_between * between_s
    )


def _tree(sizes: Floats, cluster: Cluster, gpus: Ints) -> Floats:
    nodes, ranks = num_nodes(cluster, gpus), np.minimum(gpus, cluster.gpus_per_node)
    inside, between_s = cluster.inside or _NO_LINK, _hop_between_s(cluster)
    seconds = 2 * sizes / _slowest_rate(cluster, nodes) + 2 * (
        _depth(ranks) * inside.latency_s + _depth(nodes) * between_s
    )
    return np.where(gpus > 1, seconds, 0.0)


def _hierarchical(sizes: Floats, cluster: Cluster, gpus: Ints) -> Floats:
    nodes, ranks = num_nodes(cluster, gpus), np.minimum(gpus, cluster.gpus_per_node)
    inside, between = cluster.inside or _NO_LINK, cluster.between or _NO_LINK
    within_s = _ring_bytes(ranks) * sizes / inside.rate_bytes_per_s + 2 * (ranks - 1) * inside.latency_s
    node_rate = cluster.node_bytes_per_s or _NO_LINK.rate_bytes_per_s
    return within_s + _ring_bytes(nodes) * sizes / node_rate + 2 * (nodes - 1) * between.latency_s


def _ring_bytes(members: Ints) -> Floats:
    """How often a member of a ring sends as many bytes as there are."""
    return 2.0 * ((members - 1) / members)


def _depth(members: Ints) -> Ints:
    """⌈log₂⌉ of each, in whole numbers."""
    return np.frexp(members - 1)[1].astype(np.int64)


def _slowest_rate(cluster: Cluster, nodes: Ints) -> Floats:
    inside = (cluster.inside or _NO_LINK).rate_bytes_per_s
    between = cluster.node_bytes_per_s or inside
    return np.where(nodes > 1, min(inside, between), inside)


def _hop_between_s(cluster: Cluster) -> float:
    return max((link or _NO_LINK).latency_s for link in (cluster.inside, cluster.between))
