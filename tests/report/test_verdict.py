import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console
from verdicts import verdict

from samestep.experiment import Experiment
from samestep.findings import Finding
from samestep.launch.failure import Failure
from samestep.report.material import Verification
from samestep.report.verdict import payload, show_verdict
from samestep.verify.comparison import Comparison, Difference
from samestep.verify.plan import Verification as Judged
from samestep.verify.runner import Run


def shown(value=None, *, width=80, encoding="utf-8", color=False, **changes):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(
        file=file,
        width=width,
        highlight=False,
        force_terminal=color,
        color_system="standard" if color else None,
    )
    show_verdict(
        console,
        Verification.model_validate(verdict(**changes) if value is None else value),
        Path("runs/verify"),
    )
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def test_the_verdict_comes_first_then_the_place_then_the_causes():
    lines = shown().splitlines()
    assert lines[0].startswith("different: On 2 and 4 ranks the program does not train the same as on one.")
    text = " ".join(" ".join(lines).split())
    places = [
        text.index(part)
        for part in (
            "step 3, forward backbone.layer1.0.bn1, on ranks 0 and 1",
            "1.00003421 on one rank, 0.81269421 on several: 0.1873 apart, where rounding explains 3.2e-06",
            "1. norm-not-synchronised",
            "normalises with the examples of its own rank",
            "fix: convert the model with torch.nn.SyncBatchNorm",
            "(train.py:41)",
            "evidence: layers: backbone.layer1.0.bn1 (BatchNorm2d)",
            "2. unequal-batches-averaged",
            "forward ≈≈≠≠",
            "note: steps after 24 were not looked into",
            "8 runs in 52.4 s",
            "samestep report runs/verify",
        )
    ]
    assert places == sorted(places)


def test_the_first_difference_is_lit_and_nothing_else():
    lines = shown(color=True).splitlines()
    lit = [line for line in lines if "\x1b[1;7;31m" in line]
    assert len(lit) == 1 and lit[0].startswith("forward")
    plain = shown().splitlines()
    caret = next(line for line in plain if "^ first difference" in line)
    row = next(line for line in plain if line.startswith("forward "))
    assert row[caret.index("^")] == "≠" and row[caret.index("^") - 1] == "≈"
    ruler = next(line for line in plain if line.startswith("step  "))
    assert ruler[caret.index("^") - 2] == "1"  # the difference is in step 3


def test_only_the_word_has_the_colour_of_the_verdict():
    assert shown(color=True).startswith("\x1b[1;31mdifferent: \x1b[0mOn 2 and 4 ranks")


def test_nothing_is_lit_where_nothing_differs():
    table = [[quantity, step, "equal"] for quantity in ("forward", "weight") for step in range(1, 9)]
    text = shown(verdict="equal", first_difference=None, findings=[], table=table, remarks=[])
    assert text.startswith("equal: On 2 and 4 ranks the program trains the same as on one, up to rounding")
    assert "^" not in text and "fix" not in text and "note" not in text


def test_a_difference_that_is_not_in_the_table_is_not_lit_there():
    told = "in the table one rank was given the batches of more ranks: it shows what else differs"
    table = [[quantity, step, "equal"] for quantity in ("forward", "weight") for step in range(1, 9)]
    text = " ".join(shown(table=table).split())
    assert "^" not in text and told in text
    assert told not in " ".join(shown().split()), "there it is in the table"


@pytest.mark.parametrize("width", [80, 60, 40, 24, 18, 10])
@pytest.mark.parametrize("num_steps", [3, 24, 500])
def test_it_fits_the_width(width, num_steps):
    lines = shown(verdict(num_steps, 3), width=width).splitlines()
    assert max(map(len, lines)) <= width


def test_of_many_steps_those_around_the_difference_are_shown():
    text = shown(verdict(500, 300))
    assert "436 steps not shown" in " ".join(text.split())
    caret = next(line for line in text.splitlines() if "^" in line)
    row = next(line for line in text.splitlines() if line.startswith("forward "))
    assert row[caret.index("^") - 1 : caret.index("^") + 1] == "≈≠"


def test_a_dot_is_explained_where_there_is_one():
    table = [[quantity, step, "equal"] for quantity in ("inputs", "weight") for step in range(1, 9)]
    equal = {"verdict": "equal", "first_difference": None, "findings": [], "remarks": []}
    assert "· not compared" in shown(**equal, table=table[1:])
    assert "·" not in shown(**equal, table=table)


def test_a_terminal_that_knows_only_ascii():
    text = shown(encoding="ascii")
    assert "forward        ~~xx" in text and "x different" in text


def test_text_of_the_users_is_no_markup_and_no_control():
    finding = {"cause": "x", "message": "[bold]a[/bold] \x1b[2J", "evidence": {}, "fix": ""}
    text = shown(findings=[finding])
    assert "[bold]a[/bold] \\u001b[2J" in text and "\x1b" not in text


def test_differences_of_texts_have_no_size():
    first = verdict()["first_difference"] | {
        "quantity": "examples", "name": "", "size": 1.0, "tolerance": 0.0, "reference": "0, 1",
        "candidate": "2, 3",
    }  # fmt: skip
    text = " ".join(shown(first_difference=first).split())
    assert "0, 1 on one rank, 2, 3 on several" in text and "apart" not in text


def test_machines_get_the_contract_and_how_it_was_come_by():
    first = Difference(step=2, quantity="weight", name="w", ranks=(0,), size=math.inf, tolerance=1e-6)
    judged = Judged(
        worlds=[1, 2],
        verdict="different",
        first_difference=first,
        findings=[Finding(cause="replicas-drift", message="m", evidence={"step": 2}, fix="f")],
        runs=[
            Run(name="reference", world_size=1, folder=Path("x"), status="finished", experiment=Experiment()),
            Run(
                name="2-ranks",
                world_size=2,
                folder=Path("y"),
                status="failed",
                experiment=Experiment(),
                failure=Failure(rank=1, sentence="Rank 1 failed"),
            ),
        ],
        comparisons={2: Comparison(num_steps=2, marks={("weight", 2): "different"})},
    )
    value = payload(judged, whys={"2-ranks": "as it is"}, command=["verify", "a.py"], out=Path("o"))
    assert {"verdict", "worlds", "first_difference", "findings"} <= set(value)
    assert {"step", "quantity", "name", "ranks", "size", "tolerance"} <= set(value["first_difference"])
    assert set(value["findings"][0]) == {"cause", "message", "evidence", "fix"}
    assert value["runs"][1]["why"] == "as it is" and value["runs"][1]["failure"] == "Rank 1 failed"
    assert value["command"] == ["verify", "a.py"] and value["version"] == 1
    assert "Rank" not in json.dumps(value["runs"][0])
    shown(json.loads(json.dumps(value)))
