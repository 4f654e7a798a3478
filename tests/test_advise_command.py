"""`samestep advise` from its words to its exit code."""

import json
import os
import re
import stat

import pytest

from samestep import cli
from samestep.cli.advise import worlds_to
from samestep.cluster.jobs import Sight
from samestep.cluster.ledger import Entry, Ledger
from samestep.cluster.request import Needs, Request

TABLE = "gpus,batch_per_gpu,step_s\n1,64,0.800\n2,32,0.430\n4,16,0.245\n"
CELLS = [
    {"gpus": gpus, "batch_size": 64, "batch_per_gpu": 64 / gpus, "status": "measured", "step_s": step_s,
     "step_low_s": 0.98 * step_s, "step_high_s": 1.02 * step_s, "start_s": 20.0 + gpus, "warm_up_s": 1.0,
     "steps_per_epoch": 1000, "evaluation_s": 5.0, "checkpoint_s": 1.0}
    for gpus, step_s in ((1, 0.8), (2, 0.43), (4, 0.245))
]  # fmt: skip
GAPS = [
    {"gpus": gpus, "batch_size": 64, "ideal_s": 0.8 / gpus, "measured_s": step_s, "parts": [
        {"name": "exchange not hidden", "seconds": step_s - 0.8 / gpus, "low": 0.01, "high": 0.05}]}
    for gpus, step_s in ((2, 0.43), (4, 0.245))
]  # fmt: skip
SWEEP = {
    "version": 1, "target": "task.py", "cells": CELLS, "gaps": GAPS,
    "noise_scale": {"value": 200.0, "low": 150.0, "high": 300.0},
}  # fmt: skip


@pytest.fixture
def advise(monkeypatch, capsys, tmp_path):
    """Ask with the words given: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "table.csv").write_text(TABLE)
    (tmp_path / "huge.csv").write_text(f"{TABLE}1000000,1,0.1\n")
    write_sweep(tmp_path / "sweep")

    def run(*words):
        monkeypatch.setattr("sys.argv", ["samestep", "advise", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


def write_sweep(folder, **changed):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scale.json").write_text(json.dumps(SWEEP | changed))
    return folder


def test_a_table_from_anywhere(advise):
    code, out, err = advise("table.csv", "--alone", "10h", "--wait", "1=2m,4=30m,8=6h")
    assert (code, out) == (0, "4\n")
    assert err.startswith(
        "Ask for 4 GPUs. Training takes 3.1 h instead of 10 h; the result is there after 3.6 h, with 30 min "
        "in the queue. 8 would take "
    )
    assert "but wait 5.5 h longer in the queue" in err
    lines = err.splitlines()
    asked = next(line for line in lines if line.startswith("→"))
    assert "measured" in asked and "3.27" in asked
    assert any("projected" in line for line in lines)
    assert "Waits of 2, 3, 6 GPUs are not given" in err


def test_json_is_one_object_with_the_fields_of_the_contract(advise):
    code, out, _ = advise("table.csv", "--to", 8, "--json", "--price", 2.5)
    found = json.loads(out)
    assert code == 0
    assert {"recommended_gpus", "reason", "rows", "findings"} <= set(found)
    assert [row["gpus"] for row in found["rows"]] == [1, 2, 3, 4, 6, 8]
    assert [row["kind"] for row in found["rows"]][:4] == ["measured", "measured", "projected", "measured"]
    assert found["rows"][0]["cost"] == pytest.approx(10_000 * 0.8 / 3600 * 2.5)
    assert found["recommended_gpus"] in [row["gpus"] for row in found["rows"]]


def test_a_sweep_tells_more_and_keeps_the_advice_for_its_page(advise, tmp_path):
    code, _, err = advise("sweep", "--epochs", 10)
    assert code == 0
    assert "faster exchange: On " in err
    assert "as a page: samestep report sweep" in err
    kept = json.loads((tmp_path / "sweep" / "advice.json").read_text())
    one = kept["rows"][0]
    assert one["start_s"] == 22.0
    assert one["train_s"] == pytest.approx(10 * (1000 * 0.8 + 6.0))
    assert kept["rows"][1]["grows_batch"]["examples_factor"] == pytest.approx((200 + 128) / (200 + 64))


def test_dont_use_more_than_one_is_an_answer(advise, tmp_path):
    (tmp_path / "slow.csv").write_text("gpus,batch_per_gpu,step_s\n1,64,0.5\n2,32,0.6\n4,16,0.9\n")
    code, out, err = advise("slow.csv")
    assert (code, out) == (0, "1\n")
    assert err.startswith("Ask for 1 GPU. 10,000 steps take")


def test_from_one_world_there_is_no_answer_but_the_next_cell(advise, tmp_path):
    (tmp_path / "one.csv").write_text("gpus,batch_per_gpu,step_s\n1,64,0.5\n")
    code, out, err = advise("one.csv")
    assert (code, out) == (2, "")
    assert err.startswith("error: Only 1 GPU was measured.")
    assert re.search(r"Measure \d+ GPUs .*about [\d.]+ (s|min) and", err)
    code, out, _ = advise("one.csv", "--json")
    found = json.loads(out)
    assert (code, found["recommended_gpus"], found["rows"]) == (2, None, [])
    assert found["next_cell"]["gpus"] > 1


def test_another_cluster(advise):
    code, out, err = advise("table.csv", "--cluster", "pcie-4gpu-25gbe", "--parameters", "25.6M", "--json")
    found = json.loads(out)["cluster"]
    assert code == 0
    assert {row["kind"] for row in found["rows"]} == {"simulated"}
    assert found["sources"]
    _, _, err = advise("table.csv", "--cluster", "pcie-4gpu-25gbe", "--parameters", "25.6M")
    assert "simulated" in err and "exchange not hidden" in err
    code, _, err = advise("table.csv", "--cluster", "pcie-4gpu-25gbe")
    assert code == 2 and "--parameters" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "no such folder or table"),
        (["table.csv", "--wait", "4=3"], "no time with a unit"),
        (["table.csv", "--steps", "10", "--epochs", "2"], "two ways"),
        (["table.csv", "--epochs", "2"], "--epochs 2 was given"),
        (["table.csv", "--alone", "10"], "--alone is '10'"),
        (["table.csv", "--cluster", "dgx-a10"], "dgx-a100"),
        (["table.csv", "sweep"], "2 jobs"),
        (["table.csv", "--price", "inf"], "--price is inf"),
        (["table.csv", "--price", "1", "--hour", "inf"], "--hour is inf"),
        (["table.csv", "--steps", "inf"], "--steps is inf"),
        (["table.csv", "--steps", "1e308"], "--steps is 1e+308, which nobody trains for"),
        (["table.csv", "--alone", "99999999999h"], "a hundred years"),
        (["table.csv", "--to", "100000"], "--to is 100000, but up to 65536"),
        (["huge.csv"], "gpus is 1000000, but at most 65536"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(advise, words, said):
    code, out, err = advise(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and said in err and "Traceback" not in err


@pytest.mark.parametrize("words", [("--parameters", "25M"), ("--hour", "20")])
def test_what_counts_with_another_option_only_is_not_passed_over(advise, words):
    code, _, err = advise("table.csv", *words)
    assert code == 2 and f"{words[0]} is" in err and "give" in err


def test_one_world_is_told_what_to_measure_and_why(advise, tmp_path):
    (tmp_path / "eight.csv").write_text("gpus,batch_per_gpu,step_s\n8,64,0.226\n")
    code, _, err = advise("eight.csv", "--to", "8")
    assert code == 2 and "two numbers of GPUs are the least" in err
    assert "about 8" not in " ".join(err.split()).partition("Measure")[2]


def test_waits_of_submitted_jobs_count(advise, tmp_path):
    ledger = Ledger(tmp_path / "sweep")
    for number, (gpus, wait_s, state) in enumerate(
        [(1, 60, "finished"), (4, 7200, "running"), (4, 9, "pending")]
    ):
        needs = Needs(world_size=gpus)
        request = Request(
            name=f"r{number}",
            command="scale",
            items=(),
            needs=needs,
            python="python",
            workdir="/",
            engine="slurm",
            home="/",
        )
        request.folder_in(ledger.folder).mkdir(parents=True)
        request.write(request.folder_in(ledger.folder))
        entry = Entry(
            id=str(number), engine="slurm", request=request.name, item=0, name=str(number), submitted_at=0.0
        )
        ledger.submitted(entry)
        ledger.seen(entry, Sight(state=state, wait_s=wait_s))
    code, out, _ = advise("sweep", "--to", 4, "--json")
    found = {row["gpus"]: row["wait_s"] for row in json.loads(out)["rows"]}
    assert (code, found[1], found[4]) == (0, 60, 7200)
    assert json.loads(advise("sweep", "--to", 4, "--wait", "5m", "--json")[1])["rows"][0]["wait_s"] == 300


def test_waits_of_a_scheduler(advise, tmp_path, monkeypatch):
    sacct = tmp_path / "bin" / "sacct"
    sacct.parent.mkdir()
    sacct.write_text(
        "#!/bin/sh\n"
        "echo 'cpu=4,gres/gpu=1,node=1|2026-11-01T10:00:00|2026-11-01T10:00:00|2026-11-01T10:02:00'\n"
        "echo 'cpu=4,gres/gpu=4,node=1|2026-11-01T10:00:00|2026-11-01T10:00:00|2026-11-01T12:00:00'\n"
    )
    sacct.chmod(sacct.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", os.pathsep.join([str(sacct.parent), "/nowhere", "/bin"]))
    code, out, _ = advise("table.csv", "--to", 4, "--wait", "slurm:gpu", "--json")
    answer = json.loads(out)
    found = {row["gpus"]: row["wait_s"] for row in answer["rows"]}
    assert (code, found[1], found[4]) == (0, 120, 7200)
    monkeypatch.setenv("PATH", "/nowhere")
    code, out, _ = advise("table.csv", "--wait", "slurm", "--json")
    assert code == 0
    assert any("there is no sacct here" in said for said in json.loads(out)["remarks"])


def test_sweeps_of_several_machines_are_refused_and_named(advise, tmp_path):
    for place, (cell, device) in enumerate(zip(CELLS, ("A100", "A100", "T4"), strict=True)):
        name = f"cuda NVIDIA {device}"
        row = cell | {"devices": {name: cell["gpus"]}}
        write_sweep(tmp_path / "mixed" / str(place), cells=[row], gaps=[], environment={"devices": [name]})
    code, out, err = advise("mixed")
    assert (code, out) == (2, "")
    assert "2 machines (cuda NVIDIA A100: 1, 2 GPUs; cuda NVIDIA T4: 4 GPUs)" in err
    assert advise(tmp_path / "mixed" / "0", tmp_path / "mixed" / "1")[0] == 0


def test_what_sweeps_did_not_have_alike_is_a_finding(advise, tmp_path):
    for place, (cell, cores) in enumerate(zip(CELLS, (8, 8, 32), strict=True)):
        environment = {"devices": ["cuda"], "num_cores": cores}
        write_sweep(tmp_path / "unlike" / str(place), cells=[cell], gaps=[], environment=environment)
    code, out, _ = advise("unlike", "--json")
    assert code == 0
    assert "not-measured-alike" in [finding["cause"] for finding in json.loads(out)["findings"]]


def test_a_node_has_as_many_gpus_as_are_said(advise, tmp_path):
    (tmp_path / "told.csv").write_text(TABLE.replace("\n", ",1\n").replace("step_s,1", "step_s,nodes"))

    def ranges(*words):
        code, out, _ = advise("table.csv", "--to", 16, "--json", *words)
        assert code == 0
        return [row["gpus"] for row in json.loads(out)["rows"] if row["is_range"]]

    assert ranges() == [12, 16]
    assert ranges("--gpus-per-node", 16) == []
    assert ranges("--gpus-per-node", 4) == [6, 8, 12, 16]
    # the table does not say the nodes of its 4 GPUs: they are 2, and so something was measured between them
    assert ranges("--gpus-per-node", 2) == []
    code, _, err = advise("told.csv", "--gpus-per-node", 2)
    assert code == 2 and "4 GPUs were measured on 1 node" in err


def test_milliseconds_among_seconds_are_asked_about(advise, tmp_path):
    (tmp_path / "ms.csv").write_text("gpus,batch_per_gpu,step_s\n1,64,800\n2,32,430\n")
    assert "were these milliseconds?" in advise("ms.csv")[2]
    assert "milliseconds" not in advise("table.csv")[2]


def test_a_folder_of_several_sweeps_of_one_job(advise, tmp_path):
    for place, cell in enumerate(CELLS):
        write_sweep(tmp_path / "jobs" / str(place), cells=[cell], gaps=[])
    code, out, _ = advise("jobs", "--json")
    assert (code, len(json.loads(out)["rows"])) == (0, 8)


def test_numbers_of_gpus_to_tell_about():
    assert worlds_to(16, [1, 2, 4]) == [1, 2, 3, 4, 6, 8, 12, 16]
    assert worlds_to(10, [1, 5, 20]) == [1, 2, 3, 4, 5, 6, 8, 10]
    assert worlds_to(1, [1, 2]) == [1]
