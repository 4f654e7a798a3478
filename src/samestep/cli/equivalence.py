"""Whether ranks of this machine train what one rank trains, found out by training the demo on both."""

from collections.abc import Iterator
from pathlib import Path

from samestep.cli.running import run
from samestep.findings import Finding
from samestep.launch.job import Job, Mode
from samestep.launch.limits import Limits
from samestep.record import Record
from samestep.report.compare import compare

_TARGET = "samestep.demo:digits"
_SETTINGS = ("epochs=1",)
_MODES: tuple[Mode, ...] = ("fast", "bitwise")


def differences(ranks: int, folder: Path) -> Iterator[Finding]:
    """A finding for each mode in which the demo is other training on so many ranks than on one."""
    for mode in _MODES:
        records = []
        for size in (1, ranks):
            out = folder / f"{mode}-{size}"
            job = Job(command="train", target=_TARGET, overrides=_SETTINGS, mode=mode)
            outcome = run(job, Limits(most=size), out, say_device=False)
            if outcome.status != "finished":
                said = outcome.failure.sentence if outcome.failure is not None else outcome.status
                yield _finding(mode, size, f"did not end well: {said}")
                return
            records.append(Record.read(out))
        reference, candidate = records
        verdict = compare(reference.steps(), candidate.steps())
        if verdict.verdict not in ("same", "equal"):
            yield _finding(mode, ranks, f"is not that of one rank: {verdict.first_difference}")
        digests = [(record.result or {}).get("digest") for record in records]
        if mode == "bitwise" and digests[0] != digests[1]:
            what = f"ends with the digest {digests[1]}, and on one rank with {digests[0]}"
            yield _finding(mode, ranks, what)


def _finding(mode: Mode, ranks: int, what: str) -> Finding:
    return Finding(
        cause="trains-differently",
        message=f"In {mode} mode, the training of the demo on {ranks} rank{'s' * (ranks > 1)} {what}.",
        evidence={"mode": mode, "ranks": ranks},
        fix="Do not trust trainings on this machine before this is understood: try other versions of torch "
        "and the driver, and each GPU by itself (CUDA_VISIBLE_DEVICES).",
    )
