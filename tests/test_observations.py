import dataclasses
import math
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samestep import observations
from samestep.errors import RecordError
from samestep.observations import (
    FORMAT,
    Observations,
    ObservationWriter,
    decode,
    encode,
    is_sampled,
    multiset_print,
    observations_path,
    sample_positions,
    worker_path,
)
from samestep.observed import (
    ROWS,
    VERSION,
    Batch,
    Clip,
    Collective,
    Criterion,
    End,
    Event,
    Gradient,
    Loss,
    Randomness,
    Said,
    Start,
    Statistic,
    Step,
    Summary,
    Worker,
)


def start(**changes):
    known = Start(
        format=FORMAT, version=VERSION, samestep="0", rank=0, world_size=2, attempt=0, program=("train.py",),
        steps_in_full=24, most_bytes=2**20, python="3", host="here", pid=1, time=0.0,
    )  # fmt: skip
    return dataclasses.replace(known, **changes)


def summary(value=1.5):
    return Summary(
        print="ab", dtype="float32", shape=(2, 3), mean=value, rms=1.0, max_abs=2.0, sample=(value, 0.25)
    )


def batch(step, indices=(1, 2)):
    return Batch(
        step=step, loader=0, number=1, batch=step, indices=indices, num_examples=2, print="p",
        tensors=(), examples=(),
    )  # fmt: skip


def worker(number, worker=0):
    random = Randomness(python="a", torch="b")
    return Worker(step=1, loader=0, number=number, worker=worker, random=random, moved=("numpy",))


def written(folder, *rows, rank=0, attempt=0, **more):
    writer = ObservationWriter(observations_path(folder, rank, attempt), **more)
    for row in (start(rank=rank), *rows):
        writer.write(row)
    writer.close()
    return writer


STEP = Step(
    step=3, optimizer=0, is_full=True, lr=(0.1,), weight_decay=(0.0,), num_forward=1, num_backward=2,
    num_scheduler_steps=1, scale=None, num_skipped=0, clips=(Clip(kind="c", limit=1.0, norm=None, after=2),),
    collectives=(Collective(name="all_reduce", phase="between", count=3, num_bytes=12),),
    events=(Event(name="forward", count=1),), phases_s={"data": 0.5},
)  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        start(),
        batch(1),
        batch(2, None),
        STEP,
        Gradient(step=1, optimizer=0, name="w", stage="local", num_backward=1, summary=summary()),
        Gradient(step=1, optimizer=0, name="w", stage="applied", num_backward=0, summary=None),
        Loss(step=1, number=1, value=math.inf, dtype="float32", num_elements=1),
        worker(1),
        Said(
            step=1,
            template="loss #",
            numbers=(math.inf,),
            after_evaluation=True,
            stream="stdout",
            where="a.py:3",
        ),
        Statistic(step=1, model=0, name="bn", kind="BN", buffers=("bn.mean",), num_collectives=2),
        Criterion(step=1, kind="mse_loss", reduction="sum", num_targets=3, num_rows=1, has_gradients=True),
        End(status="failed", exit_code=1, message="schön\n", dropped={"Call": 3}),
    ],
)
def test_a_row_is_read_as_it_was_written(row):
    assert decode(encode(row).encode()) == row


def test_not_a_number_survives_without_leaving_json():
    line = encode(
        Gradient(step=1, optimizer=0, name="w", stage="local", num_backward=1, summary=summary(math.nan))
    )
    assert '"NaN"' in line and math.isnan(decode(line.encode()).summary.sample[0])


def test_a_text_that_is_not_utf8_can_be_written():
    assert decode(encode(start(program=("\udcff.py",))).encode()).program == ("\\udcff.py",)


def test_every_row_is_frozen_and_known_by_name():
    assert all(dataclasses.is_dataclass(kind) and kind.__name__ == name for name, kind in ROWS.items())
    with pytest.raises(dataclasses.FrozenInstanceError):
        STEP.step = 4


def test_fields_of_a_later_release_are_left_out():
    line = encode(batch(1)).replace('{"row"', '{"new":[1],"row"')
    assert decode(line.encode()) == batch(1)


def test_a_cut_off_line_is_passed_over_and_remarked_upon(tmp_path):
    written(tmp_path, batch(1), batch(2))
    path = observations_path(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-9])
    found = Observations.read(tmp_path)
    assert [row.step for row in found.of(0, Batch)] == [1]
    assert found.remarks == ["rank 0, line 3: cut off or unknown, and passed over"]
    assert found.end(0) is None


def test_workers_write_beside_their_rank_and_attempt(tmp_path):
    for attempt, numbers in ((0, (1,)), (1, (10, 2))):
        written(tmp_path, batch(1), attempt=attempt)
        path = observations_path(tmp_path, 0, attempt)
        for number in numbers:
            ObservationWriter(worker_path(path, 0, number, 3)).write(worker(number, 3), flush=True)
    found = Observations.read(tmp_path)
    assert [type(row).__name__ for row in found.rows(0)] == ["Start", "Batch", "Worker", "Worker"]
    assert [(row.number, row.worker) for row in found.of(0, Worker)] == [(2, 3), (10, 3)]
    worker_path(path, 0, 2, 3).write_bytes(b"{")
    assert [row.number for row in found.of(0, Worker)] == [10]
    assert found.remarks == ["rank 0, workers-1/0-2-3.jsonl, line 1: cut off or unknown, and passed over"]
    # a rank that is watched anew leaves none of an earlier run
    written(tmp_path, attempt=1)
    assert list(Observations.read(tmp_path).of(0, Worker)) == []


def test_ranks_and_attempts(tmp_path):
    written(tmp_path, batch(1))
    written(tmp_path, batch(5), rank=11)
    written(tmp_path, batch(7), attempt=2)
    found = Observations.read(tmp_path)
    assert found.ranks == [0, 11]
    assert [row.step for row in found.of(0, Batch)] == [7]
    assert found.start(11).rank == 11


@pytest.mark.parametrize(
    "line", [b"", b"{}\n", encode(start(version=99)).encode(), encode(batch(1)).encode()]
)
def test_what_is_not_ours_is_refused(tmp_path, line):
    path = observations_path(tmp_path, 0)
    path.parent.mkdir(parents=True)
    path.write_bytes(line)
    with pytest.raises(RecordError, match="reads version"):
        Observations.read(tmp_path)


def test_a_folder_without_rows_is_refused(tmp_path):
    with pytest.raises(RecordError, match="no rank left any rows"):
        Observations.read(tmp_path)


def test_the_file_stays_within_its_bytes_and_the_end_always_fits(tmp_path):
    most = 300_000
    rows = [batch(step) for step in range(3000)]
    writer = ObservationWriter(observations_path(tmp_path, 0), most)
    for row in (start(), *rows):
        writer.write(row)
    writer.write(
        End(status="failed", exit_code=1, message="\0" * 3000, traceback="😀" * 3000, dropped=writer.dropped)
    )
    writer.close()
    assert 0.75 * most < observations_path(tmp_path, 0).stat().st_size <= most
    found = Observations.read(tmp_path)
    kept = list(found.of(0, Batch))
    assert found.end(0).dropped == {"Batch": 3000 - len(kept)} and kept == rows[: len(kept)]


def test_a_full_disk_does_not_reach_the_program():
    writer = ObservationWriter.__new__(ObservationWriter)
    with open("/dev/full", "w") as full:  # noqa: PTH123
        writer.__init__(observations.Path("/dev/null"))
        writer._file = full
        writer.write(start(), flush=True)
        assert writer._file is None
        full.close = lambda: None
    writer.write(start())
    assert writer.dropped == {"Start": 1}


def test_rows_are_read_one_at_a_time(tmp_path):
    written(tmp_path, *(batch(step) for step in range(20_000)), most_bytes=2**24)
    found = Observations.read(tmp_path)
    began = time.perf_counter()
    assert next(found.of(0, Batch)).step == 0
    first_s = time.perf_counter() - began
    assert sum(1 for _ in found.of(0, Batch)) == 20_000
    assert first_s < (time.perf_counter() - began) / 20


@given(st.integers(1, 10**9))
def test_nine_steps_for_each_factor_of_ten_are_sampled(step):
    assert is_sampled(step) == (
        str(step).lstrip("123456789").strip("0") == "" and len(str(step).rstrip("0")) <= 1
    )


@given(st.lists(st.integers(0, 10**6)), st.lists(st.integers(0, 10**6)))
def test_prints_of_multisets_add_up_and_know_no_order(one, other):
    assert multiset_print(one + other) == (multiset_print(one) + multiset_print(other)) % 2**64
    assert multiset_print(sorted(one)) == multiset_print(one)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50), st.data())
def test_one_index_more_or_another_is_seen(indices, data):
    where = data.draw(st.integers(0, len(indices) - 1))
    assert multiset_print([*indices, indices[where]]) != multiset_print(indices)
    assert multiset_print([*indices[:where], indices[where] + 1, *indices[where + 1 :]]) != multiset_print(
        indices
    )


@given(st.text(), st.integers(1, 10**9))
def test_samples_are_taken_at_the_same_places(name, count):
    places = sample_positions(name, count)
    assert places == sample_positions(name, count)
    assert len(places) == 8 and all(0 <= place < count for place in places)
    assert sample_positions(name, 0) == []


def test_neither_torch_nor_numpy_is_loaded_to_read():
    loaded = "{'torch', 'numpy'} & {*sys.modules}"
    code = f"import sys, samestep.observations, samestep.probe.run; sys.exit({loaded} != set())"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
