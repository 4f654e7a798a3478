"""Ray: a request as what Ray Train is asked for, handed to a runner that drives it, asked for and cancelled.

`plan` is a pure function; the runner does what is in its file. A training has one worker of Ray a rank, with
the resources of a rank; anything else runs in one worker that has those of all. Nothing here loads Ray.
"""

import importlib.util
import json
import re
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samestep.cluster import runner
from samestep.cluster.engine import Files
from samestep.cluster.jobs import Sight
from samestep.cluster.ledger import rows_of
from samestep.cluster.own_words import attempts_path
from samestep.cluster.request import Request
from samestep.errors import ConfigError, LaunchError

PLAN = "trainer.json"
LOCAL, AUTO = "local", "auto"
QUEUED, GRANTED = "queued", "granted"
"""What is written down of an item: Ray was asked for its resources, after `held_s` here; Ray has them."""
FAILURES = 3
ANSWER_S = 5.0
_OWN = "resource:"
_HOST = re.compile(r"(?P<host>[\w.-]+|\[[\da-fA-F:]+\]):(?P<port>\d{1,5})")


def plan(request: Request) -> dict[str, Any]:
    """Where to run, and the arguments of Ray Train's ScalingConfig and FailureConfig, by their own names."""
    needs, options = request.needs, dict(request.options)
    if needs.time_s is not None:
        raise ConfigError(
            f"A time limit of {needs.time_s} s was asked for, and Ray knows none: leave out --time and "
            "--like."
        )
    address = options.pop("address", LOCAL)
    if address not in (LOCAL, AUTO) and not _HOST.fullmatch(address):
        raise ConfigError(
            f"--address is {address!r}; name a cluster as HOST:PORT, as `ray start --head` says it, from one "
            f"of its machines, {AUTO!r} for the one that this machine is in, or {LOCAL!r} for a new one."
        )
    failures = _whole("max_failures", options.pop("max_failures", str(FAILURES)))
    workers = needs.world_size if request.command == "train" else 1
    ranks = needs.world_size // workers
    resources: dict[str, float] = {"CPU": ranks * needs.cpus_per_rank}
    if needs.device == "gpu":
        resources["GPU"] = ranks
    if needs.memory_per_rank_bytes is not None:
        resources["memory"] = ranks * needs.memory_per_rank_bytes
    for name, value in options.items():
        if not name.startswith(_OWN):
            raise ConfigError(
                f"{name}={value} is no option that Ray has: max_failures=N is how often ranks may be started "
                f"again, {_OWN}NAME=N asks for a resource of your cluster, N for each rank."
            )
        resources[name.removeprefix(_OWN)] = ranks * _whole(name, value)
    scaling: dict[str, Any] = {
        "num_workers": workers,
        "use_gpu": needs.device == "gpu",
        "resources_per_worker": resources,
        "placement_strategy": "PACK",
    }
    if needs.gpu_type is not None:
        scaling["accelerator_type"] = needs.gpu_type
    return {
        "address": address,
        "scaling_config": scaling,
        "failure_config": {"max_failures": failures if request.may_go_on else 0},
    }


def _whole(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"{name} is {text!r}; it must be a whole number, 0 or more.")
    return int(text)


def stop_path(folder: Path, item: int) -> Path:
    """The file by whose being there the first worker of an item knows that it is to stop."""
    return folder / f"stop-{item}"


def waited_s(folder: Path, item: int) -> float:
    """How long an item waited for its resources, for the attempt that begins now."""
    since = until = time.time()
    for row in rows_of(attempts_path(folder, item)):
        if row["event"] == QUEUED:
            since, until = row["time"] - row.get("held_s", 0.0), time.time()
        elif row["event"] == GRANTED:
            until = row["time"]
    return max(0.0, until - since)


class Ray:
    """The engine: each item has a runner of its own, which is Ray's driver; Ray queues them."""

    name = "ray"

    def files(self, request: Request) -> Files:
        return {PLAN: json.dumps(plan(request), ensure_ascii=False, indent=1) + "\n"}

    def check(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise LaunchError(
                f"--on ray was asked for, but Ray is not installed in {sys.prefix}: "
                'pip install "ray[train]", look at the files with --dry-run, or use --on local.'
            )

    def submit(self, folder: Path, request: Request) -> list[str]:
        _check_answers(plan(request)["address"])
        words = [request.python, "-P", "-m", "samestep.cluster.ray_driver", str(folder)]
        return [
            id
            for item in range(len(request.items))
            for id in runner.start([*words, str(item)], folder, [item])
        ]

    def look(self, jobs: Mapping[str, Path]) -> dict[str, Sight]:
        return runner.look(jobs)

    def cancel(self, jobs: Mapping[str, Path]) -> None:
        runner.cancel(jobs)


def _check_answers(address: str) -> None:
    """Refuse the address of a cluster at which nobody is."""
    match = _HOST.fullmatch(address)
    if match is None:
        return
    try:
        socket.create_connection((match["host"].strip("[]"), int(match["port"])), ANSWER_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise LaunchError(
            f"--address is {address}, where no Ray cluster answers ({reason}): start one with `ray start "
            f"--head`, correct the address, or use --address {LOCAL} for one of this machine alone."
        ) from None
