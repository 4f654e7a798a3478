"""The judgement of a run under way: each finding on rows that show it, and none on rows that do not."""

import json
import math
import tracemalloc
from dataclasses import replace

import pytest

from samestep.observations import (
    FORMAT,
    MOST_BYTES,
    Observations,
    ObservationWriter,
    encode,
    multiset_print,
    observations_path,
)
from samestep.observed import (
    VERSION,
    Batch,
    End,
    Layer,
    Loader,
    Loss,
    Model,
    PassEnd,
    Replica,
    Start,
    Step,
)
from samestep.phase import Phase
from samestep.probe.cheap_parts import differing_parts, part_bounds
from samestep.record import is_kept
from samestep.verify import tailing
from samestep.verify.online import Online, OnlineJudge
from samestep.verify.online_loaders import whole_multiset


def start(rank=0, size=2, attempt=0):
    return Start(
        format=FORMAT, version=VERSION, samestep="0", rank=rank, world_size=size, attempt=attempt, program=(),
        steps_in_full=0, most_bytes=MOST_BYTES, python="3", host="", pid=0, time=0.0,
    )  # fmt: skip


def step(number):
    return Step(
        step=number, optimizer=0, is_full=False, lr=(0.1,), weight_decay=(0.0,), num_forward=0,
        num_backward=1, num_scheduler_steps=0, scale=None, num_skipped=0, clips=(), collectives=(),
        events=(), phases_s={},
    )  # fmt: skip


def loader(num_examples=100, sampler="DistributedSampler", contents="c", number=0, **more):
    settings = {
        "dataset": "Data", "is_iterable": False, "sampler_settings": {}, "batch_sampler": "BatchSampler",
        "batch_size": 10, "drop_last": False, "num_workers": 0, "is_in_order": True, "has_generator": False,
        "has_worker_init": False, "where": "train.py:9", "num_drawn": num_examples,
    }  # fmt: skip
    return Loader(
        loader=number, num_examples=num_examples, sampler=sampler, contents=contents, **settings | more
    )


def batch(at, indices, number=1, of=0, tensors=()):
    count = None if indices is None else len(indices)
    return Batch(
        step=at, loader=of, number=number, batch=1, indices=indices and tuple(indices), num_examples=count,
        print="", tensors=tensors, examples=(),
    )  # fmt: skip


def loss(at, value=1.0):
    return Loss(step=at, number=1, value=value, dtype="float32", num_elements=1)


def pass_end(indices, number=1, at=10, of=0, is_exhausted=True):
    return PassEnd(
        step=at, loader=of, number=number, num_batches=1, num_examples=len(indices),
        multiset=multiset_print(indices), is_exhausted=is_exhausted,
    )  # fmt: skip


def replica(at, print, parts="aaaabbbbcccc"):
    return Replica(step=at, model=0, print=print, parts=parts)


def end(num_steps, status="finished"):
    return End(status=status, exit_code=0 if status == "finished" else 1, num_steps=num_steps)


MODEL = Model(
    step=1, model=0, kind="Net", wraps=(), dropouts=(),
    norms=(Layer(name="bn", kind="BatchNorm1d", keeps_statistics=True),),
    tensors=("fc.weight float32 (2, 2) gradient", "bn.weight float32 (2,) gradient",
                          "bn.running_mean float32 (2,)"),
)  # fmt: skip


def told(judge, *rows_of_ranks):
    """What a judge says to the rows of ranks 0, 1, …, which come by turns."""
    found = []
    for i in range(max(map(len, rows_of_ranks))):
        for rank, rows in enumerate(rows_of_ranks):
            if i < len(rows):
                found += judge.take(rank, rows[i])
    return found


def causes(findings):
    return [finding.cause for finding in findings]


class TestReplicas:
    def test_equal_ones_are_no_finding(self):
        rows = [MODEL, replica(1, "p"), replica(50, "q")]
        assert told(OnlineJudge(2), rows, rows) == []

    def test_the_rank_the_step_and_the_tensor_are_named(self):
        good = [MODEL, replica(1, "p"), replica(50, "q"), replica(100, "r")]
        bad = [MODEL, replica(1, "p"), replica(50, "x", "aaaaddddcccc"), replica(100, "y", "eeeeddddffff")]
        [found] = told(OnlineJudge(3), good, bad, good)
        assert found.cause == "replicas-drift"
        assert found.evidence["ranks"] == [1]
        assert found.evidence["step"] == 50
        assert found.evidence["equal_until_step"] == 1
        assert found.evidence["tensors"] == ["bn.weight"]
        assert "rank 1" in found.message and "bn.weight" in found.message and "after step 1" in found.message

    def test_statistics_alone_are_those_of_a_norm(self):
        rows = [[MODEL, replica(1, p, f"aaaabbbb{p * 4}")] for p in "cd"]
        [found] = told(OnlineJudge(2), *rows)
        assert found.cause == "norm-not-synchronised"
        assert "bn.running_mean" in found.message

    def test_an_order_of_its_own_is_told_as_such(self):
        other = replace(MODEL, tensors=MODEL.tensors[::-1])
        [found] = told(OnlineJudge(2), [MODEL, replica(1, "p")], [other, replica(1, "q")])
        assert found.cause == "parameter-order-differs"
        assert found.evidence["names"] == ["bn.running_mean", "fc.weight"]

    def test_a_rank_that_is_behind_is_waited_for(self):
        judge = OnlineJudge(2)
        assert judge.take(0, replica(1, "p")) == []
        assert judge.take(0, replica(50, "q")) == []
        assert judge.take(1, replica(1, "p")) == []
        assert causes(judge.take(1, replica(50, "x"))) == ["replicas-drift"]

    def test_parts_are_shared_out_over_any_number_of_tensors(self):
        for count in (0, 1, 255, 256, 257, 1000):
            bounds = part_bounds(count)
            assert [i for start, stop in bounds for i in range(start, stop)] == list(range(count))
            assert len(bounds) == min(count, 256)
        assert differing_parts("aaaabbbbcccc", "aaaaxbbbcccc") == [1]


class TestExamples:
    def rows(self, *draws, described=None, ends=None, at=1):
        """Rows of ranks that drew these indices in a step, trained on them, and ended their passes."""
        return [
            [described or loader(), batch(at, drawn), loss(at), step(at), *([ends[i]] if ends else [])]
            for i, drawn in enumerate(draws)
        ]

    def test_ranks_with_examples_of_their_own_are_no_finding(self):
        ends = [pass_end(range(0, 100, 2)), pass_end(range(1, 100, 2))]
        assert told(OnlineJudge(2), *self.rows(range(0, 20, 2), range(1, 20, 2), ends=ends)) == []

    def test_the_same_examples_on_two_ranks(self):
        [found] = told(OnlineJudge(2), *self.rows(range(10), range(10)))
        assert found.cause == "same-examples-on-every-rank"
        assert found.evidence["ranks"] == [0, 1] and found.evidence["step"] == 1
        assert found.evidence["loader"] == "train.py:9"

    def test_one_equal_index_may_be_chance_and_eight_may_not(self):
        judge = OnlineJudge(2)
        described = loader(sampler="Own")
        for at in range(1, 8):
            assert told(judge, *self.rows([at], [at], described=described, at=at)) == []
            described = step(at)  # the loader is described once
        assert causes(told(judge, *self.rows([8], [8], described=described, at=8))) == [
            "same-examples-on-every-rank"
        ]

    def test_ranks_with_data_sets_of_their_own_may_count_alike(self):
        rows = [
            [loader(contents=name), batch(1, range(10)), loss(1), step(1), pass_end(range(100))]
            for name in ("mine", "yours")
        ]
        assert told(OnlineJudge(2), *rows) == []

    def test_evaluation_on_every_rank_is_no_finding(self):
        train = loader(number=0, where="train.py:1")
        valid = loader(number=1, where="train.py:2", sampler="SequentialSampler")
        rows = [
            [
                train, valid, batch(1, range(10 * rank, 10 * rank + 10)), loss(1), step(1),
                batch(2, range(10), of=1), pass_end(range(100), of=1),
            ]
            for rank in range(2)
        ]  # fmt: skip
        assert told(OnlineJudge(2), *rows) == []

    def test_a_loader_that_only_one_rank_has_does_not_shift_the_others(self):
        first = [loader(where="valid.py:1"), loader(where="train.py:1", number=1)]
        second = [loader(where="train.py:1")]
        rows = [
            [*first, batch(1, range(10), of=1), loss(1), step(1)],
            [*second, batch(1, range(10), of=0), loss(1), step(1)],
        ]
        assert causes(told(OnlineJudge(2), *rows)) == ["same-examples-on-every-rank"]

    def test_some_examples_on_two_ranks_at_once(self):
        [found] = told(OnlineJudge(2), *self.rows(range(10), range(5, 15)))
        assert found.cause == "examples-repeated"
        assert found.evidence["examples"] == [5, 6, 7, 8, 9]

    def test_a_sampler_that_may_draw_twice_is_left_alone(self):
        described = loader(sampler="WeightedRandomSampler")
        ends = [pass_end(range(50)), pass_end(range(5, 55))]
        rows = self.rows(range(10), range(5, 15), described=described, ends=ends)
        assert told(OnlineJudge(2), *rows) == []

    def test_every_rank_goes_through_all_in_an_order_of_its_own(self):
        described = loader(sampler="RandomSampler")
        ends = [pass_end(range(100)), pass_end(range(99, -1, -1))]
        [found] = told(OnlineJudge(2), *self.rows(range(5), range(50, 55), described=described, ends=ends))
        assert found.cause == "same-examples-on-every-rank"
        assert found.evidence["pass"] == 1

    @pytest.mark.parametrize(
        ("shares", "cause"),
        [
            ([range(50), [*range(50, 100), 0]], "examples-repeated"),
            ([range(50), [*range(50, 99), 0]], "examples-repeated"),
            ([range(50), range(50, 98)], "examples-dropped"),
        ],
    )
    def test_a_pass_that_is_not_the_data_set(self, shares, cause):
        rows = self.rows([1], [51], ends=[pass_end(share) for share in shares])
        [found] = told(OnlineJudge(2), *rows)
        assert found.cause == cause
        assert found.evidence["examples"] == sum(map(len, shares)) and found.evidence["num_examples"] == 100

    def test_the_tail_that_one_rank_would_drop_too_is_no_finding(self):
        described = loader(num_examples=107, drop_last=True)
        ends = [pass_end(range(50)), pass_end(range(50, 100))]
        assert told(OnlineJudge(2), *self.rows([1], [51], described=described, ends=ends)) == []
        ends = [pass_end(range(40)), pass_end(range(50, 90))]
        found = told(OnlineJudge(2), *self.rows([1], [51], described=described, ends=ends))
        assert causes(found) == ["examples-dropped"]

    def test_a_pass_that_was_left_early_is_not_judged(self):
        ends = [pass_end(range(10), is_exhausted=False), pass_end(range(50, 60), is_exhausted=False)]
        assert told(OnlineJudge(2), *self.rows([1], [51], ends=ends)) == []

    def test_a_sampler_of_ones_own_is_held_to_what_it_did_twice(self):
        described = loader(sampler="Own")
        whole = [range(50), range(50, 100)]
        short = [range(50), range(50, 90)]
        rows = self.rows([1], [51], described=described)
        for number, shares in enumerate((whole, whole, short), start=1):
            for rank, share in enumerate(shares):
                rows[rank].append(pass_end(share, number=number))
        [found] = told(OnlineJudge(2), *rows)
        assert found.cause == "examples-dropped"
        assert "pass 2 was whole" in found.message
        rows = self.rows([1], [51], described=described, ends=[pass_end(share) for share in short])
        assert told(OnlineJudge(2), *rows) == []

    def test_data_without_indices_has_to_be_equal_again_and_again(self):
        described = loader(num_examples=None, is_iterable=True, contents="")
        rows = [[described], [described]]
        for at in range(1, 4):
            for rank in range(2):
                rows[rank] += [batch(at, None, tensors=(f"{at}",)), loss(at), step(at)]
        assert causes(told(OnlineJudge(2), *rows)) == ["same-examples-on-every-rank"]
        rows[1][4] = batch(2, None, tensors=("other",))
        assert told(OnlineJudge(2), *rows) == []

    def test_the_print_of_a_whole_data_set(self):
        for size in (0, 1, 1000, 2**20 + 3):
            assert whole_multiset(size) == multiset_print(range(size))


class TestPace:
    def at(self, step, name="backward", began=0.0):
        return Phase(name=name, detail=None, step=step, began_s=began, pid=1)

    def test_a_loss_that_is_no_number(self):
        judge = OnlineJudge(1)
        assert judge.take(0, loss(1)) == []
        [found] = judge.take(0, loss(7, math.nan))
        assert found.cause == "loss-not-finite"
        assert found.evidence == {"rank": 0, "step": 7, "value": "nan", "finite_until_step": 1}
        assert judge.take(0, loss(8, math.inf)) == []

    def test_ranks_that_end_with_other_numbers_of_steps(self):
        assert causes(told(OnlineJudge(2), [end(100)], [end(99)])) == ["ranks-out-of-step"]
        assert told(OnlineJudge(2), [end(100)], [end(100)]) == []
        assert told(OnlineJudge(2), [end(100)], [end(99, "failed")]) == []

    def test_a_rank_that_is_far_behind(self):
        judge = OnlineJudge(2, every=10)
        near = {0: self.at(60), 1: self.at(45)}
        assert judge.stand(near, 0.0) == judge.stand(near, 9.0) == []
        far = {0: self.at(160), 1: self.at(45)}
        assert judge.stand(far, 10.0) == []
        [found] = judge.stand(far, 11.0)
        assert found.cause == "ranks-out-of-step"
        assert found.evidence["rank"] == 1 and found.evidence["ahead_step"] == 159
        assert judge.stand(far, 12.0) == []

    def test_a_step_that_a_rank_which_has_ended_will_not_take(self):
        judge = OnlineJudge(2)
        judge.take(1, end(100))
        assert judge.stand({0: self.at(101, began=5.0)}, 10.0) == []
        [found] = judge.stand({0: self.at(101, began=5.0)}, 20.0)
        assert found.evidence["ended"] == [1] and found.evidence["step"] == 101

    def test_a_rank_that_evaluates_alone_at_the_end_is_no_finding(self):
        judge = OnlineJudge(2)
        judge.take(1, end(100))
        assert judge.stand({0: self.at(101, "forward", began=5.0)}, 1000.0) == []

    def test_ranks_that_stand_still_in_different_places(self):
        judge = OnlineJudge(2, stand_s=60.0)
        places = {0: self.at(5, began=1.0), 1: self.at(5, "forward", began=2.0)}
        assert judge.stand(places, 50.0) == []
        [found] = judge.stand(places, 100.0)
        assert found.cause == "ranks-out-of-step" and found.evidence["rank"] == 1
        assert OnlineJudge(2, stand_s=60.0).stand({0: self.at(5), 1: self.at(5)}, 100.0) == []


class TestFiles:
    def write(self, folder, rank, *rows, attempt=0):
        path = observations_path(folder, rank, attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.writelines(map(encode, rows))

    def test_findings_come_as_the_files_grow(self, tmp_path):
        online = Online(tmp_path)
        assert online.look() == []
        for rank in range(2):
            self.write(tmp_path, rank, start(rank), MODEL, replica(1, "p"), step(1))
        assert online.look() == []
        assert (online.world_size, online.num_steps, online.is_over) == (2, 1, False)
        self.write(tmp_path, 0, replica(50, "q"), step(50))
        assert online.look() == []
        self.write(tmp_path, 1, replica(50, "x"), step(50))
        assert causes(online.look()) == ["replicas-drift"]
        assert online.look() == []
        for rank in range(2):
            self.write(tmp_path, rank, end(60))
        assert online.look() == [] and online.is_over
        assert causes(online.findings) == ["replicas-drift"]

    def test_half_a_row_is_waited_for(self, tmp_path):
        online = Online(tmp_path)
        line = encode(start(0, size=1)) + encode(loss(1, math.nan))
        path = observations_path(tmp_path, 0)
        path.parent.mkdir(parents=True)
        for cut in (10, len(line) - 3):
            path.write_text(line[:cut])
            assert online.look() == []
        path.write_text(line)
        assert causes(online.look()) == ["loss-not-finite"]

    def test_what_is_no_row_is_passed_over(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tailing, "LONGEST_ROW_BYTES", 2**16)
        path = tmp_path / "observations.jsonl"
        path.write_text('{"row":"Odd"}\n' + "x" * 200_000 + "\n" + encode(loss(1)))
        tail = tailing.Tailing(path)
        rows = []
        while (piece := tail.read()) is not None:
            rows += piece
        assert rows == [loss(1)]
        assert tail.num_passed_over == 2

    def test_ranks_that_were_started_again_are_a_run_of_their_own(self, tmp_path):
        online = Online(tmp_path)
        for rank in range(2):
            self.write(tmp_path, rank, start(rank), replica(1, "p"))
        online.look()
        for rank in range(2):
            self.write(tmp_path, rank, start(rank, attempt=1), replica(1, str(rank)), attempt=1)
        assert causes(online.look()) == ["replicas-drift"]


def test_a_million_steps_stay_small_and_are_read_in_little_memory(tmp_path):
    """Rows of a long run as the whole probe samples them; no more than a few pieces are in memory."""
    parts = "abcd" * 256
    num_kept = 0
    for rank in range(2):
        writer = ObservationWriter(observations_path(tmp_path, rank))
        writer.write(start(rank))
        for number in range(1, 1_000_001):
            if is_kept(number):
                num_kept += 1
                writer.write(replica(number, "p", parts))
                writer.write(step(number))
        writer.write(end(1_000_000))
        writer.close()
        assert writer.dropped == {}
        assert observations_path(tmp_path, rank).stat().st_size < MOST_BYTES / 4
    assert num_kept == 2 * (1000 + 3 * 900)
    online = Online(tmp_path)
    tracemalloc.start()
    found = online.look(to_the_end=True)
    peak = tracemalloc.get_traced_memory()[1]
    assert found == [] and online.is_over and online.num_steps == 1_000_000
    # two pieces of bytes, their rows as text and objects, and what waits for the other rank
    assert peak < 100 * tailing.PIECE_BYTES
    tracemalloc.reset_peak()
    assert sum(1 for _ in Observations.read(tmp_path).rows(0)) == num_kept + 2
    assert tracemalloc.get_traced_memory()[1] < 100 * tailing.PIECE_BYTES
    tracemalloc.stop()


def test_findings_are_plain(tmp_path):
    [found] = told(OnlineJudge(2), [end(1)], [end(2)])
    assert json.loads(json.dumps(found.to_json())) == found.to_json()
