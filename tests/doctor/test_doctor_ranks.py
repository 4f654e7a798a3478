"""The ranks of the doctor get a training's environment, without a launcher's word on other processes."""

import pytest

from samestep.doctor.ranks import Ranks, _last_line
from samestep.launcher import Seat, seat_in


def test_a_rank_knows_its_own_place_and_not_that_of_the_process_above(monkeypatch):
    above = {
        "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "pod-0", "MASTER_PORT": "23456", "PET_NNODES": "2",
        "PET_NODE_RANK": "1", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "7",
    }  # fmt: skip
    for name, value in above.items():
        monkeypatch.setenv(name, value)
    env = Ranks(seat=Seat.alone(1), num=2)._environment()
    own = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "pod-0", "MASTER_PORT": "4711"}
    seat = seat_in(env | own)
    assert (seat.index, seat.count, seat.port, seat.has_store) == (3, 4, 4711, False)
    assert env["GLOO_SOCKET_IFNAME"] == "lo", "as in a training on one machine"
    # the control: with what the launcher told, this would be another's place
    assert seat_in({**above, **own, "LOCAL_RANK": "1"}).has_store


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Traceback\n  File x\nRuntimeError: no device none0\nframe #0: 0x12\n",
            "RuntimeError: no device none0",
        ),
        ("killed\n\n", "killed"),
        ("", "nothing was said"),
    ],
)
def test_of_a_long_story_the_error_is_told(text, expected):
    assert _last_line(text) == expected
