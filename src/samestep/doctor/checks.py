"""Checks: what is wrong with machines, by the facts and figures of a diagnosis. Pure; one function a kind.

Where a limit is not a matter of right or wrong but of size, its derivation stands beside it.
"""

from collections.abc import Iterator
from statistics import median

from samestep.doctor.diagnosis import Diagnosis, Node
from samestep.findings import Finding

MOST_SKEW_S = 0.5
"""Events that people put in order are further apart: a rank that fails, and another that misses it."""
SLOW_LINK = 0.5
"""A link is slow beside the others below this part of their median rate."""
FILES_OF_A_RANK, FILES_A_PEER = 256, 4
"""Open files of torch, its libraries, data and loader workers; connections to another rank, in two groups."""
PROCESSES_OF_A_RANK = 64
"""Threads count as processes: those of torch, gloo, NCCL and some loader workers."""
SHARED_MEMORY_OF_A_RANK = 64 << 20
"""What Docker gives to a container unless told otherwise; too little for batches of loader workers."""
_NO_ADDRESS = "127."


def judge(found: Diagnosis) -> list[Finding]:
    """All that is wrong, what hinders most first."""
    return [
        *_missing(found),
        *_links(found),
        *_interfaces(found),
        *_exchange(found),
        *_folder(found),
        *_versions(found),
        *_clocks(found),
        *_slow_links(found),
        *(finding for node in found.nodes for finding in _cores(node)),
        *(finding for node in found.nodes for finding in _limits(node, found)),
        *(finding for node in found.nodes for finding in _shared_memory(node)),
    ]


def _missing(found: Diagnosis) -> Iterator[Finding]:
    for index, host in found.missing.items():
        where = f" on {host}" if host else ""
        yield Finding(
            cause="node-unreachable",
            message=f"Process {index} of {found.num_processes}{where} did not come to {found.meeting} within "
            f"{found.waited_s:.0f} s.",
            evidence={"process": index, "host": host, "meeting": found.meeting, "waited_s": found.waited_s},
            fix=f"Look at what that process said, and whether {host or 'its machine'} reaches "
            f"{found.meeting}: a firewall, another network, or a machine that is down. One that starts late "
            "is waited for with --wait.",
        )


def _links(found: Diagnosis) -> Iterator[Finding]:
    for link in found.links:
        if link.error is not None:
            first, second = found.node(link.first), found.node(link.second)
            yield Finding(
                cause="node-unreachable",
                message=f"{first.name} cannot reach {second.name}: {link.error}.",
                evidence={"from": first.name, "to": second.name, "error": link.error},
                fix="Ranks connect to each other at any port: open the firewall between these machines, or "
                "choose a network that joins them, by GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME.",
            )


def _interfaces(found: Diagnosis) -> Iterator[Finding]:
    for node in found.nodes:
        facts = node.facts
        # NCCL takes several with commas, beginnings of names, and signs before them
        gloo = [name for name in (facts.gloo or "").split(",") if name]
        nccl = [name.lstrip("=") for name in (facts.nccl or "").split(",") if name and name[0] != "^"]
        asked = [
            *(("GLOO_SOCKET_IFNAME", name, name in facts.interfaces) for name in gloo),
            *(
                ("NCCL_SOCKET_IFNAME", name, any(known.startswith(name) for known in facts.interfaces))
                for name in nccl
            ),
        ]
        for variable, name, is_there in asked:
            if not is_there:
                known = ", ".join(f"{name} {address}" for name, address in facts.interfaces.items())
                yield Finding(
                    cause="interface-unusable",
                    message=f"{variable} is {name}; {node.name} has no such interface with an address.",
                    evidence={"node": node.name, "asked": name, "interfaces": facts.interfaces},
                    fix=f"It has {known or 'none'}: set one of those, or leave {variable} out.",
                )
        address = facts.interfaces.get(facts.chosen or "", "")
        if len(found.nodes) > 1 and address.startswith(_NO_ADDRESS):
            yield Finding(
                cause="interface-unusable",
                message=f"Ranks on {node.name} would exchange by {facts.chosen} ({address}), which no other "
                "machine reaches.",
                evidence={"node": node.name, "interface": facts.chosen, "interfaces": facts.interfaces},
                fix="Set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the interface that leads to others.",
            )


def _exchange(found: Diagnosis) -> Iterator[Finding]:
    if found.exchange_error is not None:
        yield Finding(
            cause="exchange-failed",
            message=f"The {found.num_ranks} ranks could not exchange: {found.exchange_error}",
            evidence={"error": found.exchange_error, "num_ranks": found.num_ranks},
            fix="The machines reach each other, so look at what is named: torch there, the interface that is "
            "chosen, GPUs that are in use.",
        )


def _folder(found: Diagnosis) -> Iterator[Finding]:
    blind = [node.name for node in found.nodes if node.seen_s is None]
    if found.folder is not None and blind:
        yield Finding(
            cause="folder-not-shared",
            message=f"{found.folder} is not one folder for all machines: what {found.nodes[0].name} wrote "
            f"there is not seen on {', '.join(blind)}.",
            evidence={"folder": found.folder, "not_seen_on": blind},
            fix="Choose one on a file system that all machines share.",
        )


def _versions(found: Diagnosis) -> Iterator[Finding]:
    for package in sorted({name for node in found.nodes for name in node.versions}):
        by_version: dict[str, list[str]] = {}
        for node in found.nodes:
            by_version.setdefault(node.versions.get(package, "none"), []).append(node.name)
        if len(by_version) > 1:
            told = "; ".join(f"{version} on {', '.join(names)}" for version, names in by_version.items())
            yield Finding(
                cause="versions-differ",
                message=f"The version of {package} is not the same everywhere: {told}.",
                evidence={"package": package, "versions": by_version},
                fix="Start the same environment on all machines: bits are only promised for one set of "
                "versions, and other versions may not understand each other.",
            )


def _clocks(found: Diagnosis) -> Iterator[Finding]:
    for link in found.links:
        if link.error is None and abs(link.clock_offset_s) - link.clock_bound_s > MOST_SKEW_S:
            first, second = found.node(link.first), found.node(link.second)
            ahead = "ahead of" if link.clock_offset_s > 0 else "behind"
            yield Finding(
                cause="clocks-differ",
                message=f"The clock of {second.name} is {abs(link.clock_offset_s):.2f} s {ahead} that of "
                f"{first.name} (± {link.clock_bound_s:.4f} s).",
                evidence={"seconds": link.clock_offset_s, "bound_s": link.clock_bound_s},
                fix="Have both set by NTP or chrony: else times in logs and of files cannot be compared.",
            )


def _slow_links(found: Diagnosis) -> Iterator[Finding]:
    links = [link for link in found.links if link.error is None]
    if len(links) < 3:
        return  # of two, nobody can say which is as it should be
    usual = median(link.bytes_per_s for link in links)
    for link in links:
        if link.bytes_per_s < SLOW_LINK * usual:
            first, second = found.node(link.first), found.node(link.second)
            yield Finding(
                cause="slow-link",
                message=f"Between {first.name} and {second.name} go {link.bytes_per_s / 1e6:,.0f} MB/s; "
                f"between the others it is {usual / 1e6:,.0f} MB/s.",
                evidence={"bytes_per_s": link.bytes_per_s, "median_bytes_per_s": usual},
                fix="An exchange is as slow as its slowest link: leave this machine out, or have its cable, "
                "port or adapter looked at.",
            )


def _cores(node: Node) -> Iterator[Finding]:
    facts = node.facts
    if facts.num_cores < node.num_ranks:
        yield Finding(
            cause="too-few-cores",
            message=f"{node.name} gives {facts.num_cores} core{'s' * (facts.num_cores > 1)} to "
            f"{node.num_ranks} ranks.",
            evidence={"cores": facts.num_cores, "ranks": node.num_ranks},
            fix="Ask for one core a rank at least, and one for each loader worker: --cpus-per-task of Slurm, "
            "request_cpus of HTCondor, --cpus-per-gpu of `samestep submit`.",
        )
    elif facts.threads_asked is not None and facts.threads_asked * node.num_ranks > facts.num_cores:
        yield Finding(
            cause="too-many-threads",
            message=f"OMP_NUM_THREADS is {facts.threads_asked} on {node.name}: {node.num_ranks} ranks would "
            f"have {facts.threads_asked * node.num_ranks} threads on {facts.num_cores} cores.",
            evidence={
                "threads": facts.threads_asked, "cores": facts.num_cores, "ranks": node.num_ranks
            },
            fix=f"Set it to {facts.num_cores // node.num_ranks}, or leave it out.",
        )  # fmt: skip


def _limits(node: Node, found: Diagnosis) -> Iterator[Finding]:
    facts = node.facts
    needed = {
        "open files (ulimit -n)": (facts.open_files, FILES_OF_A_RANK + FILES_A_PEER * found.num_ranks),
        "processes (ulimit -u)": (facts.processes, PROCESSES_OF_A_RANK * node.num_ranks),
    }
    for name, (limit, need) in needed.items():
        if limit is not None and limit < need:
            yield Finding(
                cause="limit-too-low",
                message=f"The limit of {name} is {limit} on {node.name}; {found.num_ranks} ranks need about "
                f"{need}.",
                evidence={"limit": limit, "needed": need, "what": name},
                fix=f"Raise it to {need} or more before ranks are started, in the job script or on the node.",
            )
    if facts.has_infiniband and facts.num_gpus and facts.locked_bytes is not None:
        yield Finding(
            cause="limit-too-low",
            message=f"Only {facts.locked_bytes} bytes may be locked (ulimit -l) on {node.name}, which has "
            "InfiniBand: NCCL may fail to use it.",
            evidence={"limit": facts.locked_bytes, "what": "locked memory (ulimit -l)"},
            fix="Set the limit of locked memory to unlimited, for Slurm's daemon as well.",
        )


def _shared_memory(node: Node) -> Iterator[Finding]:
    free, need = node.facts.shared_memory_bytes, SHARED_MEMORY_OF_A_RANK * node.num_ranks
    if free is not None and free <= need:
        yield Finding(
            cause="shared-memory-small",
            message=f"{node.name} has {free / 2**20:,.0f} MiB free in /dev/shm for {node.num_ranks} ranks.",
            evidence={"free_bytes": free, "ranks": node.num_ranks},
            fix="Batches of loader workers go through it, and where it is full they end with a bus error: "
            "give the container more (--shm-size of Docker), or clear it.",
        )
