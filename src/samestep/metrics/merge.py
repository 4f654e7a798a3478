"""Exact values of torchmetrics metrics over all ranks, uneven and empty ones included.

Metrics are merged from their states, never averaged, and never through torchmetrics' own synchronisation.
Parts are merged in the order of shards on every rank, so all ranks get the same bits, and those of a metric
`ByShard` do not depend on the number of ranks in bitwise mode. What cannot be merged exactly is a finding,
never silence.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.wrappers import BootStrapper, MetricTracker, Running

from samestep.errors import CheckpointError, ReplicaError
from samestep.findings import Finding
from samestep.metrics.by_shard import ByShard, by_shard
from samestep.metrics.parts import (
    Part,
    blank_part,
    carry,
    gather,
    holding,
    nodes_of,
    own_states,
    put,
    put_undeclared,
    reduction_of,
)
from samestep.metrics.reduction import StateMismatchError, can_fold, is_exact, reduce_state
from samestep.world import World


@dataclass(frozen=True, kw_only=True)
class Merged:
    """The value of a metric over all ranks, and what has to be said about it.

    `value` is what the metric's own `compute` returns, the same bits on every rank. It is None when no rank
    has updated the metric: what torchmetrics answers then (0, NaN, an exception) differs by metric.
    """

    value: Any
    findings: tuple[Finding, ...] = ()


def compute(metric: nn.Module | ByShard, world: World) -> Merged:
    """The metric's value over the updates of all ranks; the accumulation on each rank can go on.

    Takes a `Metric`, a `MetricCollection`, a wrapper or a composition, also `ByShard`. All ranks call it.
    """
    kept = by_shard(metric, world)
    nodes = nodes_of(kept.first)
    parts = gather(kept.copies, world).parts
    if not any(parts.values()):
        return Merged(value=None, findings=(_never_updated(".", kept.first),))
    merged = {path: _merge(path, node, parts[path]) for path, node in nodes.items()}
    with holding(nodes, merged):
        value = kept.first.compute()  # type: ignore[operator]
    doubts = [*_doubts(kept, parts)]
    if world.shards is not None and kept.num_shards is None:
        doubts += _doubts_about_bits(nodes, parts)
    return Merged(value=value, findings=tuple(doubts))


def state_of(metric: nn.Module | ByShard, world: World) -> dict[str, Any]:
    """What all ranks have accumulated, as a tree of tensors, lists and numbers that names no world.

    The tree is the same on every rank; all ranks call it. Parts that fold into one (sums, maxima, lists)
    are folded; parts that only the metric itself can combine, when it computes, stay separate. So do those of
    different shards where a metric is kept apart by them.
    """
    kept = by_shard(metric, world)
    gathered = gather(kept.copies, world)
    return {
        path: {
            "parts": [
                Part(shard=shard, count=part["count"], states=part["states"])
                for shard, parts in _by_home(kept, gathered.parts[path]).items()
                for part in _folded(path, node, parts)
            ],
            "undeclared": gathered.undeclared[path],
        }
        for path, node in nodes_of(kept.first).items()
    }


def load_state(metric: nn.Module | ByShard, state: Mapping[str, Any], world: World) -> None:
    """Make the metric go on from `state`, which may come from a world of another size or mode.

    All ranks call it with the same state. A metric kept apart by shard takes each part into the copy of its
    shard; otherwise rank 0 takes what was accumulated and the others start empty. Where parts cannot be
    folded, the further ones are carried beside the state: `compute` of this module counts them, the metric's
    own `compute` does not, and `reset` drops them.
    """
    kept = by_shard(metric, world)
    nodes = nodes_of(kept.first)
    stored = {path: {frozenset(part["states"]) for part in entry["parts"]} for path, entry in state.items()}
    known = {path: {frozenset(own_states(node))} for path, node in nodes.items()}
    if set(stored) != set(known) or any(stored[path] - known[path] for path in stored):
        raise CheckpointError(
            f"The stored metric state describes {_listed(stored)} but this {type(kept.first).__name__} keeps "
            f"{_listed(known)}: load it into the metric that it was taken from."
        )
    kept.reset()
    for shard, copy in kept.copies.items():
        for path, node in nodes_of(copy).items():
            put_undeclared(node, state[path]["undeclared"])
            parts = _by_home(kept, state[path]["parts"]).get(shard)
            if parts:
                first, *further = _folded(path, node, parts)
                put(node, first)
                if further:
                    carry(node, further)


def _by_home(kept: ByShard, parts: list[Part]) -> dict[int, list[Part]]:
    """The parts by the shard that goes on with them."""
    homes: dict[int, list[Part]] = {}
    for part in parts:
        homes.setdefault(kept.home_of(part.get("shard", 0)), []).append(part)
    return homes


def _merge(path: str, node: Metric, parts: list[Part]) -> Part:
    """One part for all of them; without any, that of a metric in its first state."""
    if not parts:
        return blank_part(node)
    if len(parts) == 1:
        return parts[0]
    counts = [part["count"] for part in parts]
    states = {}
    for name in own_states(node):
        values = [part["states"][name] for part in parts]
        try:
            states[name] = reduce_state(reduction_of(node, name), values, counts, node._defaults[name])
        except StateMismatchError as error:
            raise ReplicaError(
                f"State {name!r} of {_called(path, node)} has {error} on the ranks that updated it: "
                "update the metric with inputs of the same form on every rank."
            ) from None
    return Part(shard=parts[0]["shard"], count=sum(counts), states=states)


def _folded(path: str, node: Metric, parts: list[Part]) -> list[Part]:
    folds = all(
        can_fold(reduction_of(node, n), part["states"][n]) for part in parts for n in own_states(node)
    )
    return [_merge(path, node, parts)] if folds else parts


def _doubts(kept: ByShard, parts: Mapping[str, list[Part]]) -> Iterator[Finding]:
    metric, keeper = kept.first, "rank" if kept.num_shards is None else "shard"
    # metrics that a wrapper keeps for copies or scratch work have no updates of their own
    scratch = {id(module.base_metric) for module in metric.modules() if isinstance(module, Running)}
    scratch |= {id(module._base_metric) for module in metric.modules() if isinstance(module, MetricTracker)}
    for path, node in nodes_of(metric).items():
        if own_states(node) and not parts[path] and id(node) not in scratch:
            yield _never_updated(path, node)
        for name in own_states(node):
            values = [part["states"][name] for part in parts[path]]
            if not is_exact(reduction_of(node, name), values):
                yield Finding(
                    cause="metric-not-mergeable",
                    message=f"{_called(path, node)} averages its state {name!r} over {keeper}s; the mean was "
                    "weighted by the number of updates, which is exact only if all updates are of one size.",
                    evidence={"metric": _called(path, node), "state": name, "updates": _counts(parts[path])},
                    fix="Keep a sum and a weight as states with dist_reduce_fx='sum' and divide in compute.",
                )
        if isinstance(node, Running | BootStrapper):
            yield Finding(
                cause="metric-depends-on-world",
                message=f"{_called(path, node)} depends on which {keeper} saw which update, so its value "
                f"changes with the number of {keeper}s.",
                evidence={"metric": _called(path, node), "updates": _counts(parts[path])},
                fix="Use the metric that it wraps, which merges exactly.",
            )


def _doubts_about_bits(nodes: Mapping[str, Metric], parts: Mapping[str, list[Part]]) -> Iterator[Finding]:
    for path, node in nodes.items():
        values = [value for part in parts[path] for value in part["states"].values()]
        if any(not isinstance(value, Tensor) or value.is_floating_point() for value in values):
            yield Finding(
                cause="metric-depends-on-world",
                message=f"{_called(path, node)} adds up all shards of a rank in one state, so the last bits "
                "of its value change with the number of ranks.",
                evidence={"metric": _called(path, node)},
                fix="In bitwise mode, keep it apart by shard: samestep.metrics.ByShard(metric, world).",
            )


def _never_updated(path: str, node: nn.Module) -> Finding:
    return Finding(
        cause="metric-never-updated",
        message=f"{_called(path, node)} was not updated on any rank, so it has no value.",
        evidence={"metric": _called(path, node)},
        fix="Update it with at least one example, or leave it out.",
    )


def _called(path: str, node: nn.Module) -> str:
    kind = type(node).__name__
    return kind if path == "." else f"{kind} at {path!r}"


def _counts(parts: list[Part]) -> list[int]:
    return [part["count"] for part in parts]


def _listed(forms: Mapping[str, set[frozenset[str]]]) -> dict[str, list[str]]:
    return {path: sorted(set().union(*names)) for path, names in forms.items()}
