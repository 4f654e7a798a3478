from samestep.launch.quiet import BUSILY, BUSY_SHARE, Quiet


def looks(quiet, rows):
    return [quiet.look(now, written, cpu_s) for now, written, cpu_s in rows]


def test_ranks_that_neither_write_nor_work_are_quiet():
    assert looks(Quiet(10.0, 2), [(0, 5, 1.0), (9, 5, 1.0), (10, 5, 1.0)]) == [False, False, True]


def test_ranks_that_write_are_not():
    rows = [(now, now, 1.0) for now in range(0, 100, 5)]
    assert not any(looks(Quiet(10.0, 2), rows))


def test_ranks_that_work_are_not_until_much_later():
    rows = [(now, 5, float(now)) for now in range(0, int(10 * BUSILY) + 5, 5)]
    assert looks(Quiet(10.0, 2), rows) == [now >= 10 * BUSILY for now, _, _ in rows]


def test_a_look_around_now_and_then_is_no_work():
    share = 0.9 * BUSY_SHARE * 2  # of two ranks together
    assert looks(Quiet(10.0, 2), [(0, 5, 0.0), (10, 5, 10 * share)]) == [False, True]
    share = 1.1 * BUSY_SHARE * 2
    assert looks(Quiet(10.0, 2), [(0, 5, 0.0), (10, 5, 10 * share)]) == [False, False]


def test_where_processor_times_are_unknown_only_the_long_silence_counts():
    rows = [(0, 5, None), (10, 5, None), (10 * BUSILY, 5, None)]
    assert looks(Quiet(10.0, 2), rows) == [False, False, True]
