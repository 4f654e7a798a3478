"""Each cause on a program that has just that trouble, and one that almost has it."""

import json

import pytest
from synthetic import Job

from samestep.scale.causes import CAUSES, RULES
from samestep.scale.evidence import told_bytes, told_s
from samestep.scale.looks import Look

GPU = {
    "devices": ("cuda A",),
    1: {"devices": ("cuda A",)},
    2: {"devices": ("cuda A",) * 2},
    4: {"devices": ("cuda A",) * 4},
}


def look(size, **seen):
    return Look(world_size=size, status="cut", num_steps=16, **seen)


def told(job, cause, **more):
    """The only finding on a job, which must be of that cause and say what to do."""
    findings = job.result(**more).findings
    assert [finding.cause for finding in findings] == [cause]
    (finding,) = findings
    assert json.loads(json.dumps(finding.to_json(), allow_nan=False))["cause"] == cause
    assert finding.message.endswith(".") and finding.fix and not finding.fix.endswith(".")
    return finding


def test_a_program_that_scales_has_no_finding():
    result = Job().result()
    assert result.findings == []
    assert [round(cell.speedup) for cell in result.cells] == [1, 2, 4]


class TestInputBound:
    def test_fetching_takes_half_of_a_step(self):
        finding = told(Job(fetch_s=1e-3, loading={"num_workers": 0}), "input-bound")
        assert finding.evidence["share"] == pytest.approx(0.5, abs=0.03)
        # without workers a batch is fetched in as long as it is worked on: one worker keeps up, or two
        assert finding.evidence["workers_needed"] in (1, 2)
        assert "fetched by 0 loader workers" in finding.message
        assert "num_workers" in finding.fix

    def test_also_on_one_gpu(self):
        finding = told(Job(fetch_s=1e-3), "input-bound", worlds=(1,))
        assert finding.evidence["gpus"] == 1
        assert "On 1 GPU at batch 32, a step takes" in finding.message

    def test_more_workers_than_cores_are_not_advised(self):
        finding = told(
            Job(fetch_s=9e-3, loading={"num_workers": 2}, num_cores=8), "input-bound", worlds=(1, 4)
        )
        # two workers are ten times too slow
        assert finding.evidence["workers_needed"] == pytest.approx(20, abs=2)
        assert "8 cores for 4 ranks allow 2" in finding.fix or "8 cores for 1 rank allow 8" in finding.fix
        assert "cheaper to fetch" in finding.fix

    @pytest.mark.parametrize(
        ("changed", "is_limited"),
        [
            ({"facts": {"cpu_s": 0.01}}, False),
            ({}, True),
            ({"facts": {"cpu_s": 0.01}, "loading": {"num_workers": 2}}, True),
            ({"facts": {"cpu_s": 0.01}, "host": {"other_cores": 4.0}}, True),
        ],
    )
    def test_a_rank_that_waits_for_a_disk_may_have_more_workers_than_cores(self, changed, is_limited):
        finding = told(Job(fetch_s=2e-2, num_cores=2, **changed), "input-bound", worlds=(1, 2))
        assert ("cheaper to fetch" in finding.fix) == is_limited != ("set num_workers to" in finding.fix)

    def test_a_twentieth_is_not_worth_it(self):
        assert Job(fetch_s=5e-5).causes() == []


class TestTooLittleWork:
    def test_what_a_step_costs_at_least(self):
        finding = told(Job(fixed_s=0.02), "too-little-work-per-gpu")
        # alone (8 examples) 20 + 8 ms; a quarter of 20 + 32 ms is 13
        assert finding.evidence["seconds"] == pytest.approx(0.015, rel=0.05)
        assert "each GPU has 8 examples" in finding.message
        assert "28 ms" in finding.message or "27." in finding.message or "28." in finding.message
        assert "--batch" in finding.fix

    def test_from_which_batch_on_it_pays(self):
        # 4 GPUs save three quarters of 1 ms an example, and lose 30 ms: they pay above 40
        job = Job(fixed_s=0.02, sharing_s=0.003, exchange_s=0.027)
        result = job.result(batches=(16, 32, 64, 128))
        finding = next(f for f in result.findings if f.cause == "too-little-work-per-gpu")
        assert finding.evidence["pays_from_batch"] == 64
        assert finding.evidence["batches"] == [16, 32, 64, 128]
        assert "From a batch of 64 on, 4 GPUs are faster than one." in finding.message

    def test_at_every_batch(self):
        finding = told(Job(fixed_s=0.02), "too-little-work-per-gpu", batches=(32, 64))
        assert "4 GPUs are faster than one at every batch that was measured (32, 64)" in finding.message

    def test_at_no_batch(self):
        job = Job(fixed_s=0.02, exchange_s=0.5)
        findings = {f.cause: f for f in job.result(worlds=(1, 4), batches=(32, 64)).findings}
        assert "exchange-bound" in findings
        assert "too-little-work-per-gpu" not in findings  # next to half a second it is nothing
        job = Job(fixed_s=0.1, exchange_s=0.06)
        finding = {f.cause: f for f in job.result(worlds=(1, 4), batches=(32, 64)).findings}[
            "too-little-work-per-gpu"
        ]
        assert finding.evidence["pays_from_batch"] is None
        assert "At no batch that was measured (32, 64)" in finding.message
        assert "above 64" in finding.fix

    def test_a_small_fixed_cost_is_no_matter(self):
        # 3/4 of 0.5 ms of a step of 8.5 ms
        assert Job(fixed_s=0.0005).causes() == []


class TestExchangeBound:
    def test_gradients_that_are_not_hidden(self):
        finding = told(Job(exchange_s=0.008), "exchange-bound")
        assert finding.evidence["gpus"] == 4
        assert finding.evidence["seconds"] == pytest.approx(0.008, rel=0.05)
        assert "4 MB a step" in finding.message
        assert "bfloat16" in finding.fix
        assert [cell["gpus"] for cell in finding.evidence["cells"]] == [4, 2]

    def test_hidden_but_for_a_little(self):
        assert Job(exchange_s=0.0005).causes() == []


class TestNormBound:
    def test_norms_that_wait(self):
        finding = told(Job(norms_s=0.004, facts={"num_synchronised_norms": 20}), "norm-bound")
        assert "20 synchronised norm layers" in finding.message
        assert finding.evidence["seconds"] == pytest.approx(0.004, rel=0.1)

    def test_an_exchange_is_not_blamed_on_norms(self):
        assert Job(norms_s=1e-5, exchange_s=0.008).causes() == ["exchange-bound"]


class TestCpuContention:
    def test_more_threads_than_cores(self):
        finding = told(Job(sharing_s=0.01, threads=4, num_cores=8), "cpu-contention")
        assert "16 threads (4 ranks of 4) on 8 cores" in finding.message
        assert finding.fix.startswith("give each rank 2 threads")

    def test_more_ranks_than_cores(self):
        finding = told(Job(sharing_s=0.01, num_cores=2), "cpu-contention")
        assert finding.fix == "use at most 2 ranks on this host"

    def test_cores_enough(self):
        finding = told(Job(sharing_s=0.01), "cpu-contention")
        assert "do not lack cores (4 threads on 8 cores)" in finding.message
        assert "OMP_NUM_THREADS" not in finding.fix

    def test_many_threads_that_do_no_harm(self):
        assert Job(threads=4, num_cores=8).causes() == []

    def test_threads_beyond_the_cores_that_leave_time_for_one_round_only(self):
        slow = {"sharing_s": 0.2, "late_s": {1: 0.1}, "exchange_s": 0.1}
        finding = told(Job(**slow, threads=4, num_cores=8), "cpu-contention", rounds=1)
        assert "16 threads (4 ranks of 4) on 8 cores, and a step takes" in finding.message
        assert finding.fix.startswith("give each rank 2 threads") and 0 < finding.evidence["share"] < 1
        # twice as slow is told as well, though one round leaves the speedup between 0 and 1
        twice = Job(sharing_s=0.056, threads=4).result(worlds=(1, 4), rounds=1)
        assert [each.cause for each in twice.findings] == ["cpu-contention"]
        assert twice.cells[-1].speedup == pytest.approx(0.5, abs=0.05) and twice.cells[-1].speedup_high > 0.9
        # the controls: hardly slower; cores enough, or a device of its own: nobody knows what takes the time
        assert "cpu-contention" not in Job(sharing_s=0.025, threads=4).causes(worlds=(1, 4), rounds=1)
        assert "cpu-contention" not in Job(**slow).causes(rounds=1)
        on_gpus = {"devices": ("cuda:0",)}
        assert "cpu-contention" not in Job(**slow, threads=4, facts=on_gpus).causes(rounds=1)


class TestStragglers:
    def test_a_rank_that_is_always_late(self):
        finding = told(Job(late_s={1: 0.008}), "stragglers")
        assert finding.evidence["rank"] == 1
        assert "mostly rank 1" in finding.message
        assert "rank 1" in finding.fix

    def test_shares_that_are_not_equal(self):
        shares = {4: {"rank_examples": (8.0, 14.0, 5.0, 5.0)}}
        late = {1: 0.006, 2: -0.003, 3: -0.003}
        finding = told(Job(late_s=late, facts=shares), "stragglers", worlds=(1, 4))
        assert "unequal shares of a batch: 8, 14, 5, 5 examples" in finding.message
        assert "evenly" in finding.fix

    def test_each_in_turn(self):
        finding = told(Job(jitter_s=0.004), "stragglers")
        assert finding.evidence["rank"] is None
        assert "another rank each time" in finding.message

    def test_ranks_that_are_late_together_are_none(self):
        late = dict.fromkeys(range(4), 0.008)
        assert Job(late_s=late).causes(worlds=(1, 4)) == ["cpu-contention"]


class TestShortEpoch:
    def test_a_small_data_set(self):
        finding = told(Job(loading={"num_examples": 320, "num_drawn": 320}), "short-epoch")
        assert "an epoch is 10 steps: the data set has 320 examples" in finding.message

    def test_twenty_steps_are_not_few(self):
        assert Job(loading={"num_examples": 640, "num_drawn": 640}).causes() == []

    def test_on_one_gpu_it_is_no_matter_of_scaling(self):
        assert Job(loading={"num_examples": 320, "num_drawn": 320}).causes(worlds=(1,)) == []


class TestDuplicatedWork:
    def test_every_rank_draws_the_whole(self):
        finding = told(
            Job(drawn=lambda gpus: 10_000 * gpus, loading={"where": "train.py:10"}), "duplicated-work"
        )
        assert "20,000 examples in a pass over 10,000: each example is trained on 2 times" in finding.message
        assert finding.evidence["where"] == "train.py:10"

    def test_padding_is_not_duplication(self):
        assert Job(drawn=lambda gpus: -(-10_000 // gpus) * gpus).causes(worlds=(1, 3)) == []

    def test_a_sampler_that_draws_twice_on_one_rank_already(self):
        assert Job(drawn=lambda gpus: 20_000).causes() == []

    def test_nobody_counted(self):
        assert Job(drawn=lambda gpus: None).causes() == []

    def test_ranks_that_have_the_same_examples_in_a_step(self):
        looks = {size: look(size, repeats=float(size)) for size in (1, 2, 4)}
        finding = told(Job(looks=looks), "duplicated-work")
        assert "each one of a step is in it 2 times" in finding.message and "Sampler" in finding.fix
        stream = Job(looks=looks, loading={"num_examples": None})
        assert "Sampler" not in (fix := told(stream, "duplicated-work").fix) and "every N-th example" in fix

    def test_examples_that_are_all_alike_tell_nothing(self):
        assert Job(looks={size: look(size, repeats=32.0 * size) for size in (1, 2, 4)}).causes() == []

    def test_a_sampler_that_repeats_examples_on_one_rank_too(self):
        assert Job(looks={size: look(size, repeats=2.0) for size in (1, 2, 4)}).causes() == []

    def test_it_is_told_before_what_costs_more(self):
        drawn = {1: 10_000, 2: 10_000, 4: 40_000}.get
        assert Job(drawn=drawn, exchange_s=0.1).causes() == ["duplicated-work", "exchange-bound"]


class TestDoubt:
    def test_times_of_a_busy_machine_are_doubted(self):
        busy = told(Job(exchange_s=0.02, host={"other_cores": 2.0}), "exchange-bound").message
        assert busy.endswith("measure again when it is free.")
        assert "busy" not in told(Job(exchange_s=0.02), "exchange-bound").message

    def test_what_is_wrong_whatever_it_costs_is_not(self):
        job = Job(drawn=lambda gpus: 10_000 * gpus, host={"other_cores": 2.0})
        assert "busy" not in told(job, "duplicated-work").message


class TestUnsynchronisedClock:
    def test_a_clock_in_every_step_of_a_gpu(self):
        looks = {size: look(size, device="cuda:0", num_seen=16, num_clock_steps=15) for size in (1, 2)}
        finding = told(Job(looks=looks), "unsynchronised-clock")
        assert "in 15 of 16 steps and does not wait for cuda:0" in finding.message

    def test_values_that_are_read_in_every_step_wait_for_the_device(self):
        looks = {size: look(size, device="cuda:0", num_seen=16, num_clock_steps=15) for size in (1, 2)}
        assert Job(looks=looks, facts={"waits_per_step": 1.0}).causes(worlds=(1, 2)) == []

    @pytest.mark.parametrize(
        "seen",
        [
            {"device": "cpu", "num_seen": 16, "num_clock_steps": 16},
            {"device": "cuda:0", "num_seen": 16, "num_clock_steps": 1},
            {"device": "cuda:0"},
        ],
    )
    def test_a_cpu_is_never_behind_and_now_and_then_is_no_matter(self, seen):
        assert Job(looks={size: look(size, **seen) for size in (1, 2)}).causes() == []


class TestDataParallel:
    def test_the_wrap(self):
        assert "one process" in told(Job(facts={"wraps": ("DataParallel",)}), "data-parallel").message

    def test_the_other_wrap_is_right(self):
        assert Job(facts={"wraps": ("DistributedDataParallel",)}).causes() == []


class TestBetweenSteps:
    @pytest.mark.parametrize("what", ["evaluation", "checkpoint"])
    def test_half_of_the_epoch(self, what):
        # 106 steps were seen, of the 313 of an epoch of 10,000 examples at 8 ms on 4 GPUs
        seconds = 313 * 0.008 * 106 / 313
        finding = told(Job(facts={f"{what}_s": seconds}), f"{what}-dominates")
        assert finding.evidence["share"] == pytest.approx(0.5, abs=0.03)
        assert finding.evidence["gpus"] == 4

    @pytest.mark.parametrize("what", ["evaluation", "checkpoint"])
    def test_a_fifth_is_usual(self, what):
        assert Job(facts={f"{what}_s": 106 * 0.008 / 4}).causes() == []


class TestDevices:
    def test_the_host_waits_for_the_device(self):
        finding = told(Job(facts=GPU | {"waits_per_step": 3.0}), "synchronous-calls")
        assert "3 times a step" in finding.message

    @pytest.mark.parametrize("waits", [None, 0.01])
    def test_now_and_then_is_no_matter(self, waits):
        assert Job(facts=GPU | {"waits_per_step": waits}).causes() == []

    def test_on_the_host_there_is_nothing_to_wait_for(self):
        assert Job(facts={"waits_per_step": 3.0}).causes() == []

    def test_memory_that_is_not_pinned(self):
        job = Job(facts=GPU, loading={"is_pinned": False, "where": "train.py:10"})
        finding = told(job, "memory-not-pinned")
        assert "(train.py:10)" in finding.message and "cuda A" in finding.message

    @pytest.mark.parametrize("is_pinned", [None, True])
    def test_memory_that_is_or_may_be(self, is_pinned):
        assert Job(facts=GPU, loading={"is_pinned": is_pinned}).causes() == []

    def test_on_the_host_nothing_is_copied(self):
        assert Job(loading={"is_pinned": False}).causes() == []


@pytest.mark.parametrize(
    ("told_as", "value", "text"),
    [
        (told_s, 12.3456, "12.3 s"), (told_s, 0.0123456, "12.3 ms"), (told_s, 1.5e-5, "15 µs"),
        (told_s, -0.002, "-2 ms"), (told_s, 3723.4, "3,723 s"), (told_s, 0.9996, "1 s"),
        (told_s, 0.99, "990 ms"), (told_s, 9.9996e-4, "1 ms"), (told_bytes, 4e9, "4 GB"),
        (told_bytes, 1500, "1.5 kB"), (told_bytes, 12, "12 bytes"),
    ],
)  # fmt: skip
def test_numbers_in_words(told_as, value, text):
    assert told_as(value) == text


class TestJudged:
    def test_the_costliest_first(self):
        assert Job(exchange_s=0.02, fetch_s=2e-3).causes() == ["input-bound", "exchange-bound"]
        assert Job(exchange_s=0.05, fetch_s=1e-3).causes() == ["exchange-bound", "input-bound"]

    @pytest.mark.parametrize(
        "job",
        [
            {"exchange_s": 0.012, "fetch_s": 1e-3},
            {"fixed_s": 0.02, "sharing_s": 0.008},
            {"jitter_s": 0.005, "exchange_s": 0.012},
        ],
    )
    def test_the_ranking_is_the_same_three_times(self, job):
        rankings = {tuple(Job(**job, seed=seed, noise=0.05, drift=0.05).causes()) for seed in range(3)}
        assert len(rankings) == 1 and len(rankings.pop()) >= 2

    def test_a_large_bar_that_is_noise_is_no_cause(self):
        names = {
            "too-little-work-per-gpu": "smaller batch", "cpu-contention": "sharing the host",
            "exchange-bound": "exchange not hidden", "stragglers": "waiting for the slowest",
        }  # fmt: skip
        large = 0
        for seed in range(8):
            result = Job(run_noise=0.3, seed=seed).result(worlds=(1, 4), rounds=3)
            (gap,) = result.gaps
            large += sum(part.is_noise and part.seconds > 0.1 * gap.measured_s for part in gap.parts)
            told = {names[finding.cause] for finding in result.findings if finding.cause in names}
            assert not told & {part.name for part in gap.parts if part.is_noise}
        assert large

    def test_there_is_one_rule_for_each_thing(self):
        assert len(set(RULES)) == len(RULES) == len(set(CAUSES)) == len(CAUSES)
