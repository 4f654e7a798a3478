"""Diagnosis: what an examination found on all machines and between them; what it says, and what it is for.

Facts and figures only, with the findings that `checks` made of them.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from samestep.doctor.facts import Facts
from samestep.findings import Finding
from samestep.record import write_json

_MOST_ACHIEVED = 0.999


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine and the ranks on it; `index` is that of the launcher's first process there."""

    index: int
    num_ranks: int
    facts: Facts
    devices: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    """Those of Python's packages, and of what exchanges between devices."""
    seen_s: float | None = None
    """How long a file of the first machine took to be seen here; None if it was not."""

    @property
    def name(self) -> str:
        return f"{self.facts.host} ({self.facts.address})"


@dataclass(frozen=True, kw_only=True)
class Between:
    """The link between two machines, by their indices; or why there is none."""

    first: int
    second: int
    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    clock_offset_s: float = 0.0
    clock_bound_s: float = 0.0
    error: str | None = None
    details: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One kind of exchange among all ranks: the bytes that a rank sends in a second."""

    name: str
    bytes: int
    seconds: float
    bytes_per_s: float


@dataclass(kw_only=True)
class Diagnosis:
    """All that was found; `missing` are processes that never came, with their machines where known."""

    launcher: str
    num_processes: int
    num_ranks: int
    meeting: str
    nodes: list[Node] = field(default_factory=list)
    missing: dict[int, str | None] = field(default_factory=dict)
    waited_s: float = 0.0
    links: list[Between] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    exchange_latency_s: float | None = None
    exchange_error: str | None = None
    folder: str | None = None
    has_trained: bool = False
    """Whether the demo was trained on one rank and on all, and compared."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_fine(self) -> bool:
        return not self.findings

    def node(self, index: int) -> Node:
        return next(node for node in self.nodes if node.index == index)

    def exchange(self, name: str) -> Exchange | None:
        return next((exchange for exchange in self.exchanges if exchange.name == name), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "is_fine": self.is_fine,
            "launcher": self.launcher,
            "num_processes": self.num_processes,
            "num_ranks": self.num_ranks,
            "nodes": [
                {
                    "index": node.index,
                    "ranks": node.num_ranks,
                    "devices": list(node.devices),
                    "seen_s": node.seen_s,
                    **node.facts.to_json(),
                    "versions": dict(node.versions),
                }
                for node in self.nodes
            ],
            "links": [asdict(link) for link in self.links],
            "exchanges": [asdict(exchange) for exchange in self.exchanges],
            "exchange_latency_s": self.exchange_latency_s,
            "cluster": self.cluster(),
            "out": self.folder,
            "has_trained": self.has_trained,
            "findings": [finding.to_json() for finding in self.findings],
        }

    def write(self, folder: Path) -> None:
        """Keep it as doctor.json, and what was measured as cluster.yaml, for `advise --cluster`."""
        write_json(folder / "doctor.json", self.to_json())
        if (spec := self.cluster()) is not None:
            import yaml

            (folder / "cluster.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))

    def cluster(self) -> dict[str, Any] | None:
        """What `advise --cluster` reads, as far as it was measured; None where nothing was.

        `achieved` is the part of the link's rate that the sum of gradients reaches.
        """
        whole, inside = self.exchange("sum"), self.exchange("inside")
        if whole is None or self.exchange_latency_s is None:
            return None
        # a sum of one number goes 2 (N − 1) times over a link
        hop_s = self.exchange_latency_s / (2 * (self.num_ranks - 1))
        spec: dict[str, Any] = {
            "name": "measured by samestep doctor",
            "gpus_per_node": max(node.num_ranks for node in self.nodes),
        }
        if len(self.nodes) == 1:
            return spec | {"inside": {"bytes_per_s": whole.bytes_per_s, "latency_s": hop_s}}
        if inside is not None:
            latency_s = min([hop_s, *(link.latency_s for link in self.links)])
            spec["inside"] = {"bytes_per_s": inside.bytes_per_s, "latency_s": latency_s}
        # in a ring, what one rank sends crosses the link of a machine
        peak = max(whole.bytes_per_s, min(link.bytes_per_s for link in self.links))
        # 1 would mean that nobody has measured it
        achieved = min(whole.bytes_per_s / peak, _MOST_ACHIEVED)
        spec["between"] = {"bytes_per_s": peak, "latency_s": hop_s, "achieved": achieved}
        return spec
