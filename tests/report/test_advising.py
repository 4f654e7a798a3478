"""Advice on a terminal: the decisive columns stay, rows are marked, and no text is read as markup."""

import io
from dataclasses import replace

import pytest
from rich.console import Console
from test_advice_page import CELLS, NOISE

from samestep.advise.advice import Question, advise
from samestep.advise.cluster import read_cluster
from samestep.advise.context import NOTHING
from samestep.advise.hardware import on_cluster
from samestep.advise.length import Length
from samestep.advise.reason import Price
from samestep.advise.waits import parse_waits
from samestep.report.advised import Advised
from samestep.report.advising import show_advice


def advice_of(noise=NOISE):
    question = Question(
        worlds=(1, 2, 4, 8, 16),
        length=Length(alone_s=36000.0),
        waits=parse_waits("1=2m..5m,4=30m..2h,8=6h"),
        price=Price(gpu_hour=2.5, hour=50),
    )
    return advise(CELLS, replace(NOTHING, noise=noise), question)


def shown(width, advice=None, **others):
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None, highlight=False)
    show_advice(console, Advised.model_validate((advice or advice_of()).to_json() | others))
    return file.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_a_table_fits_and_keeps_what_the_advice_rests_on(width):
    lines = shown(width).splitlines()
    assert max(map(len, lines)) <= width
    heads = next(line for line in lines if line.startswith("  GPUs "))
    assert {"GPUs", "result"} <= set(heads.split())
    assert ("training" in heads) == (width > 40)
    assert ("wait" in heads) == (width > 60)
    assert ("growing batch" in heads) == (width == 200)
    assert ("all columns: --json" in " ".join(" ".join(lines).split())) == (width < 200)


def test_rows_say_what_they_are():
    lines = shown(200).splitlines()
    table = [line for line in lines if line[:6].strip("→ ").isdigit()]
    assert [line.strip("→ ").split()[1] for line in table] == [
        "measured", "measured", "measured", "projected", "range",
    ]  # fmt: skip
    assert [line[0] for line in table] == [" ", " ", "→", " ", " "]
    assert "×1.24" in table[1]  # (200 + 128) / (200 + 64)
    assert "at best" in shown(200, advice_of(noise=None))


def test_texts_of_others_are_not_markup():
    said = shown(200, replace(advice_of(), remarks=("[bold]loud[/bold] \x1b[31m",)))
    assert "[bold]loud[/bold]" in said
    assert "\x1b[31m" not in said


def test_a_simulation_is_called_one():
    advice = advice_of()
    simulated = on_cluster(read_cluster("dgx-a100"), advice.offers, NOTHING, 1e8)
    said = shown(100, cluster=simulated.to_json())
    assert "DGX A100" in said and ", simulated" in said and "exchange not hidden" in said
