"""What torchmetrics metrics have accumulated, taken out of them, gathered, and put back.

The one module that reaches into `Metric`: declared states, update counts, metrics inside metrics. A *part*
is what one stretch of accumulation left behind: an update count and the value of each state. A shard that
saw nothing has no part. Does not merge.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.wrappers import MinMaxMetric, Running

from samestep.errors import ConfigError, ReplicaError
from samestep.metrics.packing import UnpackableError, pack, unpack
from samestep.metrics.reduction import Reduction, compact, is_default
from samestep.world import World

_CARRIED = "_samestep_carried"

# attributes that act as state from compute to compute without being declared
_UNDECLARED: dict[type[Metric], tuple[str, ...]] = {
    MinMaxMetric: ("min_val", "max_val"),
    Running: ("_num_vals_seen",),
}


class Part(TypedDict):
    """What one stretch of accumulation left behind in a metric, and the shard that it was about."""

    shard: int
    count: int
    states: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """The parts of all ranks by path, in the order of shards, and rank 0's undeclared state by path."""

    parts: dict[str, list[Part]]
    undeclared: dict[str, dict[str, Any]]


def nodes_of(metric: nn.Module) -> dict[str, Metric]:
    """The metric and the metrics inside it by path, each object once; the metric itself is "."."""
    return {path or ".": node for path, node in metric.named_modules() if isinstance(node, Metric)}


def own_states(node: Metric) -> list[str]:
    """The names of the states that belong to `node` itself and not to a metric that it wraps."""
    if any(child._defaults is node._defaults for child in node.children() if isinstance(child, Metric)):
        return []
    return [name for name in node._defaults if name != _CARRIED]


def reduction_of(node: Metric, name: str) -> Reduction:
    """How torchmetrics is told to merge the state called `name`."""
    reduction = node._reductions[name]
    assert not isinstance(reduction, str), "add_state turns names into functions"
    return reduction


def blank_part(node: Metric) -> Part:
    """The part of a metric that nobody has updated."""
    defaults = {name: node._defaults[name] for name in own_states(node)}
    return Part(
        shard=0, count=0, states={n: d.clone() if isinstance(d, Tensor) else [] for n, d in defaults.items()}
    )


def ungroup(metric: nn.Module) -> None:
    """Let every metric of a collection have its own updates, unless groups were given for it.

    torchmetrics takes metrics whose states agree after their first update for one. The first update of a
    shard has so few examples that states may agree by chance, on one rank and not on another.
    """
    for module in metric.modules():
        if isinstance(module, MetricCollection) and module._enable_compute_groups is True:
            module._enable_compute_groups, module._groups, module._groups_checked = False, {}, False


def gather(copies: Mapping[int, nn.Module], world: World) -> Gathered:
    """What all ranks have accumulated; a refusal on one rank is raised on all of them.

    `copies` are this rank's, by shard and in order; shards of a rank come before those of the next.
    """
    by_shard = {shard: nodes_of(copy) for shard, copy in copies.items()}
    nodes = next(iter(by_shard.values()))
    # a metric that keeps its lists on the host does so because the device has no room for them
    on_host = any(node.compute_on_cpu for node in nodes.values())
    device = torch.device("cpu") if on_host else world.device
    form = {path: [type(node).__name__, *own_states(node)] for path, node in nodes.items()}
    try:
        parts = {
            path: [part for shard, same in by_shard.items() for part in _local_parts(path, same[path], shard)]
            for path in nodes
        }
        undeclared = {path: _undeclared(node) for path, node in nodes.items()}
        tree = {"refusal": None, "form": form, "parts": parts, "undeclared": undeclared}
        flat = pack(tree, device)
    except (ConfigError, UnpackableError) as error:
        flat = pack({"refusal": str(error)}, device)
    ranks = [unpack(flat) for flat in world.gather_rows(flat)]
    for rank, tree in enumerate(ranks):
        if tree["refusal"] is not None:
            raise ConfigError(f"The metrics of rank {rank} cannot be merged: {tree['refusal']}")
    for rank, tree in enumerate(ranks):
        if tree["form"] != ranks[0]["form"]:
            raise ReplicaError(
                f"Rank {rank} holds the metrics {tree['form']} but rank 0 holds {ranks[0]['form']}: "
                "make the same metrics, in the same order, on every rank."
            )
    return Gathered(
        parts={path: [part for tree in ranks for part in tree["parts"][path]] for path in nodes},
        undeclared=ranks[0]["undeclared"],
    )


@contextmanager
def holding(nodes: Mapping[str, Metric], merged: Mapping[str, Part]) -> Iterator[None]:
    """Let each metric hold its merged part, without synchronisation of its own, and then what it held.

    In place rather than on a copy: what a wrapper remembers from compute to compute must stay with it.
    """
    saved = {
        path: (_states(node), node._update_count, node._computed, node._to_sync)
        for path, node in nodes.items()
    }
    try:
        for path, node in nodes.items():
            if own_states(node):
                put(node, merged[path])
            node._computed, node._to_sync = None, False
        yield
    finally:
        for path, node in nodes.items():
            states, node._update_count, node._computed, node._to_sync = saved[path]
            for name, value in states.items():
                setattr(node, name, value)


def put(node: Metric, part: Part) -> None:
    """Make `part`, copied to where the metric keeps its state, what the metric has accumulated."""
    for name, value in part["states"].items():
        setattr(node, name, _placed(value, node))
    node._update_count = part["count"]
    node._computed = None


def put_undeclared(node: Metric, values: Mapping[str, Any]) -> None:
    """Restore the state that `node` keeps without declaring it."""
    for name, value in values.items():
        setattr(node, name, _placed(value, node))


def carry(node: Metric, parts: list[Part]) -> None:
    """Keep `parts` beside the state of `node`, to be gathered with it, until it is reset."""
    # a declared list state of tensors: reset, forward and moves between devices treat it like the others
    node.add_state(_CARRIED, default=[], dist_reduce_fx=None)
    setattr(node, _CARRIED, [pack(part, node.device) for part in parts])


def _local_parts(path: str, node: Metric, shard: int) -> list[Part]:
    if node._is_synced:
        raise ConfigError(
            f"{type(node).__name__} at {path!r} was synchronised by torchmetrics and holds the state of all "
            "ranks already: call its `unsync` first, or leave `sync` to samestep."
        )
    if not own_states(node):
        return []
    states = {name: compact(reduction_of(node, name), value) for name, value in _states(node).items()}
    # counts alone do not tell: wrappers do not count, and load_state_dict restores states without the count
    touched = node._update_count > 0 or not all(is_default(v, node._defaults[n]) for n, v in states.items())
    own = [Part(shard=shard, count=max(node._update_count, 1), states=states)] if touched else []
    carried = (unpack(flat) for flat in getattr(node, _CARRIED, []))
    return own + [Part(shard=shard, count=part["count"], states=part["states"]) for part in carried]


def _states(node: Metric) -> dict[str, Any]:
    return {name: getattr(node, name) for name in own_states(node)}


def _undeclared(node: Metric) -> dict[str, Any]:
    kinds = (names for kind, names in _UNDECLARED.items() if isinstance(node, kind))
    return {name: getattr(node, name) for names in kinds for name in names}


def _placed(value: Any, node: Metric, *, on_host: bool = False) -> Any:
    if isinstance(value, Tensor):
        return value.to("cpu" if on_host else node.device, copy=True)
    if isinstance(value, list):
        return [_placed(item, node, on_host=node.compute_on_cpu) for item in value]
    return value
