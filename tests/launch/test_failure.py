import pytest

from samestep.launch.failure import RankError, cause_of

GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3"


def error(rank, time, kind="ValueError", message="bad", **more):
    return RankError(rank=rank, time=time, kind=kind, message=message, **more)


def judge(errors=(), exit_codes=None, size=4, **more):
    return cause_of(size=size, errors=errors, exit_codes=exit_codes or {}, **more)


def test_a_lost_peer_is_never_the_cause_while_there_is_another():
    errors = [
        error(0, 1.0, "RuntimeError", GLOO),
        error(2, 2.0, where="net.py:7", is_user_error=True),
        error(3, 3.0),
    ]
    failure = judge(errors)
    assert (failure.rank, failure.where) == (2, "net.py:7")
    assert failure.sentence == "Rank 2 failed: ValueError: bad"
    assert min(errors, key=lambda e: e.time).rank == 0  # the earliest alone would be the wrong one


def test_a_lost_peer_is_known_by_what_it_was_raised_from():
    wrapped = error(0, 1.0, "LaunchError", "the ranks could not meet", traceback=GLOO, is_refusal=True)
    assert judge([wrapped], {0: 2, 1: -9}).sentence == "Rank 1 was killed by signal 9 (out of memory?)"


def test_a_killed_rank_is_the_cause_of_the_others_losing_it():
    failure = judge([error(0, 1.0, "RuntimeError", GLOO)], {0: 1, 1: -9, 2: -15})
    assert failure.rank == 1 and "signal 9" in failure.sentence
    assert "SIGSEGV" in judge([], {3: -11}).sentence
    assert "exit code 3" in judge([], {3: 3}).sentence


def test_ranks_that_the_agent_sent_away_are_not_the_cause():
    assert judge([], {0: -15, 2: -9}).rank == 2
    assert judge([], {0: -15}).rank == 0  # but for want of any other they are


def test_of_several_dead_ranks_the_agent_knows_the_first():
    assert judge([], {0: -9, 2: -9}, first_failed=2).rank == 2


def test_an_error_comes_before_ranks_that_were_killed_for_staying_on():
    assert judge([error(2, 5.0, is_user_error=True)], {0: -9, 2: 1}, first_failed=2).rank == 2


def test_an_abort_after_the_work_was_done_is_no_failure():
    assert judge([], {1: -6}, done=frozenset(range(4))) is None
    assert "SIGABRT" in judge([], {1: -6}, done=frozenset({0})).sentence


def test_what_every_rank_says_is_said_once():
    refusals = [error(r, 1.0, "ConfigError", "batch_size is 0.", is_refusal=True) for r in range(4)]
    assert judge(refusals).sentence == "batch_size is 0."
    assert judge(refusals[:1]).sentence == "Rank 0: batch_size is 0."
    assert judge([error(r, 1.0) for r in range(4)]).sentence.startswith("Every rank failed: ValueError: bad")
    assert judge([error(0, 1.0)], size=1).sentence.startswith("The run failed: ValueError")


def test_nothing_went_wrong():
    assert judge() is None


def test_messages_become_one_line_of_bounded_length():
    sentence = judge([error(0, 1.0, message="a\nb " * 1000)]).sentence
    assert "\n" not in sentence and len(sentence) < 650
    assert judge([error(0, 1.0, kind="SystemExit", message="3")]).sentence.endswith("exit code 3")


def test_fields_of_other_versions_do_no_harm():
    assert RankError.of(1, {"kind": "E", "unknown": 1}).rank == 1


@pytest.mark.parametrize(
    ("message", "is_lost"),
    [
        ("CUDA error: uncorrectable ECC error encountered", True),
        ("CUDA error: all CUDA-capable devices are busy or unavailable", True),
        ("CUDA error: device-side assert triggered", False),  # an index out of range, and will be again
        ("CUDA out of memory. Tried to allocate 2.00 GiB", False),
    ],
)
def test_a_lost_device_is_told_from_a_program_that_misuses_one(message, is_lost):
    assert error(0, 1.0, "AcceleratorError", message).is_lost_device is is_lost


def test_only_deaths_are_deaths():
    assert judge([], {1: -9}).is_death
    assert judge([error(0, 1.0, "RuntimeError", GLOO)]).is_death
    assert not judge([error(0, 1.0)], {0: 1}).is_death
