"""What the doctor found, for people: machines, the links between them, the exchange, and what is wrong."""

import sys
from collections.abc import Callable, Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from samestep.doctor.diagnosis import Diagnosis, Node
from samestep.report.console import show_findings

_WORDS = {
    "sum": "sum of gradients (fast mode)",
    "slices": "slices (bitwise mode)",
    "inside": "neighbours on one machine",
}


def show_diagnosis(found: Diagnosis) -> None:
    """Print it to standard output."""
    console = Console(file=sys.stdout, highlight=False, soft_wrap=not sys.stdout.isatty())
    console.print(Group(*_parts(found)))
    show_findings(console, [finding.to_json() for finding in found.findings])
    if found.is_fine and found.has_trained:
        ranks = found.num_ranks
        console.print(f"trains on {ranks} ranks what one rank trains; in bitwise mode, the same bits")
    if found.is_fine:
        console.print("nothing is wrong")


def _parts(found: Diagnosis) -> Iterator[RenderableType]:
    yield _nodes(found)
    if found.links:
        yield Text()
        yield _links(found)
    if found.exchanges:
        yield Text()
        yield _exchanges(found)


def _nodes(found: Diagnosis) -> Table:
    table = _table("", *(node.name for node in found.nodes))
    rows: dict[str, Callable[[Node], str]] = {
        "ranks": lambda node: f"{node.num_ranks}: {_devices(node)}",
        "interface to the others": _interface,
        "versions": lambda node: ", ".join(f"{name} {text}" for name, text in node.versions.items()),
        "cores, threads a rank": lambda node: f"{node.facts.num_cores}, {node.facts.threads}",
        "limits": _limits,
        "shared memory free": lambda node: _bytes(node.facts.shared_memory_bytes),
    }
    if found.folder is not None:
        rows["--out is seen after"] = lambda node: (
            "not seen" if node.seen_s is None else f"{node.seen_s:.2f} s"
        )
    for name, told in rows.items():
        table.add_row(Text(name, style="dim"), *(Text(told(node)) for node in found.nodes))
    return table


def _links(found: Diagnosis) -> Table:
    table = _table("link", "bandwidth", "latency", "clocks differ by")
    for link in found.links:
        way = f"{found.node(link.first).facts.address} – {found.node(link.second).facts.address}"
        if link.error is not None:
            table.add_row(way, "none", "", "")
            continue
        clocks = f"{link.clock_offset_s * 1e3:+.2f} ms (± {link.clock_bound_s * 1e3:.2f})"
        table.add_row(way, _rate(link.bytes_per_s), f"{link.latency_s * 1e6:,.0f} µs", clocks)
    return table


def _exchanges(found: Diagnosis) -> Table:
    table = _table(f"exchange of {found.num_ranks} ranks", "bytes", "time", "a rank sends")
    for exchange in found.exchanges:
        words = _WORDS.get(exchange.name, exchange.name)
        table.add_row(
            words, _bytes(exchange.bytes), f"{exchange.seconds * 1e3:,.1f} ms", _rate(exchange.bytes_per_s)
        )
    if found.exchange_latency_s is not None:
        table.add_row("sum of one number", "4 B", f"{found.exchange_latency_s * 1e3:,.2f} ms", "")
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(Text(name), overflow="fold")
    return table


def _devices(node: Node) -> str:
    if node.devices:
        return ", ".join(dict.fromkeys(node.devices))
    return f"{node.facts.num_gpus} GPUs" if node.facts.num_gpus else "cpu"


def _interface(node: Node) -> str:
    facts = node.facts
    name = facts.chosen or "none found"
    told = f"gloo {name} {facts.interfaces.get(name, '')}".rstrip()
    if facts.num_gpus:
        told += f", NCCL {facts.nccl or ('InfiniBand' if facts.has_infiniband else 'its own choice')}"
    return told


def _limits(node: Node) -> str:
    limits = {
        "open files": node.facts.open_files,
        "processes": node.facts.processes,
        "locked bytes": node.facts.locked_bytes,
    }
    return ", ".join(f"{name} {'any' if limit is None else f'{limit:,}'}" for name, limit in limits.items())


def _bytes(count: int | None) -> str:
    if count is None:
        return "unknown"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,} B"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:,.1f} MB/s ({bytes_per_s * 8 / 1e6:,.0f} Mbit/s)"
