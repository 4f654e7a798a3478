"""Machines: whether all ranks of a world stand on hardware of one kind, with the same versions.

Where they do not, each step takes as long as on the slowest, and ranks may round differently. Ranks exchange
what they have once, before the first model is made a replica. What a device has is for `device` to say.
"""

import json
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from samestep import __version__
from samestep.device import hardware_of, kind_of
from samestep.errors import listed
from samestep.findings import Finding
from samestep.world import World

APART = 0.05
"""Part by which amounts may differ on equal hardware: firmware and kernel keep a few percent of memory."""
_CALLED = {"memory_bytes": "memory", "clock_limit_mhz": "clock limit"}


def notice_mixed(world: World) -> None:
    """Tell, once for all ranks, which of them have other hardware or versions than the rest."""
    if world.size == 1:
        return
    versions: dict[str, str | None] = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "samestep": __version__,
    }
    kind = kind_of(world.device)
    versions |= {name: kind[name] for name in ("cuda", "cudnn") if name in kind}
    own = {"hardware": hardware_of(world.device), "versions": versions}
    told = [json.loads(text) for text in world.gather_texts(json.dumps(own))]
    for finding in mixed([each["hardware"] for each in told], [each["versions"] for each in told]):
        world.notice(finding)


def mixed(hardware: Sequence[Mapping[str, Any]], versions: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """The findings on what ranks have, by rank; none where all have the same."""
    found = []
    if apart := _apart(hardware):
        found.append(
            Finding(
                cause="mixed-hardware",
                message=f"Ranks of this run are on different hardware: {_phrases(apart)}.",
                evidence=apart,
                fix="Every step waits for the slowest rank, and times of this run tell nothing of its number "
                "of ranks. Ask for machines of one kind (--gpu-type, --constraint), or leave the others out "
                "(CUDA_VISIBLE_DEVICES).",
            )
        )
    if apart := _apart(versions):
        found.append(
            Finding(
                cause="versions-differ",
                message=f"Ranks of this run have different versions: {_phrases(apart)}.",
                evidence=apart,
                fix="Use one environment for all: other versions may round differently, or not understand "
                "each other.",
            )
        )
    return found


def _apart(told: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[int]]]:
    """What is not the same for all: the ranks that have each value, as a person reads it."""
    found: dict[str, dict[str, list[int]]] = {}
    for name in {name: None for each in told for name in each}:
        values = [each.get(name) for each in told]
        numbers = [value for value in values if isinstance(value, int)]
        if len(numbers) == len(values) and name in _CALLED:
            is_apart = max(numbers) - min(numbers) > APART * max(numbers)
        else:
            is_apart = len(set(values)) > 1
        if is_apart:
            ranks: dict[str, list[int]] = {}
            for rank, value in enumerate(values):
                ranks.setdefault(_text(name, value), []).append(rank)
            found[_CALLED.get(name, name)] = ranks
    return found


def _text(name: str, value: Any) -> str:
    if value is None:
        return "not known"
    if name == "memory_bytes":
        return f"{value / 2**30:.1f} GiB"
    return f"{value} MHz" if name == "clock_limit_mhz" else str(value)


def _phrases(apart: Mapping[str, Mapping[str, Sequence[int]]]) -> str:
    """Values with their ranks, the commonest first."""
    told = []
    for name, by_value in apart.items():
        ordered = sorted(by_value.items(), key=lambda item: (-len(item[1]), item[1]))
        where = [
            f"{value} on rank{'s' * (len(ranks) > 1)} {listed([str(r) for r in ranks])}"
            for value, ranks in ordered
        ]
        told.append(f"{name} {', '.join(where)}")
    return "; ".join(told)
