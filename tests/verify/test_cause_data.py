"""Which examples ranks are given."""

from dataclasses import replace

import numpy as np
import pytest
from edits import all_of, change
from judging import found, told
from sharing import all_to_each, shuffled
from tiny import Tiny

from samestep.observed import Batch, Call, Gradient, Group, Loader, Pass, PassEnd
from samestep.verify.causes.data import (
    epoch_not_set,
    repeated_or_dropped,
    same_examples,
    sampler_knows_no_world,
    uneven_steps,
)

NO_ENDS = change(PassEnd, lambda end: None)


def two_orders(number, num_examples, size):
    """On several ranks, each goes through all examples, in an order of its own."""
    if size == 1:
        return shuffled(number, num_examples, size)
    orders = [shuffled(10 * number + rank, num_examples, size) for rank in range(size)]
    a_rank = 8 // size
    return [
        i
        for begin in range(0, num_examples, a_rank)
        for order in orders
        for i in order[begin : begin + a_rank]
    ]


class TestSamplerKnowsNoWorld:
    alone = staticmethod(change(Loader, {"sampler_settings": {"num_replicas": "1", "rank": "0"}}))

    def test_one_that_takes_itself_to_be_alone(self, tmp_path):
        tiny = Tiny(out=tmp_path, share=all_to_each, edit=self.alone)
        finding = told(sampler_knows_no_world, tiny.evidence())
        assert finding.cause == "sampler-knows-no-world"
        assert "DistributedSampler says num_replicas=1" in finding.message
        assert "2 ranks" in finding.message
        assert finding.evidence["where"] == "train.py:10"
        assert "train.py:10" in finding.fix

    def test_names_with_underscores_and_all_on_one_rank_count(self, tmp_path):
        edit = change(Loader, {"sampler_settings": {"_world_size": "2", "_rank": "0"}})
        finding = told(sampler_knows_no_world, Tiny(out=tmp_path, share=all_to_each, edit=edit).evidence(4))
        assert "_world_size=2" in finding.message

    def test_one_that_knows_is_silent(self, tmp_path):
        assert told(sampler_knows_no_world, Tiny(out=tmp_path).evidence()) is None
        assert told(sampler_knows_no_world, Tiny(out=tmp_path / "b", share=all_to_each).evidence()) is None

    def test_so_is_one_whose_examples_are_shared_out_all_the_same(self, tmp_path):
        assert told(sampler_knows_no_world, Tiny(out=tmp_path, edit=self.alone).evidence()) is None

    @pytest.mark.parametrize("settings", [{}, {"size": "large"}, {"size": ""}])
    def test_settings_that_say_nothing_are_passed_over(self, tmp_path, settings):
        edit = change(Loader, {"sampler_settings": settings})
        assert (
            told(sampler_knows_no_world, Tiny(out=tmp_path, share=all_to_each, edit=edit).evidence()) is None
        )

    def test_without_a_group_nothing_is_known(self, tmp_path):
        edit = all_of(self.alone, change(Group, lambda group: None))
        assert (
            told(sampler_knows_no_world, Tiny(out=tmp_path, share=all_to_each, edit=edit).evidence()) is None
        )


class TestSameExamples:
    def test_ranks_that_train_on_the_same(self, tmp_path):
        finding = told(same_examples, Tiny(out=tmp_path, share=all_to_each).evidence())
        assert finding.cause == "same-examples-on-every-rank"
        assert "In step 1, ranks 0 and 1 trained on the same 8 examples" in finding.message
        assert finding.evidence["ranks"] == [0, 1]
        assert finding.evidence["where"] == "train.py:10"
        assert "train.py:10" in finding.fix

    def test_ranks_that_train_on_all_in_other_orders(self, tmp_path):
        tiny = Tiny(out=tmp_path, order=two_orders, num_examples=24)
        finding = told(same_examples, tiny.evidence())
        assert "Every rank goes through the whole data set" in finding.message
        assert finding.evidence["examples_a_rank"] == 24

    def test_passes_that_did_not_end_are_known_by_their_plans(self, tmp_path):
        edit = all_of(NO_ENDS, change(Loader, {"batch_size": 4}), change(Pass, {"num_planned": 6}))
        finding = told(same_examples, Tiny(out=tmp_path, edit=edit).evidence())
        assert finding.evidence["examples_a_rank"] == 24

    @pytest.mark.parametrize(
        "edit",
        [
            change(Loader, {"batch_size": 4}),
            all_of(change(Loader, {"batch_size": 4}), change(Pass, {"num_planned": None})),
            all_of(change(Loader, {"batch_size": None}), change(Pass, {"num_planned": 6})),
            all_of(change(Loader, {"batch_size": 4}), change(Pass, {"num_planned": 3}, size=2)),
        ],
        ids=["other batches", "no length", "no batch size", "half as many"],
    )
    def test_plans_that_say_less_are_not(self, tmp_path, edit):
        # on one rank the plan is for 3 batches of 8 examples
        edit = all_of(NO_ENDS, change(Pass, {"num_planned": 6}, size=1), edit)
        tiny = Tiny(out=tmp_path, edit=edit, batch_size=lambda size: 8)
        assert told(same_examples, tiny.evidence()) is None

    def test_without_a_loader_inputs_tell(self, tmp_path):
        edit = change((Loader, Batch, Pass, PassEnd), lambda row: None)
        finding = told(same_examples, Tiny(out=tmp_path, share=all_to_each, edit=edit).evidence())
        assert "ranks 0 and 1 trained on the same 8 examples" in finding.message
        assert finding.evidence["where"] == ""

    def test_ranks_that_share_them_out_are_silent(self, tmp_path):
        assert told(same_examples, Tiny(out=tmp_path).evidence(4)) is None

    def test_one_example_on_two_ranks_is_chance(self, tmp_path):
        """As of a sampler that draws with replacement."""
        tiny = Tiny(out=tmp_path, order=lambda number, num_examples, size: [0, 1, 2, 3, 0, 4, 5, 6])
        assert told(same_examples, tiny.evidence()) is None

    def test_so_is_a_batch_of_one(self, tmp_path):
        tiny = Tiny(
            out=tmp_path, batch_size=lambda size: 2, num_examples=4,
            order=lambda number, num_examples, size: [0, 0, 1, 2],
        )  # fmt: skip
        assert told(same_examples, tiny.evidence()) is None

    def test_nor_are_parts_that_a_model_takes_by_itself(self, tmp_path):
        """Then ranks have the same inputs, and other gradients."""

        def larger(gradient):
            return replace(gradient, summary=replace(gradient.summary, rms=2 * gradient.summary.rms))

        own = change(Gradient, larger, size=2, rank=1, stage="local")
        cut = all_of(NO_ENDS, change(Pass, {"num_planned": None}), own)
        assert told(same_examples, Tiny(out=tmp_path, share=all_to_each, edit=cut).evidence()) is None
        dropout = all_of(cut, change(Call, {"moved": ("torch",)}, name=""))
        tiny = Tiny(out=tmp_path / "dropout", share=all_to_each, edit=dropout)
        assert told(same_examples, tiny.evidence()) is not None
        noise = all_of(cut, change(Batch, {"moved": ("torch",)}))
        tiny = Tiny(out=tmp_path / "noise", share=all_to_each, edit=noise)
        assert told(same_examples, tiny.evidence()) is not None

    def test_data_sets_that_have_no_sampler_are_told_of_otherwise(self, tmp_path):
        edit = change(Loader, {"is_iterable": True})
        finding = told(same_examples, Tiny(out=tmp_path, share=all_to_each, edit=edit).evidence())
        assert "DistributedSampler" not in finding.message + finding.fix
        assert "every N-th example" in finding.fix

    def test_it_is_not_told_where_the_sampler_is_to_blame(self, tmp_path):
        evidence = Tiny(out=tmp_path, share=all_to_each).evidence()
        evidence.found.append(found("sampler-knows-no-world"))
        assert told(same_examples, evidence) is None


class TestUnevenSteps:
    more = staticmethod(change(PassEnd, {"num_batches": 4}, rank=1, size=2, loader=0, number=2))

    def test_passes_of_other_lengths(self, tmp_path):
        finding = told(uneven_steps, Tiny(out=tmp_path, edit=self.more).evidence())
        assert finding.cause == "uneven-steps"
        assert finding.message == "In pass 2 ranks have 3 and 4 batches: they do not take the same steps."
        assert finding.evidence["batches"] == {0: 3, 1: 4}
        assert finding.evidence["where"] == "train.py:10"

    @pytest.mark.parametrize("status", ["stalled", "failed"])
    def test_those_with_more_wait_for_ever(self, tmp_path, status):
        tiny = Tiny(out=tmp_path, edit=self.more, endings={"candidate": {"status": status}})
        assert "wait for ever" in told(uneven_steps, tiny.evidence()).message

    def test_passes_that_did_not_end_are_known_by_their_plans(self, tmp_path):
        edit = all_of(NO_ENDS, change(Pass, {"num_planned": 4}, rank=1, size=2, loader=0))
        evidence = Tiny(out=tmp_path, edit=edit).evidence()
        assert told(uneven_steps, evidence) is None  # it came to its end all the same
        evidence.candidate_run = replace(evidence.candidate_run, status="stalled")
        assert "In pass 1 ranks have 3 and 4 batches" in told(uneven_steps, evidence).message

    @pytest.mark.parametrize(
        "edit",
        [
            lambda row, rank, size: row,
            change(PassEnd, {"num_batches": 4}, rank=1, loader=1),
            change(PassEnd, {"num_batches": 2, "is_exhausted": False}, rank=1, size=2),
            change(Pass, {"num_planned": None}, rank=1),
        ],
        ids=["even", "of an evaluation", "left early", "without a length"],
    )
    def test_others_are_silent(self, tmp_path, edit):
        assert told(uneven_steps, Tiny(out=tmp_path, edit=edit, metric="merged").evidence()) is None

    def test_copies_that_know_nothing_of_each_other_may_do_as_they_like(self, tmp_path):
        evidence = Tiny(out=tmp_path, edit=self.more).evidence()
        evidence.found.append(found("world-ignored"))
        assert told(uneven_steps, evidence) is None


def one_order(number, num_examples, size):
    return shuffled(7, num_examples, size)


class TestEpochNotSet:
    def test_a_shuffle_that_stays_the_same(self, tmp_path):
        finding = told(epoch_not_set, Tiny(out=tmp_path, order=one_order).evidence())
        assert finding.cause == "epoch-not-set"
        assert "Pass 2 has the examples in the order of pass 1: DistributedSampler" in finding.message
        assert finding.evidence["first_indices"] == one_order(1, 24, 1)[:4] + one_order(1, 24, 1)[8:12]
        assert finding.evidence["where"] == "train.py:10"

    def test_a_second_pass_that_is_not_over_tells_as_well(self, tmp_path):
        """Of steps that are not written in full there are some batches only: they are compared by place."""
        later = [2]  # of the second pass, the batch in the middle was not written down

        def edit(each, rank, size):
            return None if isinstance(each, Batch) and each.number == 2 and each.batch in later else each

        assert told(epoch_not_set, Tiny(out=tmp_path, order=one_order, edit=edit).evidence())
        later.extend(range(100))
        assert told(epoch_not_set, Tiny(out=tmp_path / "none", order=one_order, edit=edit).evidence()) is None

    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"order": one_order, "num_passes": 1},
            {"order": one_order, "edit": change(Loader, {"has_set_epoch": False})},
            {"order": lambda number, num_examples, size: list(range(num_examples))},
            {"order": one_order, "edit": change(Batch, {"indices": None})},
        ],
        ids=["set", "one pass", "no such sampler", "no shuffle", "unknown"],
    )
    def test_others_are_silent(self, tmp_path, settings):
        assert told(epoch_not_set, Tiny(out=tmp_path, **settings).evidence()) is None

    def test_so_is_one_that_was_told_and_does_not_care(self, tmp_path):
        edit = change(Pass, lambda row: replace(row, sampler_settings={"epoch": str(row.number)}))
        assert told(epoch_not_set, Tiny(out=tmp_path, order=one_order, edit=edit).evidence()) is None


def padded(number, num_examples, size):
    order = shuffled(number, num_examples, size)
    return order + order[: -num_examples % size]


def dropped(number, num_examples, size):
    order = shuffled(number, num_examples, size)
    return order[: num_examples - num_examples % size]


class TestRepeatedOrDropped:
    def test_padding(self, tmp_path):
        finding = told(repeated_or_dropped, Tiny(out=tmp_path, num_examples=22, order=padded).evidence(4))
        assert finding.cause == "examples-repeated"
        assert "Pass 1 on 4 ranks has 24 examples and on one rank 22: 2 come twice" in finding.message
        assert finding.evidence["repeated"] == [str(i) for i in shuffled(1, 22, 1)[:2]]
        assert finding.evidence["where"] == "train.py:10"

    def test_a_tail_that_is_left_out(self, tmp_path):
        finding = told(repeated_or_dropped, Tiny(out=tmp_path, num_examples=22, order=dropped).evidence(4))
        assert finding.cause == "examples-dropped"
        assert "has 20 examples and on one rank 22: 2 are left out" in finding.message
        assert finding.evidence["missing"] == [str(i) for i in shuffled(1, 22, 1)[-2:]]

    def test_as_many_of_which_some_come_twice(self, tmp_path):
        def wrong(number, num_examples, size):
            order = shuffled(number, num_examples, size)
            return order if size == 1 else [*order[:-1], order[0]]

        finding = told(repeated_or_dropped, Tiny(out=tmp_path, order=wrong).evidence())
        assert "has 24 examples and on one rank 24: 1 come twice" in finding.message

    def test_another_order_is_none(self, tmp_path):
        def other(number, num_examples, size):
            return shuffled(number + 100 * size, num_examples, size)

        assert told(repeated_or_dropped, Tiny(out=tmp_path, order=other).evidence()) is None

    def test_draws_with_replacement_may_repeat(self, tmp_path):
        def drawn(number, num_examples, size):
            random = np.random.default_rng((number, size))
            return [int(i) for i in random.integers(0, num_examples, num_examples)]

        assert told(repeated_or_dropped, Tiny(out=tmp_path, order=drawn).evidence()) is None

    def test_an_even_data_set_is_not_padded(self, tmp_path):
        assert told(repeated_or_dropped, Tiny(out=tmp_path, order=padded).evidence(4)) is None

    def test_parts_with_indices_of_their_own_are_counted_only(self, tmp_path):
        edit = all_of(change(PassEnd, {"multiset": None}, size=2), change(Batch, {"indices": None}, size=2))
        assert told(repeated_or_dropped, Tiny(out=tmp_path, edit=edit).evidence()) is None

    def test_passes_whose_examples_nobody_counted_are_passed_over(self, tmp_path):
        edit = change(PassEnd, {"num_examples": None, "multiset": None}, rank=1)
        tiny = Tiny(out=tmp_path, num_examples=22, order=padded, edit=edit)
        assert told(repeated_or_dropped, tiny.evidence(4)) is None

    def test_so_are_loaders_that_nobody_described(self, tmp_path):
        tiny = Tiny(out=tmp_path, num_examples=22, order=padded, edit=change(Loader, lambda row: None))
        assert told(repeated_or_dropped, tiny.evidence(4)) is None

    @pytest.mark.parametrize(
        "total, cause",
        [("26", "examples-repeated"), ("22", "examples-dropped"), ("24", None), ("many", None), (None, None)],
    )
    def test_a_sampler_says_what_it_will_do(self, tmp_path, total, cause):
        settings = {} if total is None else {"total_size": total}
        edit = all_of(NO_ENDS, change(Loader, {"sampler_settings": settings}))
        finding = told(repeated_or_dropped, Tiny(out=tmp_path, edit=edit).evidence())
        assert (finding and finding.cause) == cause
        if finding:
            assert f"makes {total} examples of the 24" in finding.message
            assert "2 come twice" in finding.message or "2 are left out" in finding.message

    def test_it_is_not_told_where_ranks_have_the_same_examples(self, tmp_path):
        evidence = Tiny(out=tmp_path, share=all_to_each).evidence()
        evidence.found.append(found("same-examples-on-every-rank"))
        assert told(repeated_or_dropped, evidence) is None


def test_a_trace_without_a_training_loader_says_nothing(tmp_path):
    tiny = Tiny(out=tmp_path, edit=change(Call, lambda call: None))
    evidence = tiny.evidence()
    for rule in (sampler_knows_no_world, same_examples, uneven_steps, epoch_not_set, repeated_or_dropped):
        assert told(rule, evidence) is None
