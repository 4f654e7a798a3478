"""Numbers that a program says after an evaluation."""

from dataclasses import replace

import pytest
from edits import all_of, change
from judging import found, told
from rows import row
from tiny import Tiny

from samestep.experiment import Experiment, pass_key
from samestep.observations import multiset_print
from samestep.observed import Batch, Call, End, PassEnd, Said, State, Step
from samestep.verify.causes.metrics import evaluation, is_of_evaluation


def starved(tiny, evidence, rank):
    """The counterpart, in which a rank evaluates one of its examples again and again."""
    batches = {}
    for batch in evidence.pair.counterpart.ranks[rank].batches:
        if batch.loader == 1:
            key = pass_key(1, batch.number, rank)
            batches[key] = (*batches.get(key, ()), (batch.indices[0],) * len(batch.indices))
    return tiny.trace(2, Experiment(batches=batches))


def judged(tiny, has_starved=True):
    evidence = tiny.paired()
    if has_starved:
        evidence.starved = starved(tiny, evidence, 1)
        evidence.starved_first = starved(tiny, evidence, 0)
    return told(evaluation, evidence)


class TestCauses:
    def test_of_one_rank(self, tmp_path):
        finding = judged(Tiny(out=tmp_path, metric="first"))
        assert finding.cause == "metric-of-one-rank"
        assert "“epoch # validation error #” after step 3 says" in finding.message
        said = finding.evidence
        assert f"{said['candidate']:g} on 2 ranks and {said['reference']:g} on one" in finding.message
        assert (said["step"], said["where"]) == (3, "train.py:30")
        assert said["examples"] == {0: 5, 1: 6}
        assert "train.py:30" in finding.fix

    def test_updated_on_one_rank(self, tmp_path):
        finding = judged(Tiny(out=tmp_path, metric="kept"))
        assert finding.cause == "metric-updated-on-one-rank"
        assert "does not change when the other ranks evaluate other examples" in finding.message
        assert "update the metric on every rank" in finding.fix

    def test_averaged_without_counts(self, tmp_path):
        finding = judged(Tiny(out=tmp_path, metric="averaged"))
        assert finding.cause == "metric-averaged-without-counts"
        assert "ranks evaluate 5 and 6 examples" in finding.message

    def test_merged_wrongly(self, tmp_path):
        """With as many examples on each rank there is nothing wrong with their counts."""
        wrong = change(Said, lambda s: replace(s, numbers=(s.numbers[0], s.numbers[1] * 1.5)), size=2)
        finding = judged(Tiny(out=tmp_path, metric="merged", num_evaluated=12, edit=wrong))
        assert finding.cause == "metric-merged-wrongly"
        assert "does not add up to what one rank finds" in finding.message

    @pytest.mark.parametrize(
        "drawn, cause",
        [
            (("one", "two"), "metric-merged-wrongly"),
            (("one", "one"), "same-randomness-on-every-rank"),
        ],
        ids=["by rank", "alike"],
    )
    def test_evaluated_on_the_same_inputs(self, tmp_path, drawn, cause):
        """The model is not given the examples themselves, but something that each rank draws for them."""

        def drawing(each, rank, size):
            if isinstance(each, Batch) and each.loader == 1:
                call = row(Call, step=each.step, name="", is_training=False, rows=(drawn[rank],))
                return [each, call]
            return each

        wrong = change(Said, lambda s: replace(s, numbers=(s.numbers[0], s.numbers[1] * 1.5)), size=2)
        edit = all_of(wrong, drawing)
        finding = judged(Tiny(out=tmp_path, metric="merged", num_evaluated=12, edit=edit))
        assert finding.cause == cause
        assert ("ranks 0 and 1 have different examples" in finding.message) == (drawn[0] == drawn[1])

    def test_without_the_experiment_nobody_knows_whose_examples_count(self, tmp_path):
        finding = judged(Tiny(out=tmp_path, metric="kept"), has_starved=False)
        assert finding.cause == "metric-averaged-without-counts"

    def test_padded(self, tmp_path):
        def again(each, rank, size):
            if size == 2 and rank == 0 and isinstance(each, PassEnd) and each.loader == 1:
                return replace(each, num_examples=6, multiset=multiset_print([0, 1, 2, 3, 4, 0]))
            if size == 2 and rank == 0 and isinstance(each, Batch) and each.loader == 1 and each.batch == 2:
                return replace(each, indices=(*each.indices, 0), num_examples=3)
            return each

        finding = judged(Tiny(out=tmp_path, metric="averaged", edit=again))
        assert finding.cause == "evaluation-padded"
        assert (
            "Evaluation pass 1 on 2 ranks has 12 examples and on one rank 11: 1 come twice" in finding.message
        )
        assert ", such as number 0" in finding.message
        assert finding.evidence["where"] == "train.py:11"

    def test_cut_short(self, tmp_path):
        short = change(PassEnd, {"num_examples": 4, "multiset": 1}, size=2, rank=0, loader=1)
        finding = judged(Tiny(out=tmp_path, metric="averaged", edit=short))
        assert finding.cause == "evaluation-padded"
        assert "1 are left out" in finding.message


class TestSilence:
    def test_numbers_that_are_right(self, tmp_path):
        assert judged(Tiny(out=tmp_path, metric="merged")) is None
        assert judged(Tiny(out=tmp_path / "none")) is None

    def test_without_a_pair_nothing_is_known(self, tmp_path):
        assert told(evaluation, Tiny(out=tmp_path, metric="first").evidence()) is None

    def test_an_experiment_that_says_something_else_tells_nothing(self, tmp_path):
        tiny = Tiny(out=tmp_path, metric="kept")
        evidence = tiny.paired()
        tiny.edit = change(Said, lambda said: None)
        evidence.starved = starved(tiny, evidence, 1)
        assert told(evaluation, evidence).cause == "metric-averaged-without-counts"

    def test_padding_that_does_no_harm(self, tmp_path):
        more = change(PassEnd, {"num_examples": 6, "multiset": 1}, size=2, loader=1)
        assert judged(Tiny(out=tmp_path, metric="merged", edit=more)) is None

    def test_numbers_of_other_weights(self, tmp_path):
        assert judged(Tiny(out=tmp_path, metric="first", reduction="sum"), has_starved=False) is None

    def test_numbers_after_a_difference_in_weights(self, tmp_path):
        late = change(
            State, lambda s: replace(s, summary=replace(s.summary, mean=9.0)), size=2, name="fc.bias", step=2
        )
        assert judged(Tiny(out=tmp_path, metric="first", edit=late), has_starved=False) is None

    def test_a_learning_rate_does_not_explain_it(self, tmp_path):
        rate = change(Step, {"weight_decay": (1.0,)}, size=2, step=2)
        assert judged(Tiny(out=tmp_path, metric="first", edit=rate)).cause == "metric-of-one-rank"

    @pytest.mark.parametrize("cause", ["average-updated-on-one-rank", "metric-overwritten"])
    def test_what_is_explained_is_not_told_again(self, tmp_path, cause):
        evidence = Tiny(out=tmp_path, metric="first").paired()
        evidence.found.append(found(cause))
        assert told(evaluation, evidence) is None


class TestIsOfEvaluation:
    """Numbers of training, that are printed beside, do not change with what is evaluated."""

    @staticmethod
    def tried(tiny, ranks=(0, 1)):
        evidence = tiny.paired()
        if 1 in ranks:
            evidence.starved = starved(tiny, evidence, 1)
        if 0 in ranks:
            evidence.starved_first = starved(tiny, evidence, 0)
        return is_of_evaluation(evidence, evidence.pair.comparison.first_of("metric"))

    @pytest.mark.parametrize("metric", ["first", "kept", "averaged"])
    def test_a_metric_is(self, tmp_path, metric):
        assert self.tried(Tiny(out=tmp_path, metric=metric)) is True

    def test_a_number_beside_it_is_not(self, tmp_path):
        beside = change(Said, lambda said: replace(said, numbers=(said.numbers[0], 9.5)), size=2)
        assert self.tried(Tiny(out=tmp_path, metric="merged", edit=beside)) is False

    @pytest.mark.parametrize("ranks", [(), (0,), (1,)])
    def test_nobody_knows_what_was_not_tried(self, tmp_path, ranks):
        assert self.tried(Tiny(out=tmp_path, metric="first"), ranks) is None

    def test_nor_of_anything_else(self, tmp_path):
        evidence = Tiny(out=tmp_path, reduction="sum").paired()
        assert is_of_evaluation(evidence, evidence.pair.comparison.first) is None


class TestExchange:
    """Whether ranks told each other anything is seen between the evaluation and the training after it."""

    def test_one_after_the_last_step_is_seen_too(self, tmp_path):
        tiny = Tiny(out=tmp_path, metric="averaged", num_passes=1)
        assert judged(tiny).cause == "metric-averaged-without-counts"

    def test_one_before_the_evaluation_is_another(self, tmp_path):
        def early(row):
            names = row.events if isinstance(row, Step) else row.events_after
            moved = tuple(e for e in names if e.name == "all_reduce")
            made = moved + tuple(e for e in names if e.name != "all_reduce")
            return replace(row, **{"events" if isinstance(row, Step) else "events_after": made})

        tiny = Tiny(out=tmp_path, metric="averaged", edit=change((Step, End), early))
        assert judged(tiny).cause == "metric-of-one-rank"

    def test_without_word_of_an_evaluation_any_counts(self, tmp_path):
        def nameless(row):
            kept = tuple(e for e in row.events if e.name != "evaluation")
            return replace(row, events=kept)

        tiny = Tiny(out=tmp_path, metric="averaged", edit=change(Step, nameless))
        assert judged(tiny).cause == "metric-averaged-without-counts"


def test_a_line_that_nobody_knows_is_left_out(tmp_path):
    edit = all_of(change(Said, {"where": ""}))
    finding = judged(Tiny(out=tmp_path, metric="first", edit=edit))
    assert finding.evidence["where"] == ""
    assert "()" not in finding.fix
