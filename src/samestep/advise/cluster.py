"""Cluster: machines as their data sheets tell them: GPUs a node, the links inside a node and between nodes.

Knows the keys of a spec, their units and which values cannot be meant. Rates are peaks of one direction;
`achieved` is the part of a peak that exchanges reach, 1 unless somebody measured it. Knows nothing of steps.
The specs in `clusters/` hold published figures only, each with its source.
"""

import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from samestep.errors import ConfigError
from samestep.usercode import nearest
from samestep.yamlfile import YamlFile

_SHIPPED = Path(__file__).with_name("clusters")
_SLOWEST_BYTES_PER_S = 1e5
_LONGEST_LATENCY_S = 0.1


def _a_rate(bytes_per_s: float) -> float:
    if bytes_per_s < _SLOWEST_BYTES_PER_S:
        raise ValueError("it must be in bytes a second: 25 GB/s is 25e9, 100 Gb/s is 12.5e9")
    return bytes_per_s


def _a_latency(latency_s: float) -> float:
    if latency_s > _LONGEST_LATENCY_S:
        raise ValueError(f"it must be in seconds, {_LONGEST_LATENCY_S} at most: 5 µs is 5e-6")
    return latency_s


def _a_source(source: str) -> str:
    if not source.startswith(("https://", "http://")):
        raise ValueError("it must be a URL")
    return source


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Link(_Spec):
    """One GPU's way to the next: a message takes `latency_s` plus its bytes over `rate_bytes_per_s`."""

    bytes_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_a_rate)]
    latency_s: Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_a_latency)]
    achieved: Annotated[float, Field(gt=0, le=1)] = 1.0

    @property
    def rate_bytes_per_s(self) -> float:
        """What exchanges reach, each way."""
        return self.bytes_per_s * self.achieved


class Network(Link):
    """A node's way to the next: `links_per_node` adapters of `bytes_per_s` each, which its ranks share."""

    links_per_node: Annotated[int, Field(ge=1)] = 1


class Cluster(_Spec):
    """Any number of equal nodes, or one node where there is no `between`; ranks fill node after node."""

    name: str
    gpus_per_node: Annotated[int, Field(ge=1)]
    inside: Link | None = None
    between: Network | None = None
    sources: Annotated[
        tuple[Annotated[str, AfterValidator(_a_source)], ...],
        Field(strict=False),  # YAML has lists only
    ] = ()

    @model_validator(mode="after")
    def _has_its_links(self) -> Self:
        if self.gpus_per_node > 1 and self.inside is None:
            raise ValueError(f"`gpus_per_node` is {self.gpus_per_node}, so `inside` must say what joins them")
        return self

    @property
    def node_bytes_per_s(self) -> float:
        """What a node sends to others, over all its adapters; 0 where there are no others."""
        return self.between.rate_bytes_per_s * self.between.links_per_node if self.between else 0.0

    def check(self, gpus: int) -> None:
        """Refuse a number of GPUs that these machines cannot be."""
        if gpus < 1:
            raise ConfigError(f"{gpus} GPUs were asked for; it must be 1 or more.")
        if gpus > self.gpus_per_node and self.between is None:
            raise ConfigError(
                f"{gpus} GPUs were asked for; `{self.name}` is one node with {self.gpus_per_node}. "
                "Say in the spec what joins nodes: `between: {bytes_per_s: …, latency_s: …}`."
            )


def shipped() -> list[str]:
    """The names of the specs that come with Samestep."""
    return sorted(path.stem for path in _SHIPPED.glob("*.yaml"))


def read_cluster(spec: str | Path) -> Cluster:
    """The cluster of a YAML file, or of the name of a shipped one."""
    if str(spec) in shipped():
        path = _SHIPPED / f"{spec}.yaml"
    elif (path := Path(spec)).suffix not in (".yaml", ".yml") and not path.exists():
        hint = nearest(str(spec), shipped()) or f". Known names are {', '.join(shipped())}."
        raise ConfigError(f"`{spec}` is neither a YAML file nor the name of a known cluster{hint}")
    file = YamlFile(path)
    try:
        return Cluster.model_validate(file.values)
    except ValidationError as failure:
        # a typo is often an unknown key and a missing one: the unknown one says more
        error = min(failure.errors(), key=lambda error: error["type"] != "extra_forbidden")
    keys, place = error["loc"], file.place(error["loc"])
    name = ".".join(map(str, keys))
    if error["type"] == "extra_forbidden":
        known = _keys_at(keys[:-1])
        hint = nearest(str(keys[-1]), known) or f". The keys there are {', '.join(known)}."
        raise ConfigError(f"{place}: unknown key `{name}`{hint}")
    if error["type"] == "missing":
        raise ConfigError(f"{place}: the key `{name}` is missing.")
    said = error["msg"].removeprefix("Value error, ").replace("Input should", "it should", 1)
    if not keys:
        raise ConfigError(f"{place}: {said}.")
    raise ConfigError(f"{place}: `{name}` is {reprlib.repr(error['input'])}; {said}.")


def _keys_at(keys: Sequence[str | int]) -> list[str]:
    """The keys that a section has."""
    sections: dict[str | int, type[_Spec]] = {"inside": Link, "between": Network}
    return list((sections[keys[0]] if keys else Cluster).model_fields)
