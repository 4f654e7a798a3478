"""Ray's driver: one item of a request, from its turn on this machine to its end; a process of its own.

`python -m samestep.cluster.ray_driver FOLDER ITEM` does what trainer.json says, through Ray Train. Ray starts
the ranks again that were lost; they go on from their checkpoint. SIGTERM has the training save and leave, and
before it began, or when that takes too long, ends it.
"""

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from samestep.cluster import runner
from samestep.cluster.attempt import Attempt
from samestep.cluster.own_words import note, sight_of
from samestep.cluster.ray import GRANTED, LOCAL, PLAN, QUEUED, stop_path
from samestep.errors import LaunchError, SamestepError
from samestep.launch.machine import check_ranks, count_gpus
from samestep.record import read_json

GRACE_S = 40
"""From the request to stop until Ray is left; longer than ranks have for it."""
REFUSED = 2
QUEUE_S = 0.5
START_S = 120
"""How long Ray waits for itself to be there; its 30 s are too few on a busy machine."""


class Driver:
    """One item, and what Ray Train is asked for it."""

    def __init__(self, folder: Path, item: int) -> None:
        self.folder = folder.resolve()
        self.item = item
        self.attempt = Attempt(self.folder, item, os.environ)
        found = read_json(self.folder / PLAN)
        if found is None:
            raise LaunchError(
                f"{self.folder} holds no {PLAN} that can be read; make it with `samestep submit`."
            )
        self.plan: dict[str, Any] = found
        stop_path(self.folder, item).unlink(missing_ok=True)

    def run(self) -> int:
        """Wait for the turn, train, and write down why it ended where nobody else did; an exit code."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGALRM, _leave)
        handed_over = time.monotonic()
        is_local = self.plan["address"] == LOCAL
        try:
            if is_local:
                runner.await_turn(self.folder)
            held_s = time.monotonic() - handed_over if is_local else 0.0
            told = {"held_s": held_s, "reason": self._connect()}
            threading.Thread(target=self._watch_queue, args=(told,), daemon=True).start()
            self._fit()
        except Exception as error:
            reason = str(error) if isinstance(error, SamestepError) else _reason(error)
            sys.excepthook(*sys.exc_info())  # to runner.log
            self.attempt.end(REFUSED, reason=reason)
            return REFUSED
        return 0

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if not self._is_running():
            _leave(number, frame)
        stop_path(self.folder, self.item).touch()
        signal.alarm(GRACE_S)

    def _connect(self) -> str:
        """Join the cluster, or start one of this machine that nobody else can use; what is missing there."""
        address, scaling = self.plan["address"], self.plan["scaling_config"]
        if address != LOCAL:
            import ray

            ray.init(address=address, log_to_driver=False)
            missing = _missing(scaling, ray.cluster_resources())
        else:
            missing = ""
            gpus = count_gpus()
            each, workers = scaling["resources_per_worker"], scaling["num_workers"]
            if gpus == 0 and scaling["use_gpu"]:
                sys.stderr.write("no GPU found: CPU ranks (gloo)\n")
                scaling["use_gpu"] = False
                each.pop("GPU", None)
            check_ranks(workers * each.get("GPU", 0) or 1, gpus)
            # read when Ray is loaded; the token is known to its processes alone, and kept in no file
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
            os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": str(START_S)}
            import ray

            own = {name: n * workers for name, n in each.items() if name not in ("CPU", "GPU", "memory")}
            ray.init(
                address=LOCAL,
                include_dashboard=False,
                # CPU ranks may be more than cores, here as elsewhere
                num_cpus=max(os.cpu_count() or 1, workers * each["CPU"]),
                num_gpus=gpus,
                resources=own or None,
                log_to_driver=False,
            )
        signal.signal(signal.SIGTERM, self._stop)  # Ray has put its own in place
        return missing

    def _watch_queue(self, told: dict[str, Any]) -> None:
        """Note when Ray is asked for the resources of the workers and when it has them; it tells nobody."""
        import ray
        from ray.util import placement_group_table

        job, known, is_queued = ray.get_runtime_context().get_job_id(), set[str](), False
        while True:
            groups = {id: about["state"] for id, about in placement_group_table().items() if id.endswith(job)}
            new = [state for id, state in groups.items() if id not in known and state != "REMOVED"]
            if new and not is_queued:
                is_queued = True
                note(self.folder, self.item, QUEUED, **told)
                told = {}
            if "CREATED" in new:
                is_queued = False
                note(self.folder, self.item, GRANTED)
                known |= groups.keys()
            time.sleep(QUEUE_S)

    def _is_running(self) -> bool:
        sight = sight_of(self.folder, self.item, time.time())
        return sight is not None and sight.state == "running"

    def _fit(self) -> None:
        from pyarrow.fs import LocalFileSystem
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        from samestep.cluster.ray_inside import Losses, Meeting, work

        place: dict[str, Any] = {"folder": str(self.folder), "item": self.item}
        TorchTrainer(
            work,
            train_loop_config=place,
            torch_config=Meeting(),
            scaling_config=ScalingConfig(**self.plan["scaling_config"]),
            run_config=RunConfig(
                name=self.attempt.item.name,
                storage_path=str(self.folder / "ray"),
                storage_filesystem=LocalFileSystem(),  # else it is read as a URI
                failure_config=FailureConfig(**self.plan["failure_config"]),
                callbacks=[Losses(**place)],
            ),
        ).fit()


def _missing(scaling: Mapping[str, Any], has: Mapping[str, float]) -> str:
    """What the cluster cannot give now, for which Ray waits without a word."""
    needed = {name: n * scaling["num_workers"] for name, n in scaling["resources_per_worker"].items()}
    short = [
        f"{n:g} {name} (it has {has.get(name, 0):g})" for name, n in needed.items() if has.get(name, 0) < n
    ]
    return f"waits for the cluster to have {', '.join(short)}; cancel it if it never will" if short else ""


def _leave(number: int, frame: FrameType | None) -> None:
    """End now; Ray ends what was started for this process."""
    sys.exit(1)


def _reason(error: BaseException) -> str:
    """What Ray says of its failure, in one line."""
    if failures := getattr(error, "worker_failures", None):
        ranks = ", ".join(map(str, sorted(failures)))
        said = "; ".join(sorted({str(each).strip().splitlines()[-1] for each in failures.values()}))
        return f"Ray starts ranks no more often (max_failures), and rank {ranks} is lost: {said}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"Ray: {lines[0] if lines else type(error).__name__}"


if __name__ == "__main__":
    sys.exit(Driver(Path(sys.argv[1]), int(sys.argv[2])).run())
