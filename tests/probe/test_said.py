"""What the program writes is seen, and reaches its stream as it is."""

import io
import logging
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from watching import run, seen, watching

from samestep.observed import Said
from samestep.probe.said import MOST_REDRAWN, MOST_SAID, MOST_TEMPLATE, template_of


def replaced(monkeypatch, name="stdout"):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    monkeypatch.setattr(sys, name, stream)
    return stream


def written(stream):
    stream.flush()
    return stream.buffer.getvalue().decode()


@pytest.mark.parametrize(
    ("line", "template", "numbers"),
    [
        ("epoch 3: loss=0.25, top5 -1e-3.", "epoch #: loss=#, top5 #.", (3, 0.25, -0.001)),
        ("2024-01-15 12:30 took 12ms, .5s", "#-#-# #:# took #ms, #s", (2024, 1, 15, 12, 30, 12, 0.5)),
        ("conv3x3 of 3x3, v1.2, digest 9f3a2 0x7f", "conv3x3 of 3x3, v1.2, digest 9f3a2 0x7f", ()),
        ("{'loss': '2.5e-05'}", "{'loss': '#'}", (2.5e-05,)),
        ("nothing, nano, info", "nothing, nano, info", ()),
    ],
)
def test_a_line_and_its_numbers(line, template, numbers):
    assert template_of(line) == (template, tuple(float(number) for number in numbers))


def test_what_is_not_a_finite_number_is_one_too():
    template, numbers = template_of("loss nan, limit -inf")
    assert template == "loss #, limit #" and str(numbers) == "(nan, -inf)"


@given(st.text(max_size=400) | st.lists(st.floats().map(str), max_size=150).map(" ".join))
def test_a_template_is_short_and_has_a_mark_for_each_number(line):
    template, numbers = template_of(line)
    assert len(template) <= MOST_TEMPLATE
    assert template.count("#") == len(numbers) or "#" in line


def test_lines_come_in_pieces_and_end_in_two_ways(tmp_path, monkeypatch):
    stdout = replaced(monkeypatch)
    with watching(tmp_path):
        print("loss", end=" ")
        print(0.5, flush=True)
        sys.stdout.write("10%\r20%\r")
        sys.stdout.writelines(["a 1\n", "no number\n", "\x1b[31mred 7\x1b[0m\r\n", "never ended 3"])
    assert written(stdout) == "loss 0.5\n10%\r20%\ra 1\nno number\n\x1b[31mred 7\x1b[0m\r\nnever ended 3"
    rows = seen(tmp_path, Said)
    assert [(row.template, row.numbers) for row in rows] == [
        ("loss #", (0.5,)), ("#%", (10.0,)), ("#%", (20.0,)), ("a #", (1.0,)), ("red #", (7.0,)),
        ("never ended #", (3.0,)),
    ]  # fmt: skip
    assert {row.stream for row in rows} == {"stdout"} and not any(row.after_evaluation for row in rows)
    assert all(row.where.startswith("tests/probe/test_said.py:") for row in rows[:-1])
    assert "write" not in vars(stdout)


def test_loggers_are_heard_and_the_line_is_that_of_the_program(tmp_path, monkeypatch):
    replaced(monkeypatch, "stderr")
    log = logging.Logger("one")
    log.addHandler(logging.StreamHandler())
    with watching(tmp_path):
        log.error("rank %d of %d", 0, 2)
    (row,) = seen(tmp_path, Said)
    assert (row.template, row.numbers, row.stream) == ("rank # of #", (0.0, 2.0), "stderr")
    assert row.where.startswith("tests/probe/test_said.py:")


def test_what_is_said_after_an_evaluation(tmp_path, monkeypatch):
    replaced(monkeypatch)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(tmp_path):
        nn.Flatten().eval()(torch.ones(1, 3))
        print("no parameters 0")
        model(torch.ones(1, 3)).sum().backward()
        print("training 1")
        with torch.no_grad():
            model(torch.ones(1, 3))
        print("evaluated 2")
        optimizer.step()
        print("stepped 3")
        model.eval()(torch.ones(1, 3))
        print("evaluated 4")
    rows = {int(row.numbers[0]): row for row in seen(tmp_path, Said)}
    assert [number for number, row in rows.items() if row.after_evaluation] == [2, 4]
    assert [rows[number].step for number in range(5)] == [1, 1, 1, 2, 2]


def test_there_is_room_for_results_beside_a_progress_bar(tmp_path, monkeypatch):
    replaced(monkeypatch)
    with watching(tmp_path):
        for i in range(MOST_SAID):
            sys.stdout.write(f"\r{i}%")
        print("\nresult 1")
        for i in range(MOST_SAID):
            print(i)
    rows = seen(tmp_path, Said)
    assert len(rows) == MOST_SAID and sum("%" in row.template for row in rows) <= MOST_REDRAWN + 1
    assert any(row.template == "result #" for row in rows)


def test_a_stream_that_takes_no_attribute_is_left_alone(tmp_path, monkeypatch):
    class Slotted:
        __slots__ = ()

        def write(self, text):
            return len(text)

        def flush(self):
            return None

    monkeypatch.setattr(sys, "stdout", Slotted())
    monkeypatch.setattr(sys, "stderr", None)
    with watching(tmp_path):
        print("loss 1")
    assert seen(tmp_path, Said) == []


def test_output_and_exit_code_are_the_same_byte_for_byte(tmp_path):
    code = (
        "import sys, torch\n"
        "sys.stdout.write('a 1\\r'); print('b', 2, 'é', end='')\n"
        "sys.stdout.buffer.write(b'raw 3\\n'); print('c 4', file=sys.stderr)\n"
        "sys.stdout.write(5) if len(sys.argv) > 1 else sys.exit(3)\n"
    )
    (tmp_path / "a.py").write_text(code)
    for arguments in ((), ("bad",)):
        alone, watched = (run("a.py", *arguments, cwd=tmp_path, probe=probe) for probe in (None, "seen"))
        assert (alone.returncode, alone.stdout) == (watched.returncode, watched.stdout)
        assert alone.stderr == watched.stderr
    assert alone.returncode == 1 and "must be str" in alone.stderr
