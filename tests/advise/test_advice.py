"""From a projection to advice: its sentences follow from its table, whatever the figures."""

import json
import math
import re
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.advise.advice import OneWorld, Question, advice_from, advise
from samestep.advise.context import NOTHING, Bar, Bars, Context, NoiseScale
from samestep.advise.length import Length
from samestep.advise.offers import Overheads
from samestep.advise.reason import Price
from samestep.advise.rows import MeasuredRow, ProjectedRow
from samestep.advise.waits import parse_waits
from samestep.advise.whatif import limit
from samestep.cli.advise import worlds_to
from samestep.errors import ConfigError
from samestep.findings import Finding

WORLDS = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True)
class Job:
    """A step of known form: computing, an exchange as soon as there are two, more for each further GPU."""

    example_s: float = 0.01
    exchange_s: float = 0.05
    each_s: float = 0.01
    way: str = "same"
    batch_size: float = 64.0
    measured_gpus: tuple[int, ...] = (1, 2, 4)
    farthest: int = 1000
    """From which on rows are ranges."""

    def rows(self):
        return {
            "same": [self.row(gpus, self.batch_size / gpus) for gpus in WORLDS],
            "grows": [self.row(gpus, self.batch_size) for gpus in WORLDS],
        }

    def row(self, gpus, share):
        more = self.exchange_s + self.each_s * (gpus - 2) if gpus > 1 else 0.0
        seconds = self.example_s * share + more
        is_measured = gpus in self.measured_gpus
        around = 0.02 if is_measured else 0.1 * math.log2(gpus)
        times = {"step_s": seconds, "low_s": seconds / (1 + around), "high_s": seconds * (1 + around)}
        if is_measured:
            return MeasuredRow(gpus=gpus, nodes=1, batch_per_gpu=share, **times)
        far = {"is_range": True, "because": "too far"} if gpus >= self.farthest else {}
        return ProjectedRow(gpus=gpus, nodes=1, batch_per_gpu=share, level=0.8, **times, **far)


LENGTH = Length(num_steps=60_000)


def advice_for(job=None, context=NOTHING, **question):
    job = job or Job()
    asked = Question(worlds=WORLDS, **({"length": LENGTH} | question))
    return advice_from(job.rows(), job.way, context, asked)


def exchange_bars(gpus=4):
    return Bars(
        gpus=gpus,
        batch_size=64,
        ideal_s=0.16,
        measured_s=0.23,
        bars=(
            Bar(name="exchange not hidden", seconds=0.05, is_noise=False),
            Bar(name="input pipeline", seconds=0.03, is_noise=False),
            Bar(name="sharing the host", seconds=-0.01, is_noise=True),
        ),
    )


WITH_BARS = replace(NOTHING, bars=(exchange_bars(),))


def test_the_sentence_of_a_queue():
    found = advice_for(context=WITH_BARS, waits=parse_waits("1=2m,4=30m,8=6h"))
    assert found.recommended_gpus == 4
    assert found.reason == (
        "Ask for 4 GPUs. Training takes 3.8 h (3.8–3.9) instead of 10.7 h; the result is there after 4.3 h, "
        "with 30 min in the queue. 8 would take 3.2 h (2.4–4.1) but wait 5.5 h longer in the queue. From 12 "
        "GPUs on, the exchange of gradients costs more than is gained."
    )


def test_one_gpu_is_a_first_class_answer():
    found = advice_for(Job(exchange_s=1.0))
    assert found.recommended_gpus == 1
    assert found.reason.startswith("Ask for 1 GPU. Training takes 10.7 h")
    assert "2 would take 22 h (21.6–22.4), which is not shorter." in found.reason


def test_expected_and_careful_are_both_told_where_they_differ():
    found = advice_for(waits=parse_waits("1=1m..2m,4=30m..4h,8=40m..30h"))
    careful = found.recommendation.careful
    assert careful.gpus != found.recommended_gpus
    assert f"ask for {careful.gpus}: nine times out of ten" in found.reason
    assert "must not be late" not in advice_for(Job(exchange_s=1.0)).reason


def test_what_is_projected_is_called_so():
    found = advice_for(Job(each_s=0.0))
    assert found.offers[-1].kind == "projected"
    assert (
        f"{found.recommended_gpus} GPUs were not measured: this is projected from 1, 2 and 4." in found.reason
    )


def test_a_price_is_weighed_against_an_hour():
    cheap = advice_for(price=Price(gpu_hour=0.1, hour=50))
    dear = advice_for(price=Price(gpu_hour=40, hour=50))
    assert dear.recommended_gpus < cheap.recommended_gpus
    assert "It costs" in dear.reason
    assert re.search(r"sooner for [\d.,]+ more: that pays from [\d.,]+ an hour on", dear.reason)
    row = dear.to_json()["rows"][0]
    assert row["cost"] == pytest.approx(40 * dear.offers[0].gpu_hours)
    assert advice_for().to_json()["rows"][0]["cost"] is None


def test_what_would_pay_but_hardly_is_called_so():
    found = advice_for(price=Price(gpu_hour=3, hour=50))
    assert found.recommended_gpus == 4
    assert (
        "8 would take 3.2 h (2.4–4.1), a result 17 % sooner for 30 more: counted together, " in found.reason
    )
    assert "that gains less than 10 % of its time." in found.reason


def test_equal_gpu_hours_are_no_reason_to_wait_longer():
    """However dear GPUs are: what costs the same and is sooner by more than the slack is the better one."""
    linear = [{"gpus": n, "batch_size": 64, "step_s": 0.8 / n} for n in (1, 2, 4)]
    for gpu_hour in (0.0, 10.0, 1e6):
        question = Question(worlds=(1, 2, 4), length=LENGTH, price=Price(gpu_hour=gpu_hour, hour=1))
        assert advise(linear, NOTHING, question).recommended_gpus == 4
    # the control: as soon as more GPUs cost more, a price may be too high
    losing = [each | {"step_s": each["step_s"] * (1 + 0.02 * each["gpus"])} for each in linear]
    question = Question(worlds=(1, 2, 4), length=LENGTH, price=Price(gpu_hour=1e6, hour=1))
    assert advise(losing, NOTHING, question).recommended_gpus == 1


def test_start_up_is_paid_for_too():
    """Two are superlinear by their steps, and not by what they cost: both start for 50 min."""
    cells = [{"gpus": n, "batch_size": 64, "step_s": s} for n, s in ((1, 1.0), (2, 0.49))]
    context = replace(NOTHING, overheads=Overheads(start_s={1: 3000.0}, epoch_s={}))
    question = Question(worlds=(1, 2), length=Length(num_steps=6000), price=Price(gpu_hour=10, hour=4))
    found = advise(cells, context, question)
    one, two = found.offers
    assert 2 * two.train_s < one.train_s and two.gpu_hours > one.gpu_hours
    assert "dearer" not in found.reason


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0, 2), st.floats(0, 0.2), st.integers(0, 50), st.integers(0, 50),
    st.one_of(st.none(), st.floats(0.01, 100)),
)  # fmt: skip
def test_sentences_never_contradict_the_table(exchange_s, each_s, four_h, eight_h, gpu_hour):
    price = None if gpu_hour is None else Price(gpu_hour=gpu_hour, hour=50)
    found = advice_for(
        Job(exchange_s=exchange_s, each_s=each_s),
        waits=parse_waits(f"1=1m,4={four_h}h,8={four_h + eight_h}h"),
        price=price,
    )
    by_gpus = {offer.gpus: offer for offer in found.offers}
    taken = by_gpus[found.recommended_gpus]
    assert found.reason.startswith(f"Ask for {taken.gpus} GPU")
    if "which is not shorter" in found.reason or "but wait" in found.reason:
        other = re.search(
            r"(\d+) would take \S+ \S+( \(\S+\))?(, which is not shorter| but wait)", found.reason
        )
        offer = by_gpus[int(other[1])]
        assert offer.result_s >= taken.result_s
        assert (offer.train_s >= taken.train_s) == ("not shorter" in other[3])
    if other := re.search(
        r"(\d+) would take \S+ \S+( \S+)?, a result (only )?[\d.e-]+ % sooner", found.reason
    ):
        offer = by_gpus[int(other[1])]
        assert offer.result_s < taken.result_s
        assert bool(other[3]) == (taken.result_s <= 1.1 * offer.result_s)
    if pays := re.search(r"that pays from ([\d.,]+) an hour on", found.reason):
        assert float(pays[1].replace(",", "")) >= 0.94 * price.hour
    if careful := re.search(r"must not be late, ask for (\d+)", found.reason):
        assert by_gpus[int(careful[1])].result_high_s < taken.result_high_s
    if start := re.search(r"From (\d+) GPUs on, further GPUs", found.reason):
        quickest = min(found.offers, key=lambda offer: offer.train_s)
        assert all(offer.train_s >= quickest.train_s for offer in found.offers if offer.gpus >= int(start[1]))


@st.composite
def tables(draw):
    """Cells as people have them: in any order of good and bad, with and without nodes, weak or strong."""
    worlds = sorted(
        draw(st.sets(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24, 32]), min_size=2, max_size=6))
    )
    is_strong = draw(st.booleans())
    return [
        {"gpus": gpus, "batch_per_gpu": 64 * worlds[0] / gpus if is_strong else 64,
         "step_s": draw(st.floats(0.2, 2.0)) * (worlds[0] / gpus if is_strong else 1)}
        | draw(st.sampled_from([{}, {"nodes": 1}, {"nodes": -(-gpus // 4)}]))
        for gpus in worlds
    ]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(tables(), st.integers(0, 20), st.one_of(st.none(), st.floats(0, 100)))
def test_any_table_is_told_as_it_is(cells, hours, gpu_hour):
    """Times that rise and fall too: what holds from some number of GPUs on holds for all that come after."""
    most = max(cell["gpus"] for cell in cells)
    price = None if gpu_hour is None else Price(gpu_hour=gpu_hour, hour=50)
    question = Question(
        worlds=worlds_to(4 * most, [cell["gpus"] for cell in cells]),
        length=Length(alone_s=36000.0),
        waits=parse_waits(f"1=1m,8={hours}h"),
        price=price,
    )
    found = advise(cells, NOTHING, question)
    sure = [offer for offer in found.offers if not offer.is_range]
    taken = next(offer for offer in sure if offer.gpus == found.recommended_gpus)
    assert found.reason.startswith(f"Ask for {taken.gpus} GPU")
    if price is None:
        assert taken.result_s <= 1.1 * min(offer.result_s for offer in sure)
    if start := re.search(r"From (\d+) GPUs? on, (less than half|.*(longer|gained))", found.reason):
        least = min(offer.train_s for offer in sure)
        after = [offer for offer in sure if offer.gpus >= int(start[1])]
        if start[2] == "less than half":
            assert all(offer.efficiency < 0.5 for offer in after)
        else:
            assert min(offer.train_s for offer in after) > least
            times = [offer.train_s for offer in found.offers if offer.gpus >= int(start[1])]
            assert times == sorted(times)
    if start := re.search(r"(Up to (\d+) GPUs?, n|N)o number is quicker than (\d+)", found.reason):
        quickest = next(offer for offer in sure if offer.gpus == int(start[3]))
        assert all(offer.train_s >= quickest.train_s for offer in sure)
        assert start[2] is None or sure[-1].gpus == int(start[2])
    if used := re.search(r"Up to (\d+) GPUs?, at least (\d+) %", found.reason):
        assert sure[-1].gpus == int(used[1])
        assert min(offer.efficiency for offer in sure) >= (int(used[2]) - 0.5) / 100
    for offer in found.offers:
        assert offer.low_s <= offer.step_s <= offer.high_s
        assert offer.result_s <= offer.result_high_s


def test_times_that_stay_or_fall_again_are_not_called_longer():
    def said(*times, more=()):
        cells = [{"gpus": 2**i, "batch_size": 64, "step_s": t} for i, t in enumerate(times)]
        worlds = [2**i for i in range(len(times))]
        return advise(cells, NOTHING, Question(worlds=[*worlds, *more])).reason

    assert "No number is quicker than 2." in said(0.8, 0.5, 0.5, 0.5)
    assert "No number is quicker than 4." in said(0.8, 0.6, 0.2, 0.35, 0.3)
    assert "From 8 GPUs on, further GPUs make training longer." in said(0.8, 0.6, 0.2, 0.35, 0.4)
    # a range may be quicker: nothing is said of those
    assert "Up to 8 GPUs, no number is quicker than 2." in said(0.8, 0.5, 0.6, 0.55, more=[64])


def test_who_gained_nothing_is_not_told_to_ask_for_more():
    """Laws say that a second GPU costs most: a job whose host or disk is full would wait for more in vain."""
    for rates in ((100, 80), (80, 77, 71), (80, 80, 80), (100, 108)):
        cells = [{"gpus": 2**i, "batch_per_gpu": 64, "examples_per_s": rate} for i, rate in enumerate(rates)]
        found = advise(cells, NOTHING, Question(worlds=[1, 2, 4, 6, 8]))
        assert found.recommended_gpus == found.recommendation.careful.gpus == 1
        assert (
            f"a range and nothing to ask for yet: up to {2 ** (len(rates) - 1)}, more GPUs gained nothing"
            in found.reason
        )
    # the control
    cells = [{"gpus": 2**i, "batch_per_gpu": 64, "examples_per_s": rate} for i, rate in enumerate((100, 150))]
    assert advise(cells, NOTHING, Question(worlds=[1, 2, 4, 6, 8])).recommended_gpus > 2


def test_who_gained_hardly_anything_by_twice_the_gpus_is_not_told_to_ask_for_more():
    """A step of 0.2 s + 1.05 s a GPU: 4 GPUs do 1.14 times what one does, and 8 would do 1.16 times."""

    def asked(**times):
        cells = [
            {"gpus": int(n[1:]), "nodes": 1 + (n[0] == "n"), "batch_per_gpu": 64, "step_s": step_s}
            for n, step_s in times.items()
        ]
        return advise(cells, NOTHING, Question(worlds=[1, 2, 4, 8, 16]))

    found = asked(g1=1.25, g2=2.30, g3=3.35, g4=4.40)
    assert found.recommended_gpus == 2
    eight = next(offer for offer in found.offers if offer.gpus == 8)
    assert eight.because == "from 2 GPUs to 4, hardly anything was gained"
    (far,) = (each for each in found.findings if each.cause == "far-from-measured")
    assert "The first is 8: from 2 GPUs to 4" in far.message and "mend that first" in far.fix
    # controls: a doubling that gains more; and a second node that gained nothing tells of no third and fourth
    assert asked(g1=1.25, g2=2.30, g4=4.10).recommended_gpus > 4
    assert asked(g1=1.0, g2=1.05, g4=1.1, n8=2.3).recommended_gpus > 8


def test_half_of_the_time_is_used_from_where_it_stays_so():
    """6 GPUs of an erratic job use less than half, 8 and 12 more: then nothing is said `from 6 on`."""

    def said(*times):
        cells = [
            {"gpus": n, "batch_per_gpu": 8, "step_s": t} for n, t in zip((1, 4, 6, 8), times, strict=True)
        ]
        return advise(cells, NOTHING, Question(worlds=[1, 4, 6, 8])).reason

    assert "less than half" not in said(0.4, 0.38, 0.92, 0.58)
    assert "From 6 GPUs on, less than half" in said(0.4, 0.5, 0.92, 0.99)


def test_longer_waits_and_prices_never_recommend_more_through_the_whole_way():
    before = 10**9
    for hours in range(0, 40, 2):
        gpus = advice_for(waits=parse_waits(f"1=2m,4={hours}h")).recommended_gpus
        assert gpus <= before
        before = gpus
    assert before == 1
    before = 10**9
    for price in (0, 0.5, 1, 2, 5, 10, 50, 1000):
        gpus = advice_for(price=Price(gpu_hour=price, hour=50)).recommended_gpus
        assert gpus <= before
        before = gpus
    assert before == 1


def test_both_ways_of_the_batch_are_told():
    noise = NoiseScale(value=128.0, low=100.0, high=200.0)
    found = advice_for(context=replace(NOTHING, noise=noise))
    grown = {offer.gpus: offer for offer in found.of_way("grows")}
    assert grown[4].batch_size == 256
    assert grown[4].examples_factor == (128 + 256) / (128 + 64)
    assert grown[4].num_steps == pytest.approx(60_000 * 2 / 4)
    assert {offer.examples_factor for offer in found.of_way("same")} == {1.0}
    row = found.to_json()["rows"][3]
    assert row["same_batch"]["batch_size"] == 64
    assert row["grows_batch"]["batch_size"] == 256


def test_without_a_noise_scale_nothing_is_claimed():
    said = " ".join(advice_for().remarks)
    assert "noise scale is not known" in said
    noise = NoiseScale(value=128.0, low=None, high=None)
    assert "noise scale" not in " ".join(advice_for(context=replace(NOTHING, noise=noise)).remarks)


def test_a_job_whose_batch_grew_is_judged_as_it_was_measured():
    found = advice_for(Job(way="grows"))
    assert [offer.batch_size for offer in found.offers][:2] == [64, 128]
    assert any("other training" in said for said in found.remarks)
    assert found.to_json()["batch"] == "grows"


def test_a_data_set_too_small_is_said_in_words():
    found = advice_for(context=replace(NOTHING, examples_per_epoch=5120.0))
    finding = next(each for each in found.findings if each.cause == "data-set-too-small")
    assert "On 6 GPUs with a batch of 384, an epoch is 13 steps and 853 examples a GPU" in finding.message
    large = advice_for(context=replace(NOTHING, examples_per_epoch=1e6))
    assert not any(each.cause == "data-set-too-small" for each in large.findings)


def test_more_gpus_than_examples_are_left_out_and_that_is_said():
    question = Question(worlds=WORLDS, length=LENGTH)
    found = advise([each | {"batch_per_gpu": each["batch_per_gpu"] / 8} for each in CELLS], NOTHING, question)
    assert [offer.gpus for offer in found.offers] == [1, 2, 3, 4, 6, 8]
    idle = next(each for each in found.findings if each.cause == "batch-too-small")
    assert idle.evidence["gpus"] == [n for n in WORLDS if n > 8]
    assert not any(each.cause == "batch-too-small" for each in advise(CELLS, NOTHING, question).findings)


def test_nothing_is_said_of_what_was_left_out():
    """A batch of 8: no row is on several nodes or far away, and nothing is said of such."""
    cells = [{"gpus": n, "batch_size": 8, "step_s": s} for n, s in ((2, 0.8), (4, 0.43), (8, 0.245))]
    found = advise(cells, NOTHING, Question(worlds=WORLDS, length=LENGTH))
    assert max(offer.gpus for offer in found.offers) == 8
    assert not any(offer.is_range for offer in found.offers)
    assert not any(each.cause == "far-from-measured" for each in found.findings)
    assert not any("A node is taken to have" in said for said in found.remarks)


def test_findings_of_the_projection_are_kept():
    finding = Finding(cause="host-saturated", message="It is.")
    found = advice_from(Job().rows(), "same", NOTHING, Question(worlds=WORLDS, length=LENGTH), [finding])
    assert finding in found.findings


def test_the_length_of_a_run():
    epochs = replace(
        NOTHING, examples_per_epoch=6400.0, overheads=Overheads(start_s={1: 9.0}, epoch_s={1: 2.0})
    )
    ten = advice_for(context=epochs, length=Length(num_epochs=10)).offers[0]
    assert ten.num_steps == 1000
    assert ten.train_s == pytest.approx(640 + 20)
    by_steps = advice_for(context=epochs, length=Length(num_steps=1000)).offers[0]
    assert by_steps.train_s == pytest.approx(ten.train_s)
    alone = advice_for(length=Length(alone_s=36000.0))
    assert alone.offers[0].train_s == pytest.approx(36000)
    one = advice_for(context=epochs, length=Length())
    assert one.offers[0].num_steps == 100
    assert "one epoch" in one.remarks[0]
    assert "10,000 steps" in advice_for(length=Length()).remarks[0]
    with pytest.raises(ConfigError, match="--epochs 10 was given"):
        advice_for(length=Length(num_epochs=10))


def test_what_would_move_it_is_counted():
    found = advice_for(context=WITH_BARS, waits=parse_waits("1=2m,4=30m,8=6h"))
    saved = {each.name: each.saved for each in found.what_ifs}
    assert saved["faster exchange"] == pytest.approx(0.05 / 0.23)
    assert saved["faster input"] == pytest.approx(0.03 / 0.23)
    assert "more CPU per GPU" not in saved  # it is noise
    rate = (Job().row(4, 64).step_s / 256) / (Job().row(4, 16).step_s / 64)
    assert saved["bigger batch"] == pytest.approx(1 - rate)
    assert [each.saved for each in found.what_ifs] == sorted(saved.values(), reverse=True)
    assert "not known" in next(each.message for each in found.what_ifs if each.name == "bigger batch")


def test_a_bigger_batch_that_needs_more_examples_than_it_saves_is_not_offered():
    noise = NoiseScale(value=1.0, low=0.5, high=2.0)
    found = advice_for(context=replace(WITH_BARS, noise=noise))
    assert "bigger batch" not in {each.name for each in found.what_ifs}


def test_the_limit_is_named_by_the_largest_part():
    offers = advice_for().offers
    assert limit(WITH_BARS, offers) == "From 12 GPUs on, the exchange of gradients costs more than is gained."
    assert limit(NOTHING, offers) == "From 12 GPUs on, further GPUs make training longer."
    even = advice_for(Job(exchange_s=0.0, each_s=0.0)).offers
    assert limit(NOTHING, even) == "Up to 16 GPUs, nothing of a GPU's time is lost."
    assert limit(NOTHING, even[:1]) == ""


def test_json_has_what_the_contract_names():
    found = json.loads(json.dumps(advice_for(price=Price(gpu_hour=2.5, hour=50)).to_json(), allow_nan=False))
    assert {"recommended_gpus", "reason", "rows", "findings"} <= set(found)
    named = {"gpus", "kind", "step_s", "low_s", "high_s", "speedup", "wait_s", "result_s", "cost"}
    assert all(named <= set(row) for row in found["rows"])
    assert [row["gpus"] for row in found["rows"]] == list(WORLDS)
    assert {row["kind"] for row in found["rows"]} == {"measured", "projected"}


def test_context_without_anything():
    assert isinstance(NOTHING, Context)
    assert NOTHING.bars_at(4) is None
    assert exchange_bars().largest.name == "exchange not hidden"


def test_a_range_is_never_recommended_and_called_one():
    near = advice_for(Job(each_s=0.0, farthest=6))
    assert near.recommended_gpus == 4
    # the nearest of them: it is what could be measured next
    assert "6 may take 2.6 h (2.1–3.3), a range and nothing to ask for yet: too far." in near.reason
    assert near.to_json()["rows"][-1]["is_range"]
    assert advice_for(Job(each_s=0.0)).recommended_gpus > 4


CELLS = [
    {"gpus": 1, "batch_per_gpu": 64, "step_s": 0.80},
    {"gpus": 2, "batch_per_gpu": 32, "step_s": 0.43},
    {"gpus": 4, "batch_per_gpu": 16, "step_s": 0.245},
]


def test_from_cells():
    found = advise(CELLS, NOTHING, Question(worlds=(1, 2, 4, 8), length=LENGTH))
    assert [(offer.gpus, offer.kind, offer.step_s) for offer in found.offers[:3]] == [
        (1, "measured", 0.80), (2, "measured", 0.43), (4, "measured", 0.245),
    ]  # fmt: skip
    assert found.offers[3].kind == "projected"
    assert 0.11 < found.offers[3].step_s < 0.245
    grown = found.of_way("grows")
    assert [offer.batch_size for offer in grown] == [64, 128, 256, 512]
    assert all(offer.train_s < same.train_s for offer, same in zip(grown[1:], found.offers[1:], strict=True))


def test_from_cells_whose_batch_grew():
    cells = [{"gpus": n, "batch_per_gpu": 64, "step_s": 0.8 + 0.05 * (n > 1)} for n in (1, 2, 4)]
    found = advise(cells, NOTHING, Question(worlds=(1, 2, 4, 8), length=LENGTH))
    assert found.way == "grows"
    # the same training as on one GPU: with its batch
    assert {offer.batch_size for offer in found.of_way("same")} == {64}
    assert found.offers[2].num_steps == pytest.approx(15_000)


def test_a_cell_of_another_batch_does_not_change_what_became_of_the_batch():
    grown = [{"gpus": n, "batch_per_gpu": 64, "step_s": 0.2 + 0.01 * n} for n in (1, 2, 4, 8)]
    question = Question(worlds=(1, 2, 4, 8), length=LENGTH)
    found = advise([*grown, {"gpus": 1, "batch_per_gpu": 32, "step_s": 0.11}], NOTHING, question)
    assert found.way == "grows"
    assert [offer.batch_size for offer in found.offers] == [64, 128, 256, 512]


def test_a_projection_is_told_to_rest_on_all_that_was_measured():
    shares = [(1, 64, 0.8), (2, 48, 0.66), (4, 40, 0.6)]
    cells = [{"gpus": n, "batch_per_gpu": m, "step_s": s} for n, m, s in shares]
    found = advise(cells, NOTHING, Question(worlds=(1, 2, 4, 8), length=LENGTH))
    assert found.recommendation.expected.kind == "projected"
    assert "projected from 1, 2 and 4" in found.reason


def test_where_gpus_are_paid_for_a_superlinear_offer_is_named():
    # 2 cost 11.5 GPU-hours where 1 costs 10, and 4 cost 9.6: these count as 11.5
    steps = {1: 0.8, 2: 0.46, 4: 0.192}
    cells = [{"gpus": n, "batch_per_gpu": 64 / n, "step_s": s} for n, s in steps.items()]
    question = Question(worlds=(1, 2, 4), length=Length(alone_s=36_000.0), price=Price(gpu_hour=500, hour=50))
    found = advise(cells, NOTHING, question)
    taken, four = found.recommendation.expected, found.offers[-1]
    assert taken.gpus < 4 and four.gpu_hours < taken.gpu_hours
    assert "By the table 4 would be sooner and no dearer" in found.reason
    # without a price it is what is asked for: the control
    free = advise(cells, NOTHING, replace(question, price=None))
    assert free.recommended_gpus == 4 and "By the table" not in free.reason


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(0.2, 2.0), min_size=3, max_size=3),
    st.floats(0, 3600),
    st.floats(0.1, 1000),
)
def test_what_is_said_of_prices_is_so_by_the_table(factors, start_s, gpu_hour):
    """Any speedups, superlinear ones too, and a start that is paid for."""
    step_s = dict(zip((1, 2, 4, 8), accumulate([0.8, *(each / 2 for each in factors)], mul), strict=True))
    cells = [{"gpus": n, "batch_size": 64, "step_s": s} for n, s in step_s.items()]
    context = replace(NOTHING, overheads=Overheads(start_s={1: start_s}, epoch_s={}))
    question = Question(
        worlds=(1, 2, 4, 8), length=Length(alone_s=36_000.0), price=Price(gpu_hour=gpu_hour, hour=50)
    )
    found = advise(cells, context, question)
    by_gpus, taken = {offer.gpus: offer for offer in found.offers}, found.recommendation.expected

    def gain_h(other):
        dearer = (other.gpu_hours - taken.gpu_hours) * gpu_hour / 50
        return (taken.result_s - other.result_s) / 3600 - dearer

    def is_better(other):
        return gain_h(other) > 0.1 * other.result_s / 3600 * (1 + 1e-9)

    named = re.search(r"By the table (\d+) would be", found.reason)
    larger = [offer for offer in found.offers if offer.gpus > taken.gpus]
    assert bool(named) == any(map(is_better, larger))
    if named:
        assert is_better(by_gpus[int(named[1])])
        assert ("no dearer" in found.reason) == (by_gpus[int(named[1])].gpu_hours <= taken.gpu_hours)
    if hardly := re.search(
        r"(\d+) would take [^;]*counted together, that gains less than 10 %", found.reason
    ):
        assert gain_h(by_gpus[int(hardly[1])]) + 1e-9 >= 0 and not is_better(by_gpus[int(hardly[1])])


def test_examples_a_second_without_a_batch_tell_no_step():
    cells = [{"gpus": n, "examples_per_s": rate} for n, rate in ((1, 320), (2, 610), (4, 1150))]
    found = advise(cells, NOTHING, Question(worlds=(1, 2, 4), length=Length(alone_s=36000.0)))
    assert not found.is_step_known and not found.to_json()["is_step_known"]
    assert found.to_json()["rows"][0]["batch_size"] is None and found.others == ()
    # a million examples at 320 a second, where nobody says how long the run is
    usual = advise(cells, NOTHING, Question(worlds=(1, 2, 4)))
    assert usual.offers[0].train_s == pytest.approx(1e6 / 320)
    assert "1,000,000 examples take" in usual.reason
    assert any("no time of a step is" in said for said in usual.remarks)
    with pytest.raises(ConfigError, match="how many examples a step has is not known"):
        advise(cells, NOTHING, Question(worlds=(1, 2, 4), length=LENGTH))
    known = advise([each | {"batch_per_gpu": 8} for each in cells], NOTHING, Question(worlds=(1, 2, 4)))
    assert known.is_step_known


def test_a_batch_smaller_than_all_that_was_measured_is_refused():
    cells = [{"gpus": n, "batch_size": 32, "step_s": s} for n, s in ((48, 0.05), (64, 0.048))]
    with pytest.raises(ConfigError, match=r"less than one example each.*Measure fewer GPUs"):
        advise(cells, NOTHING, Question(worlds=(48, 64)))
    # the control: a batch that grows, told in thousands; only the same one could not be shared
    thousands = [{"gpus": n, "batch_per_gpu": 0.5, "step_s": s} for n, s in ((1, 0.8), (2, 0.82), (4, 0.85))]
    found = advise(thousands, NOTHING, Question(worlds=(1, 2, 4, 8), length=LENGTH))
    assert [offer.gpus for offer in found.offers] == [1, 2, 4, 8] and found.others == ()


def test_from_one_world_nothing_is_projected_and_the_next_cell_is_named():
    with pytest.raises(OneWorld, match=r"Measure \d GPUs") as refused:
        advise(CELLS[:1], NOTHING, Question(worlds=(1, 2, 4, 8)))
    assert refused.value.next_cell.gpus > 1


def test_of_ranges_alone_there_is_nothing_to_ask_for():
    with pytest.raises(ConfigError, match=r"Of 32 GPUs there is nothing to ask for.* Ask about 4 too"):
        advise(CELLS, NOTHING, Question(worlds=(32,)))
    assert advise(CELLS, NOTHING, Question(worlds=(4, 32))).recommended_gpus == 4


def test_fewer_than_were_measured_cannot_be_told():
    with pytest.raises(ConfigError, match="the fewest that were measured are 2"):
        advise(CELLS[1:], NOTHING, Question(worlds=(1,)))
    found = advise(CELLS[1:], NOTHING, Question(worlds=(1, 2, 4, 8), length=LENGTH))
    assert [offer.gpus for offer in found.offers] == [2, 4, 8]
    assert any(each.cause == "no-single-gpu" for each in found.findings)


def test_gpus_that_do_the_same_work_again_are_not_recommended():
    twice = Finding(cause="duplicated-work", message="Each example is trained on 2 times.", fix="shard it")
    found = advice_for(context=replace(NOTHING, duplicated=twice))
    assert (found.recommended_gpus, found.recommendation.careful.gpus) == (1, 1)
    assert found.reason.startswith(
        "Ask for 1 GPU: more would do the same work again. Each example is trained"
    )
    assert found.findings[0] == twice
    assert advice_for().recommended_gpus > 1


def test_marks_of_the_sweep_are_passed_on():
    said = advice_for(context=replace(NOTHING, marks=("busy", "too-noisy"))).remarks
    assert any("marked its comparison: busy, too-noisy" in each for each in said)
    assert not any("marked" in each for each in advice_for().remarks)
