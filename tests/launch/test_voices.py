from hypothesis import given
from hypothesis import strategies as st

from samestep.launch.voices import Choir, Said, is_noise, tag_of

LINES = st.lists(st.sampled_from(["a", "b", "c", "epoch 1", ""]), max_size=8)


def sing(streams, schedule=()):
    """Feed streams to a choir, interleaved as `schedule` says, the clock running a little each time."""
    choir = Choir(len(streams))
    left = [list(stream) for stream in streams]
    said, now = [], 0.0
    for rank in schedule:
        if left[rank % len(streams)]:
            choir.hear(rank % len(streams), left[rank % len(streams)].pop(0), now)
            said += choir.speak(now)
            now += 0.001
    for rank, lines in enumerate(left):
        for line in lines:
            choir.hear(rank, line, now)
    return said + choir.speak(now) + choir.close()


@given(st.lists(LINES, min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=40))
def test_each_rank_is_heard_in_full_and_in_order(streams, schedule):
    said = sing(streams, schedule)
    for rank, lines in enumerate(streams):
        assert [s.text for s in said if rank in s.ranks] == lines


@given(LINES, st.integers(1, 4), st.lists(st.integers(0, 3), max_size=40))
def test_ranks_that_agree_are_one_voice_whatever_their_pace(lines, size, schedule):
    said = sing([lines] * size, schedule)
    assert [str(s) for s in said] == lines


@given(st.lists(LINES, min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=40))
def test_tags_are_there_exactly_where_not_all_said_it(streams, schedule):
    for s in sing(streams, schedule):
        assert bool(s.tag) == (len(s.ranks) < len(streams))


def test_only_what_differs_is_tagged():
    said = sing([["start", "I am 0", "end"], ["start", "I am 1", "end"]])
    assert [str(s) for s in said] == ["start", "[rank 0] I am 0", "[rank 1] I am 1", "end"]


def test_ranks_are_in_step_again_after_one_said_more():
    first, second = ["saving", "epoch 1", "epoch 2"], ["epoch 1", "epoch 2"]
    said = sing([first, second])
    assert [str(s) for s in said] == ["[rank 0] saving", "epoch 1", "epoch 2"]
    # comparing the k-th lines alone would call every later line different
    assert all(a != b for a, b in zip(first, second, strict=False))


def test_a_line_is_held_back_half_a_second_and_no_longer():
    choir = Choir(2)
    choir.hear(0, "hello", 10.0)
    assert choir.speak(10.4) == []
    assert choir.speak(10.5) == [Said("hello", (0,), "[rank 0]")]
    choir.hear(1, "hello", 11.0)
    assert choir.close() == [Said("hello", (1,), "[rank 1]")]


def test_nobody_waits_for_a_rank_that_left():
    choir = Choir(2)
    choir.leave(1)
    choir.hear(0, "hello", 0.0)
    assert [str(s) for s in choir.speak(0.0)] == ["[rank 0] hello"]


def test_a_flood_from_one_rank_is_not_hoarded():
    choir = Choir(2)
    for number in range(10_050):
        choir.hear(0, str(number), 0.0)
    assert len(choir.speak(0.0)) == 50


def test_tags_name_ranks_shortly():
    assert [tag_of(r) for r in ([2], [0, 1], [3, 0, 1, 2, 6])] == [
        "[rank 2]",
        "[ranks 0, 1]",
        "[ranks 0-3, 6]",
    ]


def test_noise_is_torchs_own_logging_only():
    assert is_noise("[W1115 22:27:08.746000 socket.cpp:200] hostname cannot be retrieved")
    assert is_noise("[rank1]:[E1115 22:27:08.746 ProcessGroupGloo.cpp:12] x")
    assert not is_noise("[W] my own warning") and not is_noise("loss 0.1")
