"""What Slurm and HTCondor are told, against files that were looked at once; HTCondor's by its own parser."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import cluster_golden as golden
import pytest
from cluster_requests import request_of

from samestep.cluster.htcondor import HTCondor, description, run_script
from samestep.cluster.slurm import script
from samestep.errors import ConfigError

PARSER = Path(__file__).parent / "condor_parser.py"


@pytest.mark.parametrize("name", sorted(path.name for path in golden.FOLDER.iterdir()))
def test_the_files_are_the_golden_ones(name):
    assert golden.texts()[name] == (golden.FOLDER / name).read_text(encoding="utf-8")


def test_there_is_a_golden_file_for_all():
    assert set(golden.texts()) == {path.name for path in golden.FOLDER.iterdir()}


@pytest.mark.parametrize("make", [script, run_script])
@pytest.mark.parametrize(
    "path", ["/opt/a b/python", "/opt/it's/python", "/opt/$(id)/`id`/python", '/opt/"é"/p']
)
def test_the_shell_gets_the_path_of_python_as_one_word(make, path):
    (line,) = [line for line in make(request_of(python=path)).splitlines() if line.startswith("exec ")]
    assert shlex.split(line)[1] == path


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "\x1b[31m", ""])
def test_what_cannot_stand_in_one_line_is_refused(value):
    with pytest.raises(ConfigError, match="one line of printable text"):
        script(request_of(python=value))
    if value:
        with pytest.raises(ConfigError, match="one line"):
            script(request_of(options={"comment": value}))
        with pytest.raises(ConfigError, match="one line"):
            description(request_of(engine="htcondor", options={"+Note": value}), Path("/shared"))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"time": "1"}, "sets itself"),
        ({"Bad name": "1"}, "no option of sbatch"),
        ({"x\n#": "1"}, "no option"),
    ],
)
def test_options_of_sbatch_that_are_ours_or_none_are_refused(options, match):
    with pytest.raises(ConfigError, match=match):
        script(request_of(options=options))


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ({"options": {"universe": "vanilla"}}, "sets itself"),
        ({"options": {"a b": "1"}}, "no command of a submit description"),
        ({"options": {"+X": "1\\"}}, "backslash"),
        ({"transfer": ("/a,b",)}, "commas"),
        ({"world_size": 4, "num_nodes": 2}, "one machine"),
    ],
)
def test_what_htcondor_cannot_do_is_refused(asked, match):
    with pytest.raises(ConfigError, match=match):
        description(request_of(engine="htcondor", **asked), Path("/shared"))


# HTCondor's own parser


def parsed(texts, tmp_path):
    """What HTCondor's bindings, in an environment of their own, make of submit descriptions."""
    python = os.environ.get("SAMESTEP_TEST_HTCONDOR")
    if not python:
        pytest.skip("SAMESTEP_TEST_HTCONDOR names no Python that has HTCondor's bindings")
    paths = []
    for number, text in enumerate(texts):
        paths.append(tmp_path / f"{number}.sub")
        paths[-1].write_text(text, encoding="utf-8")
    env = {**os.environ, "CONDOR_CONFIG": "/dev/null"}
    done = subprocess.run(
        [python, PARSER, *paths], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def written(tmp_path, asked):
    """A request whose files are really there, as the parser wants them."""
    home = tmp_path / Path(asked.get("home", "digits")).name
    files = []
    for name in asked.get("transfer", ()):
        files.append(str(tmp_path / Path(name).name))
        Path(files[-1]).touch()
    more = {"transfer": tuple(files)}
    if "environment" in asked and not asked["environment"].startswith("docker:"):
        more["environment"] = str(tmp_path / Path(asked["environment"]).name)
        Path(more["environment"]).touch()
    request = request_of(engine="htcondor", **(asked | {"home": str(home)} | more))
    own = request.folder_in(home)
    own.mkdir(parents=True, exist_ok=True)
    request.write(own)
    for name, text in HTCondor().files(request).items():
        (own / name).write_text(text, encoding="utf-8")
    return request, home, (own / "submit.sub").read_text(encoding="utf-8")


def test_every_description_passes_htcondors_own_parser(tmp_path):
    asked = {name: written(tmp_path, asked) for name, asked in golden.CONDOR.items()}
    for (name, (request, home, _)), answer in zip(
        asked.items(), parsed([text for *_, text in asked.values()], tmp_path), strict=True
    ):
        assert "jobs" in answer, f"{name}: {answer}"
        jobs = answer["jobs"]
        assert len(jobs) == len(request.items), name
        for number, (job, item) in enumerate(zip(jobs, request.items, strict=True)):
            assert job["Iwd"] == str(home)
            assert job["Cmd"] == str(home / "jobs" / request.name / "run.sh")
            assert (job.get("Args") or job.get("Arguments")) == str(number)
            assert job["TransferOutput"].split(",")[0].strip() == item.name
            sent = [part.strip() for part in job["TransferInput"].split(",")]
            assert set(request.transfer) <= set(sent)
            if request.needs.device == "gpu":
                assert job["RequestGPUs"] == "2"
            else:
                assert "RequestGPUs" not in job
            assert (job.get("SuccessCheckpointExitCode") == "85") == (request.command == "train")
    resources = parsed([asked["resources"][2]], tmp_path)[0]["jobs"][0]
    assert resources["RequestMemory"] == str(24 * 1024)
    assert resources["RequestCpus"] == "12"
    assert resources["AllowedExecuteDuration"] == "5400"
    assert "Capability >= 8.0" in resources["RequireGPUs"]
    container = parsed([asked["container"][2]], tmp_path)[0]["jobs"][0]
    assert container["ContainerImage"] == "docker://pytorch/pytorch:2.6.0"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("request_gpus", "request_gpu"),
        ("executable = ", "# executable = "),
        ("(Capability >= 8.0)", "(Capability >= "),
        ("should_transfer_files = YES", "should_transfer_files = MAYBE"),
    ],
)
def test_the_parser_refuses_what_is_wrong(tmp_path, old, new):
    *_, text = written(tmp_path, golden.CONDOR["resources"])
    assert old in text
    (answer,) = parsed([text.replace(old, new)], tmp_path)
    assert "refused" in answer


def test_run_sh_starts_an_attempt_with_the_python_of_the_tarball(tmp_path):
    """The script itself, with a stand-in for the environment's Python that tells what it was called with."""
    python = tmp_path / "pack" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n')
    python.chmod(0o755)
    job = tmp_path / "job"
    job.mkdir()
    subprocess.run(["tar", "-czf", job / "my env.tar.gz", "-C", tmp_path / "pack", "."], check=True)
    text = run_script(request_of(engine="htcondor", environment="/home/ada/my env.tar.gz"))
    (job / "run.sh").write_text(text)
    for _ in range(2):  # the second time it is there already
        done = subprocess.run(["sh", "run.sh", "3"], cwd=job, capture_output=True, text=True, check=True)
        words = done.stdout.splitlines()
        assert words == ["environment/bin/python", "-P", "-m", "samestep.cluster.attempt", ".", "3"]
    assert sys.executable not in text
