from samestep.launch.losses import Losses
from samestep.launch.roll import Ended, Roll, Started
from samestep.record import Record, RecordWriter


def began(roll, round_number, members):
    for rank, member in enumerate(members):
        pid = 100 * round_number + member
        roll.write(Started(round=round_number, member=member, rank=rank, size=len(members), pid=pid))


def lost(roll, member, code=-9, **more):
    last = roll.last_of(member)
    fields = {"verdict": "lost", **more}
    roll.write(Ended(round=last.round, member=member, rank=last.rank, code=code, **fields))


def test_the_newest_round_is_what_counts(tmp_path):
    roll = Roll(tmp_path)
    assert (roll.round, roll.started, roll.ended, roll.last_of(0)) == (0, [], [], None)
    began(roll, 1, [0, 1, 2])
    lost(roll, 1)
    roll.write(Started(round=2, member=0, rank=0, size=2, pid=200))
    other = Roll(tmp_path)
    assert other.round == 1  # not wholly there
    assert [entry.pid for entry in other.started] == [200]
    roll.write(Started(round=2, member=2, rank=1, size=2, pid=202))
    assert other.round == 2 and other.last_of(2).rank == 1 and other.last_of(1).rank == 1


def test_a_line_that_a_killed_member_left_unfinished_does_no_harm(tmp_path):
    roll = Roll(tmp_path)
    began(roll, 1, [0])
    with (tmp_path / "agent" / "roll.jsonl").open("a") as file:
        file.write('{"entry": "Ended", "round": 1, "mem')
    assert len(Roll(tmp_path).entries) == 1


def test_losses_become_one_sentence_and_events(tmp_path):
    RecordWriter(tmp_path, 0).describe()
    roll = Roll(tmp_path)
    losses = Losses(roll, tmp_path)
    began(roll, 1, [0, 1, 2, 3])
    assert losses.look() is None
    lost(roll, 3)
    lost(roll, 1, -11)
    lost(roll, 0, 1, verdict="again", is_cause=False)
    assert losses.look() is None  # nobody goes on yet
    (tmp_path / "checkpoints" / "step-000000120").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-000000060-2").mkdir()
    began(roll, 2, [0, 2])
    assert losses.look() == (
        "rank 3 was killed by signal 9 and rank 1 was killed by signal 11 (SIGSEGV); "
        "going on with 2 ranks from step 120"
    )
    assert losses.look() is None
    assert [(row["event"], row["rank"]) for row in Record.read(tmp_path).events()] == [
        ("rank-lost", 3),
        ("rank-lost", 1),
    ]
    began(roll, 3, [0, 2])
    assert losses.look() == "the ranks lost one another; going on with 2 ranks from step 120"
