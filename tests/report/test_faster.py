"""The answer of a sweep in a sentence."""

import pytest
from sweeps import JOB, SLOW, sweep_json

from samestep.report.faster import answer
from samestep.report.sweep import Sweep
from scale.synthetic import Job


def said(value=None, **asked):
    return answer(Sweep.model_validate(value or sweep_json(**asked)))


def only(speedup, low, high, **more):
    """A sweep of one and two GPUs with that speedup."""
    value = sweep_json(worlds=(1, 2), rounds=1) | {"gaps": []} | more
    value["cells"][1] |= {"speedup": speedup, "speedup_low": low, "speedup_high": high}
    return value


def test_it_names_every_number_of_gpus_and_what_takes_most():
    found = said()
    assert found.is_good and found.title.endswith(" times as fast")
    assert found.sentence.startswith("2 GPUs are 1.4") and ", 4 GPUs 2.1" in found.sentence
    assert "; on 4 GPUs most of the missing speed goes to the exchange that is not hidden (" in found.sentence


@pytest.mark.parametrize(
    ("speedup", "title", "words", "is_good"),
    [
        ((1.42, 1.38, 1.47), "1.42 times as fast", "2 GPUs are 1.42 times as fast as one (1.38–1.47).", True),
        ((1.02, 0.97, 1.06), "No clear gain", "not clearly faster than one: 1.02 times", None),
        ((0.84, 0.80, 0.88), "Not faster", "not faster than one: 0.84 times as fast (0.80–0.88).", False),
        ((0.98, 0.96, 1.00), "Not faster", "not faster than one", False),
    ],
)
def test_the_interval_decides(speedup, title, words, is_good):
    found = said(only(*speedup))
    assert (found.title, found.is_good) == (title, is_good) and words in found.sentence


def test_the_batch_is_named_where_there_are_several():
    assert said(batches=(16, 64)).sentence.startswith("At batch 64, 2 GPUs are")
    weak = said(batches=(16, 64), is_weak=True).sentence
    assert weak.startswith("With 64 examples on each GPU, ") and weak.endswith("other training than on one.")


def test_work_that_is_done_twice_is_no_speedup():
    twice = said(sweep_json(Job(drawn=lambda world: 10_000 * world), worlds=(1, 2)))
    assert twice.title == "Not comparable" and "20,000 examples in a pass over 10,000" in twice.sentence


def test_a_gap_in_one_piece_is_not_called_noise():
    job = Job(exchange_s=1e-2, failing=("silent-2x32",))
    assert said(sweep_json(job, worlds=(1, 2))).sentence.endswith(
        "; what takes the missing speed is not told apart."
    )


@pytest.mark.parametrize(
    ("job", "where"),
    [
        (Job(sharing_s=5e-3), "sharing the host"),
        (Job(fixed_s=1e-2), "the smaller batch on each GPU"),
        (Job(exchange_s=1e-2), "the exchange that is not hidden"),
        (Job(norms_s=1e-2), "synchronised norms"),
        (Job(late_s={1: 1e-2}), "waiting for the slowest rank"),
    ],
)
def test_each_cause_is_named_where_it_is_the_one(job, where):
    assert f"most of the missing speed goes to {where} (" in said(sweep_json(job)).sentence


def test_noise_is_never_named_as_a_cause_and_nothing_missing_is_said():
    value = sweep_json(JOB)
    for part in value["gaps"][-1]["parts"]:
        part |= {"low": -1.0, "high": 1.0}
    assert "cannot be told from noise" in said(value).sentence
    value["cells"][2] |= {"speedup": 4.1, "speedup_high": 4.2}
    assert "nothing is missing" in said(value).sentence
    value["cells"][2] |= {"speedup": 2.0, "speedup_high": 4.2}
    assert "whether speed is missing cannot be told from noise" in said(value).sentence


def test_without_a_comparison_the_reason_is_told():
    refusal = {"mark": "other-device", "reason": "The devices differ.", "is_refusal": True}
    found = said(only(None, None, None, fairness=[refusal]))
    assert found.title == "Not comparable" and "The devices differ." in found.sentence
    value = only(None, None, None)
    value["cells"][1] |= {"status": "failed", "reason": "out of memory", "marks": []}
    found = said(value | {"fairness": []})
    assert found.title == "Not measured" and "2 GPUs at batch 32: out of memory." in found.sentence
    assert said(sweep_json(SLOW)).is_good is False
