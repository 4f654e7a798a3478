"""The timeline as a trace, held against the rules of the Trace Event Format."""

import copy
import json
import math
from itertools import pairwise

import pytest
from sweeps import sweep_json, write_sweep
from typer.testing import CliRunner
from verdicts import write_verdict

from samestep import cli
from samestep.errors import RecordError
from samestep.report.perfetto import write_trace
from samestep.report.sweep_runs import full_runs, spans_of

METADATA = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name",
            "thread_sort_index": "sort_index"}  # fmt: skip


def faults(trace):
    """What Perfetto or Chrome would stumble over."""
    found = []
    lanes = {}
    for event in trace["traceEvents"]:
        if not all(isinstance(event.get(name), int) for name in ("pid", "tid")):
            found.append("no process or thread")
        if not isinstance(event.get("name"), str) or not event["name"]:
            found.append("no name")
        if event.get("ph") == "M":
            if METADATA.get(event["name"]) not in event.get("args", {}):
                found.append("metadata that says nothing")
        elif event.get("ph") == "X":
            numbers = [event.get("ts"), event.get("dur")]
            if not all(isinstance(n, int | float) and math.isfinite(n) and n >= 0 for n in numbers):
                found.append("no time")
            else:
                lanes.setdefault((event["pid"], event["tid"]), []).append((event["ts"], sum(numbers)))
        else:
            found.append("another kind of event")
    for lane in lanes.values():
        # events of a thread may lie in one another, and must not overlap otherwise; these follow one another
        found += ["overlap" for (_, end), (begin, _) in pairwise(sorted(lane)) if begin < end - 1e-6]
    named = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e.get("name") == "thread_name"}
    return found + ["a thread without a name" for lane in lanes if lane not in named]


@pytest.fixture
def sweep(tmp_path):
    return write_sweep(tmp_path / "sweep", sweep_json(rounds=1))


def read(sweep, path):
    num_events = write_trace(sweep, path)
    trace = json.loads(path.read_text())
    assert len(trace["traceEvents"]) == num_events
    return trace


def test_a_trace_keeps_the_rules(sweep, tmp_path):
    assert faults(read(sweep, tmp_path / "t.json")) == []


def test_a_trace_that_breaks_the_rules_would_be_noticed(sweep, tmp_path):
    trace = read(sweep, tmp_path / "t.json")
    at = next(i for i, event in enumerate(trace["traceEvents"]) if event["ph"] == "X")
    for change, fault in (
        ({"dur": -1.0}, "no time"),
        ({"dur": 1e9}, "overlap"),
        ({"ts": "0"}, "no time"),
        ({"ph": "B"}, "another kind of event"),
        ({"pid": "rank 0"}, "no process or thread"),
        ({"name": ""}, "no name"),
        ({"tid": 77}, "a thread without a name"),
    ):
        broken = copy.deepcopy(trace)
        broken["traceEvents"][at] |= change
        assert fault in faults(broken)


def test_processes_are_ranks_and_times_are_microseconds(sweep, tmp_path):
    trace = read(sweep, tmp_path / "t.json")
    names = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert list(names.values())[:3] == [
        "1 GPU, batch 32: rank 0", "2 GPUs, batch 32: rank 0", "2 GPUs, batch 32: rank 1",
    ]  # fmt: skip
    assert len(names) == 7
    runs = next(iter(full_runs(sweep).values()))
    spans = spans_of(runs).by_rank[0]
    phases = [e for e in trace["traceEvents"] if e["pid"] == 1 and e.get("cat") == "phase"]
    assert [e["name"] for e in phases] == [span.phase for span in spans]
    assert [e["ts"] for e in phases] == pytest.approx([span.began_s * 1e6 for span in spans], abs=1e-3)
    assert phases[0]["ts"] == 0 and sum(e["dur"] for e in phases) == pytest.approx(
        sum(span.seconds for span in spans) * 1e6, abs=0.1
    )
    steps = [e for e in trace["traceEvents"] if e["pid"] == 1 and e.get("cat") == "step"]
    assert [e["name"] for e in steps] == [f"step {k}" for k in (3, 4, 5, 6, 21, 22, 23, 24)]


def test_ranks_of_other_clocks_begin_at_zero_each(sweep, tmp_path):
    for path in sweep.glob("runs/*-full-2x32/ranks/00001/observations.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            if "began_s" in row:
                row["began_s"] += 1e6
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    runs = next(runs for cell, runs in full_runs(sweep).items() if cell.gpus == 2)
    spans = spans_of(runs)
    assert not spans.has_one_clock and {rows[0].began_s for rows in spans.by_rank.values()} == {0.0}
    assert faults(read(sweep, tmp_path / "t.json")) == []


def test_the_command_writes_page_and_trace_or_says_why_not(sweep, tmp_path):
    path = tmp_path / "trace.json"
    done = CliRunner().invoke(cli.app, ["report", str(sweep), "--trace", str(path)])
    assert done.exit_code == 0 and done.stdout.split() == [str(sweep / "report.html"), str(path)]
    done = CliRunner().invoke(cli.app, ["report", str(sweep), "--trace", str(path), "--json"])
    said = json.loads(done.stdout)
    assert said["trace"] == str(path) and said["events"] == len(json.loads(path.read_text())["traceEvents"])
    with pytest.raises(RecordError, match="no run in it has a timeline"):
        write_trace(write_verdict(tmp_path / "verdict"), path)
    with pytest.raises(RecordError, match="name another file with --trace"):
        write_trace(sweep, tmp_path / "none" / "t.json")
    assert not list(tmp_path.glob(".*"))
