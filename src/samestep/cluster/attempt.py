"""Attempt: what runs inside of a job, once each time that its engine starts it.

`python -m samestep.cluster.attempt FOLDER ITEM` reads the request in FOLDER, starts `samestep` for the item,
on every node where the engine has several, and writes down when it began, how long it had waited and how it
ended. A run that was begun before goes on. One that was asked to stop, and saved, is given back to the engine
to be started again.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from samestep.cluster import slurm_inside
from samestep.cluster.answer import Answer
from samestep.cluster.ledger import rows_of
from samestep.cluster.own_words import attempts_path, last_turn, note, progress_of
from samestep.cluster.request import Request
from samestep.launch.machine import requeue_code
from samestep.record import RecordWriter

TICK_S = 0.2


class Attempt:
    """One start of one item, by Slurm, by HTCondor, by Ray or on this machine."""

    def __init__(self, folder: Path, item: int, env: Mapping[str, str]) -> None:
        self.folder = folder.resolve()
        self.request = Request.read(self.folder)
        self.number = item
        self.item = self.request.items[item]
        self.is_slurm = self.request.engine == "slurm"
        self.is_condor = self.request.engine == "htcondor"
        # HTCondor brings back what is below the folder that the job began in
        self.out = (self.folder if self.is_condor else self.folder.parent.parent) / self.item.name
        self.env = {**env, **self.request.env}
        self._answer = Answer(self.out, self.request.command)

    def run(self) -> int:
        """Run the item until it ends; the exit code for the engine."""
        began = time.time()
        job = slurm_inside.job(self.env) if self.is_slurm else None
        self.begin(job.wait_s if job else self._wait_since_given_back(began))
        step_before = self._step()
        code = self._run()
        is_saved = code == requeue_code(self.env) and self.request.may_go_on
        requeues = job is not None and is_saved and self._may_requeue(step_before, time.time() - began)
        self.end(code, requeued=requeues)
        if requeues:
            assert job is not None
            slurm_inside.requeue(job)
        return code

    def begin(self, wait_s: float | None) -> None:
        """Write down that the item is started, after so long in the queue."""
        note(self.folder, self.number, "started", wait_s=wait_s, node=os.uname().nodename)

    def end(self, code: int, *, requeued: bool = False, reason: str = "") -> None:
        """Write down how what was begun ended; nothing where that is known already.

        An item that never began has ended too, if it is not to be tried again.
        """
        last = last_turn(rows_of(attempts_path(self.folder, self.number)))
        is_begun = last["event"] == "started"
        if not is_begun and (requeued or (last["event"] == "ended" and not last.get("requeued"))):
            return
        wait_s, run_s = (last.get("wait_s"), time.time() - last["time"]) if is_begun else (None, 0.0)
        answer = self._answer.told(code)
        note(
            self.folder,
            self.number,
            "ended",
            code=code,
            run_s=run_s,
            step=self._step(),
            requeued=requeued,
            answered=bool(answer),
            reason=reason or answer,
        )
        if is_begun and (self.out / "record.json").exists():
            record = RecordWriter(self.out, 0)
            record.event("job", wait_s=wait_s, run_s=run_s, exit_code=code, requeued=requeued)
            record.close()

    def command(self) -> list[str]:
        """The command line of this attempt, word by word."""
        words = [sys.executable, "-P", "-m", "samestep", *self.item.words[:1], "--out", str(self.out)]
        if self.request.may_go_on and (self.out / "job.json").exists():
            words.append("--resume")
        words += self.item.words[1:]
        return slurm_inside.srun(self.request) + words if self.is_slurm else words

    def _run(self) -> int:
        child = subprocess.Popen(  # noqa: S603
            self.command(), cwd=self.request.workdir if not self.is_condor else None, env=self.env
        )

        def pass_on(number: int, frame: FrameType | None) -> None:
            child.send_signal(number)

        # Slurm tells the steps of a job by itself
        handler = signal.SIG_IGN if self.is_slurm else pass_on
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            signal.signal(number, handler)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        due = time.monotonic() + self.request.checkpoint_every_s
        while True:
            try:
                code = child.wait(TICK_S)
            except subprocess.TimeoutExpired:
                if self.is_condor and self.request.may_go_on and time.monotonic() > due:
                    due += self.request.checkpoint_every_s
                    child.send_signal(signal.SIGUSR1)
                continue
            return code if code >= 0 else 128 - code

    def _may_requeue(self, step_before: int, run_s: float) -> bool:
        """Whether to ask for another attempt: not after a cancel, nor where the time limit allows no step."""
        if not slurm_inside.is_still_wanted(self.env):
            return False
        limit = self.request.needs.time_s
        is_out_of_time = limit is not None and run_s > limit - self.request.lead_s - 90
        if is_out_of_time and self._step() <= step_before:
            sys.stderr.write(
                f"No step was made in {run_s:.0f} s, and the time limit is {limit} s: another attempt would "
                "end the same way. Ask for more time with --time.\n"
            )
            return False
        return True

    def _step(self) -> int:
        return progress_of(self.out, self.request.command).step

    def _wait_since_given_back(self, now: float) -> float | None:
        """How long this item waited since it was last handed over, if the engine cannot be asked."""
        times = [row["time"] for row in rows_of(attempts_path(self.folder, self.number)) if "time" in row]
        return max(0.0, now - times[-1]) if times else None


def main() -> int:
    folder, item = sys.argv[1:]
    return Attempt(Path(folder), int(item), os.environ).run()


if __name__ == "__main__":
    sys.exit(main())
