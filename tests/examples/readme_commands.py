"""Runs the commands that the README of an example shows, and compares what they say with what it shows."""

import atexit
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from samestep import cli
from samestep.launch.warm import Warm
from samestep.launch.watched import Watched

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
MODULES = ("sklearn.datasets", "torchmetrics.classification")
"""What the examples are going to import beside torch."""
_BLOCK = r"^```{language}\n(.*?)^```$"


class Shown(NamedTuple):
    """A command of a README without its `$`, and the lines below it, in which `…` is anything."""

    command: str
    lines: list[str]

    def assert_said(self, text):
        end = 0
        for piece in (piece for line in self.lines for piece in line.split("…")):
            begin = text.find(piece, end)
            assert begin >= 0, f"{self.command}\ndid not say {piece!r} there, but\n{text}"
            end = begin + len(piece)


def blocks_in(name, language):
    """The fenced blocks of a language in an example's README."""
    text = (EXAMPLES / name / "README.md").read_text()
    return re.findall(_BLOCK.format(language=language), text, re.MULTILINE | re.DOTALL)


def shown_in(name, start=""):
    """The commands of an example's README that begin like this, in order."""
    found = []
    for block in blocks_in(name, "console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Shown(line.removeprefix("$ "), []))
            else:
                found[-1].lines.append(line)
    return [shown for shown in found if shown.command.startswith(start)]


def copied(name, to):
    """A copy of an example's files, for a command to run in."""
    return Path(shutil.copytree(EXAMPLES / name, Path(to) / name))


def said(command, folder, *, limit_s=240, **environment):
    """The exit code of a command that is started in a folder, and all that it says."""
    program, *words = shlex.split(command, comments=True)
    if program == "samestep":
        words = ["-m", "samestep.cli", *words]
    else:
        assert program == "python", command
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
        check=False,
    )
    return done.returncode, done.stdout


def forked(arguments, env, logs):
    """A `samestep.launch.starting.Start`: a rank forked where torch is loaded already."""
    warm = _warm(env.get("PYTHONSAFEPATH"))
    process = warm(arguments, env, logs)
    assert not warm.remarks, warm.remarks
    return process


@functools.cache
def _warm(safe_path):
    # ranks of tasks and of scripts look for modules in different places, from the start of the process on
    warm = Warm(threads=1, modules=MODULES)
    atexit.register(warm.close)
    return warm


def verified(command, folder, capsys):
    """The same of `samestep verify …`, with ranks that are forked."""
    words = shlex.split(command, comments=True)
    assert words[:2] == ["samestep", "verify"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setattr("samestep.cli.verify.Watched", functools.partial(Watched, start=forked))
        patch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as end:
            cli.main()
    out, err = capsys.readouterr()
    return end.value.code or 0, err + out
