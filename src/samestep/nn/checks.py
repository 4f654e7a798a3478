"""What only a training step can show about norm layers: local statistics, and synchronisation that never ran.

Use: `before = snapshot(model)`, one training step, then `changed_buffers` and `never_exchanged`. Looks at
buffers and counters only; knows nothing of the kinds of layers.
"""

import hashlib
import json

import torch
from torch import Tensor, nn

from samestep.findings import Finding
from samestep.nn.adopt import qualified_name
from samestep.nn.convert import is_synchronised
from samestep.world import World

__all__ = ["changed_buffers", "never_exchanged", "snapshot"]


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the floating-point buffers, by name; lazy ones without a shape are left out."""
    return {name: buffer.detach().clone() for name, buffer in _buffers(model).items()}


def changed_buffers(model: nn.Module, before: dict[str, Tensor], world: World) -> list[Finding]:
    """Findings for buffers that training changed and that now differ between ranks; called on all ranks.

    Every rank gets the same findings. A layer that claims to be synchronised is not spared: this compares
    what is there. Buffers are matched by name, never by position.
    """
    now = _buffers(model)
    mine = {n: [not _same(before.get(n), b), _digest(b)] for n, b in now.items()}
    ranks = [json.loads(text) for text in world.gather_texts(json.dumps(mine))]
    modules = dict(model.named_modules())
    findings: dict[str, list[str]] = {}
    for name in now:
        seen = [rank[name] for rank in ranks if name in rank]
        if any(changed for changed, _ in seen) and len({digest for _, digest in seen}) > 1:
            owner, _, buffer = name.rpartition(".")
            findings.setdefault(owner, []).append(buffer)
    return [_differs(owner, modules[owner], buffers, world) for owner, buffers in findings.items()]


def never_exchanged(model: nn.Module, world: World, before: dict[str, Tensor] | None = None) -> list[Finding]:
    """Findings for layers that were made to synchronise, train, and have not exchanged anything.

    With the snapshot from before the step, a layer whose buffers did not change is taken as one that did
    not run. Says nothing in a world of one rank, where nothing needs to be exchanged.
    """
    if world.size == 1:
        return []
    return [
        _silent(name, module, world)
        for name, module in model.named_modules()
        if is_synchronised(module)
        and module.training
        and getattr(module, "samestep_exchanges", None) == 0
        and (before is None or _ran(name, module, before))
    ]


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if buffer.is_floating_point() and not nn.parameter.is_lazy(buffer)
    }


def _ran(name: str, module: nn.Module, before: dict[str, Tensor]) -> bool:
    own = {f"{name}.{key}" if name else key: b for key, b in module.named_buffers(recurse=False)}
    tracked = {key: b for key, b in own.items() if b.is_floating_point()}
    return not tracked or any(not _same(before.get(key), b) for key, b in tracked.items())


def _same(before: Tensor | None, now: Tensor) -> bool:
    return before is not None and before.shape == now.shape and torch.equal(before, now)


def _digest(buffer: Tensor) -> str:
    data = buffer.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(data.numpy().tobytes()).hexdigest()[:16]


def _differs(name: str, module: nn.Module, buffers: list[str], world: World) -> Finding:
    kind = qualified_name(type(module))
    return Finding(
        cause="statistics-differ-between-ranks",
        message=(
            f"{name or 'the model itself'} ({kind}) changed {', '.join(buffers)} in a training step, and the "
            f"{world.size} ranks now hold different values."
        ),
        evidence={"module": name, "class": kind, "buffers": buffers, "ranks": world.size},
        fix=(
            "If these are batch statistics, compute them with samestep.nn.moments and set "
            "`samestep_synchronised = True` on the class; if not, they must not depend on the rank."
        ),
    )


def _silent(name: str, module: nn.Module, world: World) -> Finding:
    kind = qualified_name(type(module))
    return Finding(
        cause="norm-never-exchanged",
        message=(
            f"{name or 'the model itself'} ({kind}) ran a training step on {world.size} ranks without one "
            "exchange: its forward does not reach the synchronised one."
        ),
        evidence={"module": name, "class": kind, "ranks": world.size, "exchanges": 0},
        fix="In its forward, call `super().forward(x)` instead of F.batch_norm, or use samestep.nn.moments.",
    )
