"""Folders to make pages of: sweeps as `samestep scale` leaves them, of runs that exist in numbers only."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from samestep.observations import FORMAT, ObservationWriter, observations_path
from samestep.observed import VERSION, Span, Start
from samestep.scale.judgement import judge
from samestep.scale.plan import Plan, Sweep
from samestep.scale.runs import line_of
from samestep.scale.variants import Variant
from scale.synthetic import Job

JOB = Job(
    example_s=6e-4, fixed_s=1.5e-3, fetch_s=4e-5, sharing_s=4e-4, exchange_s=2.6e-3, norms_s=3e-4,
    jitter_s=2e-4, noise=0.03, drift=0.02, run_noise=0.01, num_cores=4,
)  # fmt: skip
"""A program whose speed goes mostly to the exchange."""
SLOW = Job(example_s=1e-4, exchange_s=2e-2)
"""One that more ranks make slower."""
PHASES = (("data", 0.06), ("forward", 0.26), ("backward", 0.4), ("update", 0.08), ("other", 0.02))
COMMAND = ["scale", "task.py", "--gpus", "1,2,4", "--batch", "32", "--out", "sweep"]


def sweep_json(job: Job = JOB, *, rounds: int = 6, **asked: Any) -> dict[str, Any]:
    """What scale.json says of a job."""
    sweep = Sweep(**{"worlds": (1, 2, 4), "batches": (32,)} | asked)
    has_norms = bool(job.norms_s)
    runs = job.runs(sweep, rounds)
    environment = {
        "torch": "2.13.0", "python": "3.11.7", "host": "node7", "cores": 4, "devices": ["cpu", "cpu"],
        "backend": "gloo",
    }  # fmt: skip
    result = judge(sweep, runs, has_norms=has_norms, environment=environment)
    return result.to_json() | {
        "version": 1,
        "samestep": "0.1.0",
        "command": COMMAND,
        "target": "task.py",
        "threads_per_rank": 1,
        "outlook": "±1.3% after 6 rounds; 6 more, about 62 s, would make it about ±0.9%",
        "stopped_because": "every interval is narrow enough: ±1.3%, and ±3.0% was asked for",
        "curves": [curve(cell.gpus, cell.batch_size, cell.step_s) for cell in result.cells if cell.step_s],
        "noise_scale": {"value": 214.0, "low": 150.0, "high": 331.0, "num_steps": 24, "from_gpus": 4},
        "later": {"a field of a later Samestep": True},
    }


def curve(gpus: int, batch_size: int, step_s: float, num_steps: int = 120) -> dict[str, Any]:
    """A loss that falls; one step is not finite."""
    rng = np.random.default_rng(gpus)
    points = [
        [k, k * batch_size, k * step_s, None if k == 40 else 0.3 + 2 * math.exp(-k * batch_size / 1500) + n]
        for k, n in enumerate(rng.normal(0, 0.03, num_steps).tolist(), start=1)
    ]
    return {"gpus": gpus, "batch_size": batch_size, "points": points}


def write_sweep(
    folder: Path, value: dict[str, Any] | None = None, *, has_gpus: bool = False, **asked: Any
) -> Path:
    """A folder as `samestep scale --out` leaves it: the answer, a line a run, rows and samples of runs."""
    value = sweep_json(**asked) if value is None else value
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scale.json").write_text(json.dumps(value))
    write_lines(folder)
    number = 0
    for round_ in range(3):
        for cell in value["cells"]:
            if cell.get("step_s"):
                number += 1
                variant = Variant(gpus=cell["gpus"], batch_size=cell["batch_size"], kind="full")
                write_run(
                    folder / "runs" / f"{number:03d}-{variant.name}",
                    variant,
                    cell["step_s"],
                    round_,
                    has_gpus,
                )
    return folder


def write_lines(folder: Path, job: Job = JOB, rounds: int = 2, **asked: Any) -> Path:
    """The finished runs alone, as a sweep that was killed leaves them; the last line is cut off."""
    folder.mkdir(parents=True, exist_ok=True)
    sweep = Sweep(**{"worlds": (1, 2, 4), "batches": (32,)} | asked)
    runs = job.runs(sweep, rounds)
    missing = Plan(sweep, runs, has_norms=bool(job.norms_s)).missing()
    runs += [job.run(planned.variant, planned.round) for planned in missing[:3]]
    (folder / "cells.jsonl").write_text("".join(map(line_of, runs)) + '{"variant": {"gp')
    return folder


def write_run(folder: Path, variant: Variant, step_s: float, round_: int, has_gpus: bool = False) -> None:
    """Rows of the ranks of one run, and how busy the machine was."""
    rng = np.random.default_rng([variant.gpus, variant.batch_size, round_])
    began = 5000.0 + 100 * round_ + variant.gpus
    for rank in range(variant.gpus):
        writer = ObservationWriter(observations_path(folder, rank))
        writer.write(
            Start(format=FORMAT, version=VERSION, samestep="0.1.0", rank=rank, world_size=variant.gpus,
                  attempt=0, program=("train.py",), steps_in_full=0, most_bytes=2**20, python="3.11.7",
                  host="node7", pid=1, time=0.0)
        )  # fmt: skip
        for span in spans(rank, variant.gpus, step_s, began, rng):
            writer.write(span)
        writer.close()
    lines = [sample(began + 0.25 * k, variant.gpus, rng, has_gpus) for k in range(8)]
    (folder / "host.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"at_s": 1')


def spans(rank: int, world: int, step_s: float, began: float, rng: np.random.Generator) -> list[Span]:
    """Phases of steps 3–6 and 21–24 that take as long as they should; the rest is the exchange."""
    found = []
    for step in (*range(3, 7), *range(21, 25)):
        at, end = began + step * step_s, began + (step + 1) * step_s
        scatter = rng.uniform(0.9, 1.1)
        for phase, share in PHASES:
            if phase == "update" and world > 1:
                seconds = end - at - 0.1 * step_s
                found.append(Span(step=step, phase="exchange", began_s=at, seconds=seconds))
                at += seconds
            seconds = share * step_s * (0.75 * scatter if world > 1 else 1.2)
            seconds = min(seconds, end - at)
            found.append(Span(step=step, phase=phase, began_s=at, seconds=seconds))
            at += seconds
    return found


def sample(at_s: float, world: int, rng: np.random.Generator, has_gpus: bool) -> dict[str, Any]:
    own = min(4.0, world * rng.uniform(0.85, 1.0))
    row = {"at_s": at_s, "busy_cores": min(4.0, own + rng.uniform(0, 0.2)), "own_cores": own}
    if has_gpus:
        row |= {"gpu": rng.uniform(0.6, 0.95, world).tolist(), "gpu_w": [200.0] * world}
    return row


def noisy_sweep() -> dict[str, Any]:
    """A sweep whose bars are all noise, with intervals as long as their numbers get."""
    value = sweep_json(rounds=1)
    for gap in value["gaps"]:
        for bars in (gap, gap["epoch"]):
            for part in bars["parts"]:
                wide = 0.9999 * bars["measured_s"]
                part |= {"low": part["seconds"] - wide, "high": part["seconds"] + wide, "is_noise": True}
    return value


def hostile_sweep(text: str) -> dict[str, Any]:
    """A sweep in which everything that others write is `text`."""
    value = sweep_json(rounds=2)
    value["cells"][2] |= {"status": "failed", "reason": text, "marks": [text], "speedup": None}
    value["gaps"][0]["parts"][0]["name"] = text
    value |= {
        "findings": [{"cause": text, "message": text, "evidence": {text: [text, {"a": text}]}, "fix": text}],
        "fairness": [{"mark": text, "reason": text, "gpus": 2, "batch_size": 32, "is_refusal": False}],
        "environment": {text: text, "nested": {text: [text]}},
        "command": ["scale", text],
        "target": text,
        "remarks": [text],
        "outlook": text,
        "stopped_because": text,
    }
    return value
