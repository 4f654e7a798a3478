"""Whether replicas stay equal: the prints that ranks took of their models, names included, after a step."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from samestep.findings import Finding
from samestep.observed import Model, Replica, Row
from samestep.probe.cheap_parts import differing_parts, part_bounds
from samestep.verify.online_words import ranks_text, some

MOST_WAITING = 256


class ReplicasWatch:
    """Compares the replicas of each model; of a model that differs it tells once."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._models: dict[tuple[int, int], Model] = {}
        self._waiting: dict[tuple[int, int], dict[int, Replica]] = {}
        self._equal_at: dict[int, int] = {}
        self._told: set[tuple[int, str]] = set()

    def take(self, rank: int, row: Row) -> list[Finding]:
        """What a row of a rank shows, if it is the last that was missing to compare a step."""
        if isinstance(row, Model):
            self._models[rank, row.model] = row
        if not isinstance(row, Replica):
            return []
        key = row.model, row.step
        of = self._waiting.setdefault(key, {})
        of[rank] = row
        if len(of) < self._world_size:
            if len(self._waiting) > MOST_WAITING:
                del self._waiting[next(iter(self._waiting))]
            return []
        del self._waiting[key]
        return self._compare(row.model, row.step, dict(sorted(of.items())))

    def _compare(self, model: int, step: int, of: Mapping[int, Replica]) -> list[Finding]:
        prints = Counter(replica.print for replica in of.values())
        if len(prints) == 1:
            self._equal_at[model] = step
            return []
        common = prints.most_common(1)[0][0]
        odd = [rank for rank, replica in of.items() if replica.print != common]
        others = [rank for rank in of if rank not in odd]
        described = self._models.get((others[0], model))
        theirs = self._models.get((odd[0], model))
        if described is not None and theirs is not None and names_of(described) != names_of(theirs):
            return self._tell_order(model, step, odd[0], theirs, others[0], described)
        found = _differing(of[others[0]], of[odd[0]], described)
        is_norm = bool(found) and all(_has_statistic(run, described) for run in found)
        cause = "norm-not-synchronised" if is_norm else "replicas-drift"
        if (model, cause) in self._told:
            return []
        self._told.add((model, cause))
        names = [run[0].partition(" ")[0] for run in found]
        evidence = {
            "ranks": odd,
            "step": step,
            "equal_until_step": self._equal_at.get(model),
            "model": described.kind if described else None,
            "tensors": names[:16],
            "num_tensors": len(names),
        }
        since = (
            f"they were equal after step {self._equal_at[model]}"
            if model in self._equal_at
            else "this was the first look at them"
        )
        if is_norm:
            message = (
                f"After step {step} the statistics {some(names)} differ between ranks ({since}): each rank "
                "keeps those of its own examples."
            )
            fix = (
                "Synchronise the norm layers (world.replicate of Samestep, SyncBatchNorm on GPUs), or use "
                "layers without statistics."
            )
        else:
            where = f", in {some(names)}" if names else ""
            message = (
                f"After step {step} the replica of {ranks_text(odd)} is not that of "
                f"{ranks_text(others)}{where}; {since}."
            )
            fix = (
                "Every rank must apply the same gradients to the same weights: look for what only some ranks "
                "do between these steps, and for weights that were never made equal."
            )
        return [Finding(cause=cause, message=message, evidence=evidence, fix=fix)]

    def _tell_order(
        self, number: int, step: int, odd: int, theirs: Model, rank: int, model: Model
    ) -> list[Finding]:
        """The tensors of a model have other names, or another order, on another rank."""
        cause = "parameter-order-differs"
        if (number, cause) in self._told:
            return []
        self._told.add((number, cause))
        pairs = zip_longest(names_of(theirs), names_of(model), fillvalue="nothing")
        place, (one, other) = next((i, pair) for i, pair in enumerate(pairs, start=1) if pair[0] != pair[1])
        return [
            Finding(
                cause=cause,
                message=(
                    f"Tensor {place} of {model.kind} is {one} on rank {odd} and {other} on rank {rank}: what "
                    "ranks exchange by position gets into the wrong place."
                ),
                evidence={"ranks": [odd], "step": step, "place": place, "names": [one, other]},
                fix="Make the parts of the model in an order that is the same in every process: sort sets.",
            )
        ]


def names_of(model: Model) -> list[str]:
    """The names of a model's tensors, in order."""
    return [text.partition(" ")[0] for text in model.tensors]


def _differing(one: Replica, other: Replica, model: Model | None) -> list[Sequence[str]]:
    """The tensors in which two replicas differ, by runs that share a part."""
    if model is None:
        return []
    bounds = part_bounds(len(model.tensors))
    parts = differing_parts(one.parts, other.parts)
    return [model.tensors[slice(*bounds[part])] for part in parts if part < len(bounds)]


def _has_statistic(run: Sequence[str], model: Model | None) -> bool:
    """Whether any tensor of a run is one in which a norm layer keeps statistics."""
    layers = {layer.name for layer in (model.norms if model else ()) if layer.keeps_statistics}
    names = [text.partition(" ")[0] for text in run if not text.endswith(" gradient")]
    return any(name.rpartition(".")[0] in layers for name in names)
