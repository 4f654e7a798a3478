"""What schedulers write is read as they write it; what they do not answer is said."""

import json
import stat

import pytest

from samestep.advise.queue import Unanswered, asked, read_waits, slurm_history, slurm_pending
from samestep.errors import ConfigError

SACCT = """\
billing=4,cpu=4,gres/gpu=1,mem=8G,node=1|2026-11-01T10:00:00|2026-11-01T10:00:00|2026-11-01T10:02:00
billing=8,cpu=8,gres/gpu:a100=4,mem=8G,node=2|2026-11-01T10:00:00|2026-11-01T11:00:00|2026-11-01T14:00:00
billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,node=2|2026-11-01T10:00:00|Unknown|2026-11-01T12:00:00
billing=8,cpu=8,gres/gpu=4,node=2|2026-11-01T10:00:00|2026-11-01T10:00:00|Unknown
billing=8,cpu=8,node=2|2026-11-01T10:00:00|2026-11-01T10:00:00|2026-11-01T10:00:09
half a line|2026
"""
SQUEUE = """\
N/A            gres:gpu:2          N/A         2   2  2026-11-01T10:00:00           2026-11-01T16:00:00
N/A            gres:gpu:a100:4     N/A         1   1  2026-11-01T10:00:00           2026-11-01T12:00:00
gres:gpu:3     N/A                 N/A         1   1  2026-11-01T10:00:00           2026-11-01T11:00:00
N/A            N/A                 gres/gpu:1  1   2  2026-11-01T10:00:00           2026-11-01T10:30:00
N/A            gres:gpu:1          N/A         1   1  2026-11-01T10:00:00           N/A
N/A            N/A                 N/A         1   1  2026-11-01T10:00:00           2026-11-01T12:00:00
"""
CONDOR = [
    {"RequestGPUs": 2, "QDate": 1000, "JobStartDate": 1600},
    {"RequestGpus": 2, "QDate": 1000, "JobStartDate": 2200},
    {"RequestGPUs": "ifThenElse(x, 1, 2)", "QDate": 1000, "JobStartDate": 2200},
    {"RequestGPUs": 1, "QDate": 1000},
]


def answering(**answers):
    """A machine on which programs say what is given, and write down how they were called."""
    calls = []

    def ask(words):
        calls.append(list(words))
        if words[0] not in answers:
            raise Unanswered(f"there is no {words[0]} here")
        return answers[words[0]]

    return ask, calls


def test_slurm_history():
    assert list(slurm_history(SACCT)) == [(1, 120), (4, 3 * 3600), (4, 2 * 3600), (0, 9)]


def test_slurm_pending():
    assert slurm_pending(SQUEUE) == ([(4, 6 * 3600), (4, 2 * 3600), (3, 3600), (2, 1800)], 1)


def test_slurm_is_asked_for_the_default_partition_without_a_shell():
    ask, calls = answering(sacct=SACCT, squeue=SQUEUE, sinfo="debug\ngpu*\n")
    waits = read_waits("slurm", ask)
    assert waits.num_jobs == {1: 1, 2: 1, 3: 1, 4: 4}
    assert waits.at(4).high_s == 6 * 3600
    assert waits.source == "known to Slurm in gpu"
    assert all("--partition=gpu" in words for words in calls[1:])
    assert "1 jobs wait that Slurm names no start for" in waits.remarks[0]


def test_slurm_without_accounting_tells_what_its_queue_knows():
    ask, _ = answering(squeue=SQUEUE)
    waits = read_waits("slurm:main", ask)
    assert waits.num_jobs == {2: 1, 3: 1, 4: 2}
    assert "accounting is not counted: there is no sacct here" in waits.remarks[0]


def test_without_slurm_the_queue_is_empty_and_that_is_said():
    waits = read_waits("slurm", answering()[0])
    assert waits.known == {}
    assert len(waits.remarks) == 3
    assert "counts as empty" in waits.remarks[-1]


def test_htcondor_history():
    ask, calls = answering(condor_history=json.dumps(CONDOR))
    waits = read_waits("htcondor", ask)
    assert waits.num_jobs == {2: 2}
    assert waits.at(2).expected_s == 900
    assert calls[0][:2] == ["condor_history", "-json"]


@pytest.mark.parametrize("answer", ["", "[]"])
def test_htcondor_that_knows_no_jobs(answer):
    assert read_waits("htcondor", answering(condor_history=answer)[0]).known == {}


def test_htcondor_that_writes_something_else():
    waits = read_waits("htcondor", answering(condor_history="-- Failed")[0])
    assert "did not write JSON" in waits.remarks[0]


def test_a_list_of_waits_is_no_scheduler():
    assert read_waits("1=2m") is None


def test_a_partition_that_is_no_name_is_refused():
    with pytest.raises(ConfigError, match="slurm:gpu"):
        read_waits("slurm:--help", answering()[0])


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_programs_are_asked_for_real(tmp_path):
    says = program(tmp_path / "says", 'printf "%s" "$1" "$SLURM_TIME_FORMAT"')
    assert asked([says, "$(id); a b"]) == "$(id); a bstandard"
    with pytest.raises(Unanswered, match="refused: no such cluster"):
        asked([program(tmp_path / "fails", "echo no such cluster >&2; exit 3")])
    with pytest.raises(Unanswered, match="there is no "):
        asked([str(tmp_path / "nowhere")])
