"""The page on advice: it says what was answered, word for word, and draws what stands in its table."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweeps import write_sweep
from test_page import HOSTILE, text_of

from samestep.advise.advice import Question, advise
from samestep.advise.cluster import read_cluster
from samestep.advise.context import NOTHING, NoiseScale, cells_digest
from samestep.advise.hardware import on_cluster
from samestep.advise.length import Length
from samestep.advise.reason import Price
from samestep.advise.waits import parse_waits
from samestep.errors import RecordError
from samestep.report.advice_drawings import HEIGHT, WIDTH, costs, growing, speedups, stacks
from samestep.report.advised import OfferRow, OtherRow, read_advised
from samestep.report.figures import seconds
from samestep.report.page import page_of

CELLS = [
    {"gpus": 1, "batch_per_gpu": 64, "step_s": 0.80},
    {"gpus": 2, "batch_per_gpu": 32, "step_s": 0.43},
    {"gpus": 4, "batch_per_gpu": 16, "step_s": 0.245},
]


def answer(noise=None, **question):
    context = NOTHING if noise is None else type(NOTHING)(overheads=NOTHING.overheads, noise=noise)
    asked = Question(worlds=(1, 2, 4, 8, 16), length=Length(alone_s=36000.0), **question)
    return advise(CELLS, context, asked).to_json()


def write(folder, value):
    write_sweep(folder)
    (folder / "advice.json").write_text(json.dumps(value))
    return folder


NOISE = NoiseScale(value=200.0, low=150.0, high=300.0)


def test_the_page_says_what_was_answered(tmp_path):
    value = answer(NOISE, waits=parse_waits("1=2m,4=30m,8=6h"), price=Price(gpu_hour=2.5, hour=50))
    page = page_of(write(tmp_path, value))
    assert "advice" in page.sections
    text = " ".join(text_of(page.html).split())
    for sentence in (value["reason"], *value["remarks"], *(each["message"] for each in value["what_ifs"])):
        assert " ".join(sentence.split()) in text
    for title in (
        "Time to the result",
        "Speedup, with",
        "Price against hours",
        "Examples needed if the batch",
    ):
        assert title in text
    assert "→ 4" in text and "projected" in text and "range" in text


def test_machines_that_were_simulated_have_a_table_of_their_own(tmp_path):
    advice = advise(CELLS, NOTHING, Question(worlds=(1, 2, 4, 8, 16), length=Length(alone_s=36000.0)))
    simulated = on_cluster(read_cluster("dgx-a100"), advice.offers, NOTHING, 1e8)
    value = advice.to_json() | {"cluster": simulated.to_json()}
    text = " ".join(text_of(page_of(write(tmp_path, value)).html).split())
    assert f"On {simulated.cluster.name}: simulated, at best and at worst" in text
    row, worst = simulated.rows[-1], simulated.worst[-1]
    assert f"{seconds(row.step_s)} – {seconds(worst.step_s)}" in text
    assert all(remark in text for remark in simulated.remarks)
    assert all(source in text for source in simulated.cluster.sources)
    # nothing was simulated: the control
    assert "simulated" not in text_of(page_of(write(tmp_path, advice.to_json())).html)


def test_advice_on_cells_that_were_measured_again_is_called_old(tmp_path):
    write_sweep(tmp_path)
    value = answer() | {"cells_digest": cells_digest(tmp_path)}
    assert "→ 8" in text_of(page_of(write(tmp_path, value)).html)
    write(tmp_path, value | {"cells_digest": "another"})
    text = text_of(page_of(tmp_path).html)
    assert "measured again after the advice" in text and "→ 8" not in text


def test_where_the_batch_grew_the_same_training_is_told_too(tmp_path):
    cells = [{"gpus": n, "batch_per_gpu": 64, "step_s": 0.8 + 0.05 * (n > 1)} for n in (1, 2, 4)]
    advice = advise(cells, NOTHING, Question(worlds=(1, 2, 4, 8), length=Length(alone_s=36000.0)))
    text = text_of(page_of(write(tmp_path, advice.to_json())).html)
    assert "same batch" in text and "64: " in text


def test_without_advice_there_is_no_such_section(tmp_path):
    write_sweep(tmp_path)
    assert "advice" not in page_of(tmp_path).sections
    assert read_advised(tmp_path) is None


def test_what_is_not_known_is_not_drawn(tmp_path):
    text = text_of(page_of(write(tmp_path, answer())).html)
    assert "Examples needed if the batch" not in text
    assert "GPU-hours against hours" in text


def test_texts_of_others_are_escaped(tmp_path):
    value = answer()
    page = page_of(write(tmp_path, value | {"reason": HOSTILE, "remarks": [HOSTILE]}))
    assert "<script>alert" not in page.html


@pytest.mark.parametrize("broken", [{"rows": []}, {"recommended_gpus": None}, {"version": 99}])
def test_a_file_that_is_no_advice_is_refused(tmp_path, broken):
    with pytest.raises(RecordError, match=r"advice\.json"):
        page_of(write(tmp_path, answer() | broken))


ROWS = st.lists(
    st.tuples(st.floats(1e-3, 1e3), st.floats(0, 1e6), st.floats(0.01, 1e6), st.floats(1, 3)),
    min_size=1,
    max_size=12,
)


@given(ROWS)
def test_all_that_is_drawn_is_within_the_frame(values):
    rows = [
        OfferRow(
            gpus=2**place, kind="measured", batch_size=64, step_s=1, low_s=1, high_s=1,
            speedup=speedup, speedup_low=speedup / wide, speedup_high=speedup * wide, efficiency=1,
            wait_s=wait_s, wait_high_s=wait_s * wide, start_s=0, train_s=train_s, train_low_s=train_s,
            train_high_s=train_s * wide, result_s=wait_s + train_s, result_high_s=(wait_s + train_s) * wide,
            gpu_hours=train_s * 2**place / 3600, gpu_hours_low=train_s / 3600, gpu_hours_high=train_s,
            efficiency_low=1 / wide, efficiency_high=wide, is_pareto=place % 2 == 0,
        )
        for place, (speedup, wait_s, train_s, wide) in enumerate(values)
    ]  # fmt: skip
    assert growing(rows, 1) is None
    # factors of both sides of 1: a batch may also be smaller than that of the fewest GPUs
    grown = [
        row.model_copy(update={"grows_batch": OtherRow(
            batch_size=64, result_s=1, examples_factor=wide / 2, examples_factor_low=wide / 3,
            examples_factor_high=wide, is_examples_factor_known=True,
        )})
        for row, (*_, wide) in zip(rows, values, strict=True)
    ]  # fmt: skip
    for drawn in (speedups(rows, 1), costs(rows, 1), growing(grown, 1)):
        if drawn is None:
            assert len(rows) < 2
            continue
        numbers = re.findall(
            r"([\d.-]+) ([\d.-]+)", f"{drawn.line} {drawn.band}".replace("L", " L ").replace("M", " ")
        )
        places = [*numbers, *((spot.x, spot.y) for spot in drawn.spots)]
        assert all(0 <= float(x) <= WIDTH and -1 <= float(y) <= HEIGHT for x, y in places)
    for bar in stacks(rows, 1):
        assert all(0 <= float(part[:-1]) <= 100.01 for part in (bar.end, bar.high))
        assert float(bar.high[:-1]) >= float(bar.end[:-1]) - 0.01
