from hypothesis import given
from hypothesis import strategies as st

from samestep.launch import tail as tail_module
from samestep.launch.tail import Listener, Tail
from samestep.record import rank_folder


@given(
    st.lists(st.text(alphabet="aé€🙂 \t", max_size=6), max_size=6),
    st.lists(st.integers(1, 9), min_size=1, max_size=30),
)
def test_lines_do_not_depend_on_how_the_bytes_arrive(tmp_path_factory, lines, cuts):
    path = tmp_path_factory.mktemp("t") / "stdout.log"
    data = "\n".join(lines).encode()
    follower, seen = Tail(path), []
    with path.open("wb", buffering=0) as file:
        while data:
            for cut in cuts:
                file.write(data[:cut])
                data = data[cut:]
                seen += follower.read()
    seen += follower.read(to_the_end=True)
    assert seen == (lines if lines and lines[-1] else lines[:-1])


def test_starts_at_the_end_of_what_an_earlier_attempt_said(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old\n")
    follower = Tail(path)
    with path.open("ab") as file:
        file.write(b"new\nhalf")
    assert follower.read() == ["new"]
    assert follower.read(to_the_end=True) == ["half"]


def test_bytes_that_are_not_text_are_replaced(tmp_path):
    follower = Tail(tmp_path / "x")
    (tmp_path / "x").write_bytes(b"\xff\xfe caf\xc3\xa9\x00\n")
    assert follower.read() == ["\ufffd\ufffd café\x00"]


def test_of_a_progress_bar_the_last_state_counts(tmp_path):
    follower = Tail(tmp_path / "x")
    (tmp_path / "x").write_bytes(b"plain\r\n\r10%\r50%")
    assert follower.read() == ["plain"]
    assert follower.bar == "50%"
    with (tmp_path / "x").open("ab") as file:
        file.write(b"\r100%\r\nno bar")
    assert follower.read() == ["100%"]
    assert follower.bar is None


def test_a_line_without_end_comes_in_pieces_and_a_bar_without_end_is_not_kept(tmp_path):
    path = tmp_path / "x"
    follower = Tail(path)
    path.write_bytes(b"z" * 200_000)
    assert sum(map(len, follower.read(to_the_end=True))) == 200_000
    with path.open("ab") as file:
        file.write(b"\r99%" * 100_000)
    assert follower.read() == []
    assert follower.bar == "99%" and len(follower._rest) <= 1 << 16


def test_a_bar_is_shown_now_and_then_from_one_rank(tmp_path, monkeypatch):
    listener = Listener(tmp_path, 2)
    for rank in range(2):
        rank_folder(tmp_path, rank).mkdir(parents=True)
        (rank_folder(tmp_path, rank) / "stderr.log").write_bytes(b"\r%d%%" % (rank + 10))
    assert listener.hear() == []
    monkeypatch.setattr(tail_module, "BAR_EVERY_S", 0.0)
    assert [str(s) for s in listener.hear()] == ["[rank 0] 10%"]


def test_fewer_ranks_are_heard_as_one_after_the_others_have_had_their_last_words(tmp_path):
    listener = Listener(tmp_path, 3)
    for rank in range(3):
        rank_folder(tmp_path, rank).mkdir(parents=True)
        (rank_folder(tmp_path, rank) / "stdout.log").write_text("last words" if rank == 2 else "")
    assert [str(said) for said in listener.begin_again(2)] == ["[rank 2] last words"]
    for rank in range(2):
        (rank_folder(tmp_path, rank) / "stdout.log").write_text("again\n")
    assert [str(said) for said in listener.hear()] == ["again"]
