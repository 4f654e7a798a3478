import io
import json

import pytest
from rich.console import Console

from samestep.launch.failure import Failure
from samestep.launch.voices import Said
from samestep.record import RecordWriter, rank_folder
from samestep.report import console as show


def plain(width=80):
    return Console(file=io.StringIO(), width=width, highlight=False, soft_wrap=True)


def text_of(console):
    return console.file.getvalue()


def write(folder, step=7):
    folder.mkdir(exist_ok=True)
    writer = RecordWriter(folder, 0)
    writer.describe(num_steps=20)
    writer.step(step, epoch=2, examples=64 * step, loss=0.5)
    return writer


def look(watch, seconds=100.0):
    watch._looked -= seconds
    watch._told -= seconds
    watch([])


def test_what_users_print_is_never_markup():
    console = plain()
    watch = show.Watch(console, None, title="x")
    watch([Said("[bold]a[/bold] [/oops] \x1b[31mred\x1b[0m \x1b[2Aup", (0,), "[rank 0]")])
    assert text_of(console) == "[rank 0] [bold]a[/bold] [/oops] red up\n"
    naive = plain()
    with pytest.raises(Exception, match="oops"):
        naive.print("[bold]a[/bold] [/oops]")


def test_without_a_terminal_progress_is_a_line_now_and_then(tmp_path):
    write(tmp_path)
    console = plain()
    with show.Watch(console, tmp_path, title="2 ranks") as watch:
        look(watch)
        look(watch, seconds=1.0)
        look(watch, seconds=1.0)
    assert text_of(console).splitlines() == ["2 ranks: epoch 3  step 7/20  loss 0.5"]


def test_the_rate_is_in_examples_a_second(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(show.time, "monotonic", lambda: clock[0])
    console = plain()
    watch = show.Watch(console, tmp_path, title="x")
    for clock[0], step in ((10.0, 1), (20.0, 11)):
        write(tmp_path, step)
        watch([])
    assert text_of(console).splitlines()[-1].endswith(" 64 examples/s")


@pytest.mark.parametrize("width", [40, 100])
def test_on_a_terminal_there_is_a_bar_that_fits(tmp_path, width):
    write(tmp_path)
    console = Console(file=io.StringIO(), width=width, force_terminal=True, no_color=True)
    with show.Watch(console, tmp_path, title="2 ranks") as watch:
        look(watch)
        watch._bar.refresh()
    assert "step 7/20" in text_of(console) and "loss 0.5" in text_of(console)
    lines = text_of(console).replace("\r", "\n").splitlines()
    assert all(len(line) < width + 40 for line in lines)  # escape sequences included


def test_a_finding_is_shown_when_it_comes(tmp_path):
    writer = write(tmp_path)
    console = plain()
    watch = show.Watch(console, tmp_path, title="x")
    writer.finding({"cause": "c", "message": "norm [b]n[/b] is local", "evidence": {}, "fix": "use sync"})
    look(watch)
    look(watch)
    assert text_of(console).count(": norm [b]n[/b] is local") == 1
    assert "fix: use sync" in text_of(console)


def test_a_failure_names_the_line_and_the_traceback(tmp_path):
    rank_folder(tmp_path, 3).mkdir(parents=True)
    (rank_folder(tmp_path, 3) / "traceback.txt").write_text("Traceback …")
    console = plain()
    failure = Failure(rank=3, sentence="Rank 3 failed: KeyError: '[x]'", where="net.py:7", has_traceback=True)
    show.show_failure(console, failure, tmp_path)
    assert text_of(console).splitlines() == [
        "error: Rank 3 failed: KeyError: '[x]'",
        "    at net.py:7",
        f"    full traceback: {rank_folder(tmp_path, 3) / 'traceback.txt'}",
    ]


def test_a_summary_fits_narrow_terminals():
    console = Console(file=io.StringIO(), width=40)
    show.show_summary(console, "done", {"digest": "ab" * 32, "steps": 12345, "x": None, "[red]": 0.5})
    assert all(len(line) <= 40 for line in text_of(console).splitlines())
    assert "12,345" in text_of(console) and "[red]" in text_of(console)


def test_what_files_say_does_not_move_the_terminal():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system=None, width=200)
    show.show_error(console, "the column \x1b]0;title\x07\u202e is not known\nname it")
    assert "\x1b" not in file.getvalue() and "\u202e" not in file.getvalue()
    assert "\\u001b]0;title\\u0007\\u202e is not known\nname it" in file.getvalue()


def test_the_answer_is_one_object_on_standard_output(capsys):
    show.answer({"digest": "ab", "loss": "NaN"})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"digest": "ab", "loss": "NaN"} and err == ""


def test_what_overflowed_is_no_number_of_json(capsys):
    show.answer({"rows": [{"cost": float("inf"), "step_s": 0.5}]})
    said = capsys.readouterr().out
    assert json.loads(said, parse_constant=pytest.fail) == {"rows": [{"cost": None, "step_s": 0.5}]}


def test_the_number_of_ranks_is_that_of_now(tmp_path):
    write(tmp_path).describe(world_size=2)
    console = plain()
    watch = show.Watch(console, tmp_path, title="3 ranks")
    look(watch)
    assert text_of(console).startswith("2 ranks: ")
