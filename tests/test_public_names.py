"""Public names are a promise: adding one is a decision, losing one is a break."""

import subprocess
import sys

import samestep
import samestep.hooks
import samestep.metrics
import samestep.nn


def test_public_names() -> None:
    assert sorted(samestep.__all__) == [
        "Loss",
        "SamestepError",
        "Task",
        "__version__",
        "init",
        "run",
        "supervised",
    ]
    for name in samestep.__all__:
        assert getattr(samestep, name) is not None
    assert sorted(samestep.nn.__all__) == [
        "convert_dropout", "moments", "register_norm", "sum_over_ranks", "synchronise",
    ]  # fmt: skip
    assert sorted(samestep.metrics.__all__) == [
        "ByShard",
        "FrechetDistance",
        "Merged",
        "compute",
        "load_state",
        "state_of",
    ]


def test_a_session_offers() -> None:
    from samestep.train.session import Session
    from samestep.world import World

    own = {name for name in vars(Session) if not name.startswith("_")}
    assert own == {
        "checkpoints", "close", "compute", "evaluation", "loader", "replicate", "reset", "set_mode",
        "begin_again", "has_examples", "num_steps", "step", "stepper", "stop_reason",
    }  # fmt: skip
    inherited = {name for name in vars(World) if not name.startswith("_")} - own
    assert inherited == {
        "any", "broadcast_", "broadcast_text", "gather", "gather_rows", "gather_slices_", "gather_texts",
        "is_first", "is_idle",
        "drift", "mode", "notice", "post", "shares_statistics", "sum_", "sum_slices_",
    }  # fmt: skip


def test_modules_that_messages_name_are_there() -> None:
    code = "import samestep; samestep.nn.moments, samestep.hooks.EarlyStop, samestep.metrics.FrechetDistance"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_importing_the_package_does_not_load_torch() -> None:
    code = "import sys, samestep, samestep.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
