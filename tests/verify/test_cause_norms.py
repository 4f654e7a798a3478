"""Layers and metrics that keep numbers about their batch."""

from dataclasses import replace

import numpy as np
import pytest
from edits import all_of, change
from judging import found, told
from rows import DDP, row, summary
from tiny import Tiny

from samestep.observed import Call, Layer, Machine, Model, State, Statistic
from samestep.verify.causes.norms import differing_buffers, not_synchronised, overwritten

NO_BUFFERS = all_of(change(Statistic, lambda row: None), change(State, lambda row: None, role="buffer"))


def of_kind(kind):
    """The norm layer is of another kind."""
    return all_of(
        change((Statistic, Call), {"kind": kind}, name="norm"),
        change(Model, {"norms": (row(Layer, kind=kind),)}),
    )


def on(device):
    """The model runs on a device."""
    return change(Model, lambda model: [row(Machine, device=device), model])


class TestNotSynchronised:
    def test_one_that_sees_its_own_rank(self, tmp_path):
        evidence = Tiny(out=tmp_path, norm="local").paired()
        finding = told(not_synchronised, evidence)
        assert finding.cause == "norm-not-synchronised"
        assert finding.message.startswith("BatchNorm1d norm normalises with the examples of its own rank")
        assert "which hides it" in finding.message
        assert finding.evidence == {
            "layers": ["norm (BatchNorm1d)"],
            "collectives_in_forward": 0,
            "first_difference": "step 1, forward norm",
        }

    @pytest.mark.parametrize(
        ("device", "named", "not_named"),
        [
            ("cpu", "samestep.nn.synchronise", "convert_sync_batchnorm"),
            ("cuda:0", "convert_sync_batchnorm", "samestep.nn.synchronise"),
        ],
    )
    def test_the_fix_is_one_that_the_device_allows(self, tmp_path, device, named, not_named):
        tiny = Tiny(out=tmp_path, norm="local", edit=on(device))
        fix = told(not_synchronised, tiny.paired()).fix
        assert named in fix
        assert not_named not in fix

    def test_it_is_seen_without_a_pair(self, tmp_path):
        finding = told(not_synchronised, Tiny(out=tmp_path, norm="local").evidence())
        assert finding.evidence["first_difference"] is None

    def test_more_of_them_are_counted(self, tmp_path):
        def edit(each, rank, size):
            if isinstance(each, Statistic):
                return [each, replace(each, name="norm2", buffers=("norm2.running_mean",))]
            if isinstance(each, State) and each.role == "buffer":
                return [each, replace(each, name="norm2.running_mean")]
            return each

        finding = told(not_synchronised, Tiny(out=tmp_path, norm="local", edit=edit).paired())
        assert "BatchNorm1d norm and 1 more normalise with the examples of their own rank" in finding.message

    def test_one_that_claims_to_be_synchronised(self, tmp_path):
        tiny = Tiny(out=tmp_path, norm="local", edit=of_kind("MinkowskiSyncBatchNorm"))
        finding = told(not_synchronised, tiny.paired())
        assert finding.cause == "sync-norm-is-local"
        assert "nothing is exchanged in a training step" in finding.message
        assert "when it runs, not when it is made" in finding.fix

    @pytest.mark.parametrize("kind", ["FieldNorm", "IIDBatchNorm2d"])
    def test_one_that_is_written_by_hand(self, tmp_path, kind):
        finding = told(not_synchronised, Tiny(out=tmp_path, norm="local", edit=of_kind(kind)).paired())
        assert finding.cause == "norm-not-synchronised"
        assert "converters know torch's own layers only" in finding.fix
        assert "convert_sync_batchnorm" not in finding.fix  # it would pass over the layer in silence

    def test_one_that_only_keeps_statistics_does_not_use_them(self, tmp_path):
        tiny = Tiny(out=tmp_path, norm="local", edit=of_kind("InstanceNorm2d"))
        message = told(not_synchronised, tiny.paired()).message
        assert "InstanceNorm2d norm keeps statistics of the examples of its own rank" in message

    def test_without_a_broadcast_nothing_is_hidden(self, tmp_path):
        tiny = Tiny(out=tmp_path, norm="local", edit=change(Model, {"wraps": ()}))
        assert "hides" not in told(not_synchronised, tiny.paired()).message

    def test_one_without_statistics_is_found_by_the_forward_pass(self, tmp_path):
        finding = told(not_synchronised, Tiny(out=tmp_path, norm="local", edit=NO_BUFFERS).paired())
        assert finding.evidence["layers"] == ["norm (BatchNorm1d)"]

    def test_a_second_model_has_its_own_layers(self, tmp_path):
        edit = all_of(NO_BUFFERS, change((Model, Call, State), {"model": 1}))
        finding = told(not_synchronised, Tiny(out=tmp_path, norm="local", edit=edit).paired())
        assert finding.evidence["first_difference"] == "step 1, forward model1.norm"

    @pytest.mark.parametrize("kind", ["LayerNorm", "GroupNorm", "RMSNorm", "InstanceNorm2d"])
    def test_one_that_knows_no_batch_is_not_to_blame(self, tmp_path, kind):
        tiny = Tiny(out=tmp_path, norm="local", edit=all_of(of_kind(kind), NO_BUFFERS))
        assert told(not_synchronised, tiny.paired()) is None

    def test_one_that_is_synchronised_is_silent(self, tmp_path):
        assert told(not_synchronised, Tiny(out=tmp_path, norm="global").paired()) is None

    def test_so_is_one_after_the_place_of_the_difference(self, tmp_path):
        tiny = Tiny(out=tmp_path, norm="global", reduction="sum", edit=NO_BUFFERS)
        assert told(not_synchronised, tiny.paired()) is None

    def test_and_a_model_without_norms(self, tmp_path):
        assert told(not_synchronised, Tiny(out=tmp_path, reduction="sum").paired()) is None
        assert told(not_synchronised, Tiny(out=tmp_path).evidence()) is None

    @pytest.mark.parametrize("cause", ["world-ignored", "parameter-order-differs"])
    def test_what_is_explained_is_not_told_again(self, tmp_path, cause):
        evidence = Tiny(out=tmp_path, norm="local").paired()
        evidence.found.append(found(cause))
        assert told(not_synchronised, evidence) is None


def counted(name="seen.correct", by_rank=True, kind=None):
    """An edit: the model counts in a buffer."""

    def edit(each, rank, size):
        if isinstance(each, State) and each.name == "fc.bias":
            value = each.step * (1.0 + rank * by_rank)
            told = summary(np.float32([value]), name)
            return [each, replace(each, name=name, role="buffer", summary=told)]
        if isinstance(each, Model) and kind is not None:
            return replace(each, norms=(row(Layer, name="seen", kind=kind),))
        return each

    return edit


class TestOverwritten:
    def test_what_ranks_counted_is_lost(self, tmp_path):
        finding = told(overwritten, Tiny(out=tmp_path, edit=counted()).paired())
        assert finding.cause == "metric-overwritten"
        assert "The buffer seen.correct differs between ranks after step 1" in finding.message
        assert finding.evidence == {"buffer": "seen.correct", "step": 1}

    def test_buffers_that_are_mixed_up_count_nothing(self, tmp_path):
        evidence = Tiny(out=tmp_path, edit=counted()).paired()
        evidence.found.append(found("parameter-order-differs"))
        assert told(overwritten, evidence) is None

    @pytest.mark.parametrize(
        "edit",
        [
            counted(by_rank=False),
            all_of(counted(), change(Model, {"wraps": ()})),
            all_of(
                counted(), change(Model, {"wraps": (replace(DDP, settings={"broadcast_buffers": "False"}),)})
            ),
            counted("seen.running_var"),
            counted(kind="CustomNorm"),
        ],
        ids=["the same", "no wrap", "no broadcast", "a statistic", "of a norm"],
    )
    def test_others_are_silent(self, tmp_path, edit):
        assert told(overwritten, Tiny(out=tmp_path, edit=edit).paired()) is None

    def test_so_are_norms(self, tmp_path):
        tiny = Tiny(out=tmp_path, norm="local")
        evidence = tiny.paired()
        assert differing_buffers(evidence.candidate) == {(0, "norm.running_mean"): 1}
        assert told(overwritten, evidence) is None

    def test_the_wrap_of_another_model_does_not_matter(self, tmp_path):
        def edit(each, rank, size):
            if isinstance(each, Model):
                return [replace(each, wraps=()), replace(each, model=1)]
            return each

        assert told(overwritten, Tiny(out=tmp_path, edit=all_of(counted(), edit)).paired()) is None
