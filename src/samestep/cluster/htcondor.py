"""HTCondor: a request as a submit description and the script that it runs; handed over, asked for, removed.

`description` and `run_script` are pure functions. A pool has no shared file system: what a job needs is sent
with it, and its run comes back below the folder of all jobs. A training ends now and then with exit code 85,
for its checkpoint to be brought home, and is started again where it can go on. What a user said is in
request.json, and in the description only quoted.
"""

import contextlib
import importlib
import io
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samestep.cluster.condor_log import read_log
from samestep.cluster.engine import Files, missing
from samestep.cluster.jobs import Sight
from samestep.cluster.request import CONDA_FILES, FILE, TARBALLS, Request, one_line
from samestep.errors import ConfigError, LaunchError

DESCRIPTION, RUN, LOG = "submit.sub", "run.sh", "condor.log"
CHECKPOINT_CODE = 85
ASK_S = 120.0
_COMMAND = re.compile(r"\+?[A-Za-z][A-Za-z0-9_.]*")


def description(request: Request, home: Path) -> str:
    """The text of submit.sub; `home` is the folder of all jobs, to which runs come back."""
    needs = request.needs
    if needs.num_nodes > 1:
        raise ConfigError(
            f"{needs.world_size} ranks on {needs.num_nodes} nodes were asked for; a job of HTCondor's has "
            "one machine: ask for fewer GPUs, or raise --gpus-per-node if machines have as many."
        )
    own = f"jobs/{request.name}"
    image = _image(request)
    lines = {"universe": "container" if image else "vanilla"}
    if image:
        lines["container_image"] = image
    lines |= {
        "initialdir": _text("folder", str(home)),
        "executable": _text("folder", str(home / own / RUN)),
        "arguments": "$(item)",
        "log": f"{own}/{LOG}",
        "output": f"{own}/condor-$(item).out",
        "error": f"{own}/condor-$(item).err",
        "stream_output": "true",
        "should_transfer_files": "YES",
        "when_to_transfer_output": "ON_EXIT",
        "transfer_input_files": ", ".join([f"{own}/{FILE}", *map(_path, _sent(request))]),
        "transfer_output_files": "$(run), attempts-$(item).jsonl",
        "transfer_output_remaps": f'"attempts-$(item).jsonl = {own}/attempts-$(item).jsonl"',
    }
    if request.may_go_on:
        lines["checkpoint_exit_code"] = str(CHECKPOINT_CODE)
        lines["transfer_checkpoint_files"] = "$(run), attempts-$(item).jsonl"
    lines["request_cpus"] = str(needs.cpus_per_node)
    if needs.memory_per_node_bytes:
        lines["request_memory"] = f"{-(-needs.memory_per_node_bytes // 2**20)}M"
    lines["request_disk"] = request.options.get("request_disk", "8G")
    if needs.device == "gpu":
        lines["request_gpus"] = str(needs.ranks_per_node)
        if wish := _wish(request):
            lines["require_gpus"] = wish
    if needs.time_s:
        lines["allowed_execute_duration"] = str(needs.time_s)
    lines["batch_name"] = _text("name", request.label.strip().rstrip("\\") or request.name)
    for name, value in request.options.items():
        if not _COMMAND.fullmatch(name):
            raise ConfigError(
                f"{name!r} is no command of a submit description: write one such as +WantFlocking."
            )
        if name in lines and name != "request_disk":
            raise ConfigError(
                f"{name}={value} was asked for as a command of the submit description, which Samestep sets "
                "itself: leave it out."
            )
        lines[name] = _text(f"value of {name}", value)
    text = "".join(f"{name} = {value}\n" for name, value in lines.items())
    items = "".join(f"{number},{item.name}\n" for number, item in enumerate(request.items))
    return f"{text}\nqueue item,run from (\n{items})\n"


def run_script(request: Request) -> str:
    """The text of run.sh, which finds the Python of the environment and starts an attempt in its place."""
    environment = request.environment or ""
    name = shlex.quote(Path(environment).name)
    if _image(request):
        steps, python = "", "python3"
    elif environment.endswith(TARBALLS):
        steps = (
            f"test -d environment || {{ mkdir environment && tar -xzf {name} -C environment; }}\n"
            "test ! -x environment/bin/conda-unpack || environment/bin/conda-unpack\n"
        )
        python = "environment/bin/python"
    elif environment.endswith(CONDA_FILES):
        steps = f'test -d environment || conda env create --quiet --prefix "$PWD/environment" --file {name}\n'
        python = "environment/bin/python"
    else:
        steps, python = "", shlex.quote(one_line("path of Python", request.python))
    return (
        "#!/bin/sh\n# One item of request.json, by its number: run.sh ITEM\nset -eu\n"
        'export HOME="${HOME:-$PWD}"\n'
        f'{steps}exec {python} -P -m samestep.cluster.attempt . "$1"\n'
    )


def _image(request: Request) -> str:
    if request.environment is None or request.environment_file is not None:
        return ""
    return _text("container image", request.environment)


def _sent(request: Request) -> list[str]:
    """The files that go with a job, as this machine knows them."""
    return [*request.transfer, *([request.environment_file] if request.environment_file else [])]


def _wish(request: Request) -> str:
    """What GPUs must have, as an expression of HTCondor's."""
    needs, parts = request.needs, []
    if needs.gpu_capability is not None:
        parts.append(f"Capability >= {needs.gpu_capability}")
    if needs.gpu_memory_bytes is not None:
        parts.append(f"GlobalMemoryMb >= {-(-needs.gpu_memory_bytes // 2**20)}")
    if needs.gpu_type is not None:
        name = one_line("type of GPU", needs.gpu_type).replace("\\", r"\\").replace('"', r"\"")
        parts.append(f'DeviceName == "{name.replace("$", "$(DOLLAR)")}"')
    return " && ".join(f"({part})" for part in parts) if len(parts) > 1 else "".join(parts)


def _text(what: str, value: str) -> str:
    """A value that is taken as it stands: nothing in it is a macro, and no backslash joins the next line."""
    value = one_line(what, value).replace("$", "$(DOLLAR)")
    if value != value.strip() or value.endswith("\\"):
        raise ConfigError(
            f"The {what} is {value!r}; at its ends HTCondor drops spaces and reads a backslash as “goes on”: "
            "choose another."
        )
    return value


def _path(path: str) -> str:
    """A path in a list of paths."""
    if "," in path:
        raise ConfigError(
            f"The file {path!r} is to be sent with the job; HTCondor cannot send names with commas."
        )
    return _text("path", path)


class HTCondor:
    """The engine: HTCondor's Python bindings where they are installed, else its commands on the PATH."""

    name = "htcondor"

    def files(self, request: Request) -> Files:
        return {DESCRIPTION: description(request, Path(request.home)), RUN: run_script(request)}

    def check(self) -> None:
        if _bindings() is None:
            missing("htcondor", "condor_submit", "condor_rm")

    def submit(self, folder: Path, request: Request) -> list[str]:
        """Hand over the description in `folder`; the ids by which HTCondor knows its items."""
        (folder / RUN).chmod(0o755)
        bindings = _bindings()
        try:
            if bindings is not None:
                cluster = _submit_by(bindings, (folder / DESCRIPTION).read_text("utf-8"), request)
            else:
                cluster = _run(["condor_submit", "-terse", DESCRIPTION], folder).split(".")[0].strip()
        except _errors_of(bindings) as error:
            reason = " ".join(str(getattr(error, "stderr", "") or error).split())
            raise LaunchError(
                f"HTCondor did not take the job {request.name!r}: {reason.rstrip('.')}. "
                f"What was handed over is {folder / DESCRIPTION}."
            ) from None
        return [f"{cluster}.{number}" for number in range(len(request.items))]

    def look(self, jobs: Mapping[str, Path]) -> dict[str, Sight]:
        found: dict[str, Sight] = {}
        for folder in set(jobs.values()):
            found |= read_log(folder / LOG)
        return {number: sight for number, sight in found.items() if number in jobs}

    def cancel(self, jobs: Mapping[str, Path]) -> None:
        bindings = _bindings()
        try:
            if bindings is not None:
                bindings.Schedd().act(bindings.JobAction.Remove, list(jobs))
            else:
                _run(["condor_rm", *jobs])
        except _errors_of(bindings) as error:
            reason = " ".join(str(getattr(error, "stderr", "") or error).split())
            raise LaunchError(f"HTCondor did not remove {', '.join(jobs)}: {reason}") from None


def _bindings() -> Any:
    """HTCondor's own module, or None; a folder of that name is not it."""
    for name in ("htcondor2", "htcondor"):
        with contextlib.suppress(ImportError):
            module = importlib.import_module(name)
            if hasattr(module, "Schedd"):
                return module
    return None


def _submit_by(bindings: Any, text: str, request: Request) -> str:
    """Hand over a description by the bindings; the number of the cluster of jobs.

    The items are handed over once more: the older bindings take none from the description, and the newer read
    a letter of it as a value. Those also print what they are given.
    """
    items = [{"item": str(number), "run": item.name} for number, item in enumerate(request.items)]
    with contextlib.redirect_stdout(io.StringIO()):
        result = bindings.Schedd().submit(bindings.Submit(text), itemdata=iter(items))
    return str(result.cluster())


def _errors_of(bindings: Any) -> tuple[type[Exception], ...]:
    """What is raised where HTCondor refuses, or is not there; its newer bindings have one of their own."""
    own = getattr(bindings, "HTCondorException", RuntimeError)
    return OSError, RuntimeError, subprocess.SubprocessError, own


def _run(command: list[str], cwd: Path | None = None) -> str:
    return subprocess.run(  # noqa: S603
        command,
        cwd=cwd,
        env=dict(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=ASK_S,
        check=True,
    ).stdout
