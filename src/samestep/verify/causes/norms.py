"""Layers that keep statistics of the batch they see: a rank's batch is not the global one."""

from collections.abc import Iterator

from samestep.findings import Finding
from samestep.observed import Model
from samestep.verify.evidence import Evidence
from samestep.verify.trace import Trace, label_of

_BATCHLESS = ("LayerNorm", "GroupNorm", "RMSNorm", "LocalResponseNorm", "InstanceNorm", "WeightNorm")
_OF_TORCH = tuple(f"{lazy}BatchNorm{dims}d" for lazy in ("", "Lazy") for dims in (1, 2, 3))
_STATISTICS = ("mean", "var", "std", "cov", "moment", "sigma", "scale", "norm")


def not_synchronised(evidence: Evidence) -> Iterator[Finding]:
    """A layer whose statistics are those of a rank's own examples."""
    if evidence.has("world-ignored", "parameter-order-differs"):
        return
    trace = evidence.candidate
    buffers = differing_buffers(trace)
    layers: dict[str, tuple[str, int]] = {}
    for row in trace.first.statistics:
        own = [name for name in row.buffers if (row.model, name) in buffers and _is_statistic(name, row.kind)]
        if own:
            layers[row.name] = row.kind, row.num_collectives
    if not layers and (layer := _first_in_forward(evidence)) is not None:
        layers[layer[0]] = layer[1], 0
    if not layers:
        return
    name, (kind, num_collectives) = next(iter(layers.items()))
    many = f" and {len(layers) - 1} more" if len(layers) > 1 else ""
    broadcast = _broadcasts(trace)
    is_called_sync = "sync" in kind.lower()
    hidden = (
        " DDP copies the first rank's running statistics over the others', which hides it."
        if broadcast
        else ""
    )
    first = evidence.pair.comparison.first if evidence.pair is not None else None
    yield Finding(
        cause="sync-norm-is-local" if is_called_sync else "norm-not-synchronised",
        message=f"{kind} {name}{many} {_normalise(kind, len(layers))}"
        + (
            ", though the name says otherwise: nothing is exchanged in a training step."
            if is_called_sync
            else ", not with the global batch."
        )
        + hidden,
        evidence={
            "layers": [f"{n} ({k})" for n, (k, _) in list(layers.items())[:8]],
            "collectives_in_forward": num_collectives,
            "first_difference": f"step {first.step}, {first.quantity} {first.name}" if first else None,
        },
        fix=_fix(kind, is_called_sync, is_on_cpu=_is_on_cpu(trace)),
    )


def overwritten(evidence: Evidence) -> Iterator[Finding]:
    """Counts and sums kept in buffers of a model, which the wrap overwrites with the first rank's."""
    if evidence.has("parameter-order-differs"):
        return
    trace = evidence.candidate
    norm_like = {(s.model, b) for s in trace.first.statistics for b in s.buffers if _is_statistic(b, s.kind)}
    for (model, name), step in differing_buffers(trace).items():
        if not _broadcasts(trace, model):
            continue
        if (model, name) in norm_like or _is_statistic(name, _kind_of(trace, model, name)):
            continue
        yield Finding(
            cause="metric-overwritten",
            message=f"The buffer {name} differs between ranks after step {step}, and the wrap copies the "
            "first rank's over the others' before each forward pass: what they counted is lost.",
            evidence={"buffer": name, "step": step},
            fix="keep what is counted outside of the wrapped model (or wrap with broadcast_buffers=False), "
            "and sum it over ranks when it is read",
        )
        return


def differing_buffers(trace: Trace) -> dict[tuple[int, str], int]:
    """Buffers whose bits differ between ranks after a step, with the first such step."""
    found: dict[tuple[int, str], int] = {}
    for number in range(1, trace.num_full + 1):
        steps = list(trace.step(number).values())
        for key, state in steps[0].states.items():
            prints = {step.states[key].summary.print for step in steps if key in step.states}
            if state.role != "parameter" and len(prints) > 1:
                found.setdefault(key, number)
    return found


def _first_in_forward(evidence: Evidence) -> tuple[str, str] | None:
    """The norm layer without running statistics in which a forward pass first differs, if that is so."""
    if evidence.pair is None:
        return None
    first = evidence.pair.comparison.first
    if first is None or first.quantity != "forward":
        return None
    for models in evidence.candidate.first.models.values():
        for layer in models[0].norms:
            name = label_of(models[0].model, layer.name)
            if name == first.name and not layer.kind.startswith(_BATCHLESS):
                return layer.name, layer.kind
    return None


def _normalise(kind: str, number: int) -> str:
    s, whose = ("s", "its") if number == 1 else ("", "their")
    verb = f"keep{s} statistics of" if kind.startswith("InstanceNorm") else f"normalise{s} with"
    return f"{verb} the examples of {whose} own rank"


def _is_statistic(name: str, kind: str) -> bool:
    last = name.rpartition(".")[2].lower()
    return "norm" in kind.lower() or any(word in last for word in _STATISTICS)


def _kind_of(trace: Trace, model: int, name: str) -> str:
    owner = name.rpartition(".")[0]
    models: list[Model] = trace.first.models.get(model, [])
    return next((layer.kind for m in models for layer in m.norms if layer.name == owner), "")


def _broadcasts(trace: Trace, model: int | None = None) -> bool:
    """Whether a wrap copies the buffers of a model, or of any, from the first rank to the others."""
    return any(
        wrap.settings.get("broadcast_buffers", wrap.settings.get("forward_sync_buffers"))
        in ("True", "1", "true")
        for number, rows in trace.first.models.items()
        if model in (None, number)
        for row in rows
        for wrap in row.wraps
    )


def _is_on_cpu(trace: Trace) -> bool:
    machine = trace.first.machine
    return machine is not None and machine.device == "cpu"


def _fix(kind: str, is_called_sync: bool, *, is_on_cpu: bool) -> str:
    if is_called_sync:
        return "have the layer ask for the process group when it runs, not when it is made"
    if kind in _OF_TORCH and is_on_cpu:
        return (
            "call samestep.init(), and samestep.nn.synchronise(model) before the wrap (torch's SyncBatchNorm "
            "works on GPUs only), train it with world.replicate, or use GroupNorm"
        )
    if kind in _OF_TORCH:
        return (
            "convert it before the wrap (torch.nn.SyncBatchNorm.convert_sync_batchnorm; Lightning: "
            "sync_batchnorm=True), train it with world.replicate, or use GroupNorm"
        )
    return (
        "sum its counts, means and squares over ranks in forward; converters know torch's own layers only "
        "(samestep.nn.synchronise after samestep.init(), or world.replicate, know those of escnn as well)"
    )
