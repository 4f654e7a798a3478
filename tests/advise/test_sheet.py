"""Tables as people and spreadsheets write them: what is taken, and what is refused with a good sentence."""

from pathlib import Path

import pytest

from samestep.advise.cells import Cell, checked
from samestep.advise.sheet import read_csv
from samestep.errors import ConfigError, RecordError


def cells(folder: Path, text: str) -> list[Cell]:
    path = folder / "table.csv"
    path.write_text(text, encoding="utf-8")
    return read_csv(path)


PLAIN = "gpus,batch_per_gpu,step_s\n1,64,0.8\n2,32,0.43\n"


@pytest.mark.parametrize(
    "text",
    [
        "gpus;batch_per_gpu;step_s\n1;64;0,8\n2;32;0,43\n",
        "gpus\tbatch_per_gpu\tstep_s\n1\t64\t0.8\n2\t32\t0.43\n",
        "gpus\tbatch_per_gpu\tstep_s\n1\t64\t0,8\n2\t32\t0,43\n",
        "GPUs, Batch per GPU, step_ms\n1.0,64,800\n2.0,32,430\n",
        "gpus,batch_size,examples_per_s\n1,64,80\n2,64,148.8372093023256\n\n",
        '"gpus","batch_per_gpu","step_s","note"\n"1","64","0.8","warm, by hand"\n"2","32","0.43",""\n',
        "\ufeffgpus,batch_per_gpu,step_s\r\n1,64,0.8\r\n2,32,0.43\r\n",
    ],
)
def test_the_same_table_in_other_hands(tmp_path: Path, text: str) -> None:
    expected = cells(tmp_path, PLAIN)
    found = cells(tmp_path, text)
    assert [(each.gpus, each.batch_per_gpu) for each in found] == [(1, 64), (2, 32)]
    assert [each.step_s for each in found] == pytest.approx([each.step_s for each in expected], rel=1e-12)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"has the columns: none"),
        ("gpus,batch_per_gpu,step_s\n", r"a first line and no other"),
        ("GPUs,Batch,Time\n1,64,0.8\n", r"has the columns: GPUs, Batch, Time. It needs gpus, and one of"),
        ("gpus,batch_per_gpu,step_s\n1,64,0.8\n2,32,\n", r"line 3 lacks a time"),
        ("gpus,batch_per_gpu,step_s\n,64,0.8\n", r"line 2 lacks gpus"),
        # a batch of 1 that nobody meant would make another job of it
        ("gpus,batch_per_gpu,step_s\n1,64,0.8\n2,,0.85\n", r"line 3 lacks a batch \(batch_per_gpu or"),
        ("gpus,batch_per_gpu,step_s\n1,64\n", r"line 2 lacks a time"),
        (
            "gpus,batch_per_gpu,step_s\n1,64,1,8\n",
            r"line 2 has 4 values for 3 columns: if numbers have a dec",
        ),
        ("gpus,step_s,step_s\n1,0.8,0.9\n", r"has the column step_s more than once"),
        ("gpus,batch_per_gpu,step_s\n1,64,fast\n", r"step_s is 'fast', but must be a number with a point"),
        ('gpus,batch_per_gpu,step_s\n1,64,"0,8"\n', r"step_s is '0,8', but must be a number with a point"),
        ("gpus;batch_per_gpu;step_s\n1;64;1.200,5\n", r"step_s is '1.200,5'"),
        ("gpus,batch_per_gpu,step_s\n1.5,64,0.8\n", r"gpus is '1.5', but must be a whole number"),
        ("gpus,batch_per_gpu,step_s\ninf,64,0.8\n", r"gpus is 'inf'"),
        ("gpus,batch_per_gpu,step_s\n1,64,nan\n", r"table.csv, line 2: step_s of 1 GPU is nan"),
        ("gpus,batch_per_gpu,step_s\n1,64,-0.8\n", r"table.csv, line 2: step_s of 1 GPU is -0.8"),
        ("gpus,batch_per_gpu,step_s\n2,64,0\n", r"table.csv, line 2: step_s of 2 GPUs is 0.0"),
        (
            "gpus,batch_per_gpu,step_s\n1,64,1e-12\n",
            r"line 2: a step of 1 GPU would take 1e-12 s, which none",
        ),
        ("gpus,batch_per_gpu,step_s\n1000000,64,0.8\n", r"line 2: gpus is 1000000, but at most 65536"),
        (
            "gpus,batch_per_gpu,examples_per_s\n1,64,0\n",
            r"^examples_per_s of 1 GPU in table.csv, line 2 is 0",
        ),
    ],
)
def test_what_cannot_be_read_is_said_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        cells(tmp_path, text)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(RecordError, match=r"cannot be read as a CSV .*: save it as UTF-8"):
        read_csv(tmp_path / "table.csv")


@pytest.mark.parametrize("column", ["machine", "gpu", "hardware", "device"])
def test_a_column_that_tells_machines_apart_is_looked_at(tmp_path: Path, column: str) -> None:
    text = f"gpus,batch_per_gpu,step_s,{column}\n1,64,0.8,A100\n2,32,0.43,{{}}\n"
    assert len(checked(cells(tmp_path, text.format("A100")))) == 2
    with pytest.raises(ConfigError, match=r"2 machines \(A100: 1 GPU; V100: 2 GPUs\)"):
        checked(cells(tmp_path, text.format("V100")))


@pytest.mark.parametrize("column", ["job", "model", "precision"])
def test_a_column_that_tells_jobs_apart_is_looked_at(tmp_path: Path, column: str) -> None:
    text = f"gpus,batch_per_gpu,step_s,{column},note\n1,64,0.8,a,x\n2,32,0.43,{{}},y\n"
    assert len(checked(cells(tmp_path, text.format("a")))) == 2
    with pytest.raises(ConfigError, match="2 jobs"):
        checked(cells(tmp_path, text.format("b")))


def test_turns_are_read_and_must_be_whole(tmp_path: Path) -> None:
    text = "gpus,batch_per_gpu,accumulate,step_s\n1,64,8,0.8\n2,32,{},0.43\n"
    assert [each.accumulate for each in cells(tmp_path, text.format("4"))] == [8, 4]
    assert [each.accumulate for each in cells(tmp_path, PLAIN)] == [1, 1]
    with pytest.raises(ConfigError, match=r"line 3: accumulate is 'four', but must be a whole number"):
        cells(tmp_path, text.format("four"))


def test_shorter_steps_without_a_batch_are_asked_about(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no batch, and a step takes 0.8 s on 1 GPU and 0.43 s on 2"):
        cells(tmp_path, "gpus,step_s\n1,0.8\n2,0.43\n")
    # as long on all of them: the batch has grown
    assert len(cells(tmp_path, "gpus,step_s\n1,0.8\n2,0.79\n4,0.85\n")) == 3
