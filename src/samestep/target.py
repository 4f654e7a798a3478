"""Targets: from what stands on the command line to a Task.

A TARGET is `file.py`, `file.py:name`, `package.module:name` or `config.yaml`. The name is that of a Task, or
of a function that returns one; `--set key=value` sets the function's parameters and the task's settings.
"""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from samestep.config import PLAIN_SETTINGS, read_config
from samestep.errors import ConfigError, TargetError
from samestep.task import Task
from samestep.usercode import CannotImport, import_file, import_module, nearest, put_first
from samestep.yamlfile import parse_override

_FORMS = "a target is `file.py`, `file.py:name`, `package.module:name` or `config.yaml`"


def load(target: str, overrides: Sequence[str] = ()) -> Task:
    """The task that `target` names, with `key=value` overrides in place; a later override wins."""
    where, colon, name = target.rpartition(":")
    if not colon:
        where, name = target, ""
    path = Path(where)
    if path.suffix in (".yaml", ".yml"):
        if colon:
            raise TargetError(
                f"{target!r} names `{name}` in a YAML file, which is one task: leave `:{name}` out."
            )
        return read_config(_existing(path), overrides)
    try:
        module = import_file(_existing(path)) if path.suffix == ".py" else _module(where, colon, path)
    except CannotImport as error:
        raise TargetError(f"The target {target!r} cannot be loaded: {error}") from error.__cause__
    name = name or _only_task(module, where)
    if not hasattr(module, name):
        raise TargetError(f"{where} has no `{name}`{nearest(name, vars(module)) or _listed(module)}")
    return _with_overrides(getattr(module, name), f"{where}:{name}", overrides)


def _existing(path: Path) -> Path:
    if path.is_dir():
        raise TargetError(f"{path} is a folder; {_FORMS}.")
    if not path.exists():
        beside = nearest(path.name, (p.name for p in path.parent.glob("*"))) if path.parent.is_dir() else ""
        raise TargetError(f"There is no file {path} (in {Path.cwd()}){beside or '.'}")
    return path


def _module(where: str, colon: str, path: Path) -> ModuleType:
    if not colon or not all(part.isidentifier() for part in where.split(".")):
        what = "a folder" if path.is_dir() else "a file of another kind" if path.exists() else "none of these"
        raise TargetError(f"{where!r} is {what}; {_FORMS}.")
    put_first(Path.cwd())
    return import_module(where)


def _tasks_in(module: ModuleType) -> dict[str, Any]:
    """Tasks, and functions of this module that say they return one, by name."""
    found = {}
    for name, value in vars(module).items():
        makes = inspect.isfunction(value) and value.__module__ == module.__name__
        annotation = value.__annotations__.get("return") if makes else None
        says_so = annotation is Task or (isinstance(annotation, str) and annotation.split(".")[-1] == "Task")
        if not name.startswith("_") and (isinstance(value, Task) or says_so):
            found[name] = value
    return found


def _only_task(module: ModuleType, where: str) -> str:
    tasks = _tasks_in(module)
    if hasattr(module, "task"):
        return "task"
    if len(tasks) == 1:
        return next(iter(tasks))
    if not tasks:
        raise TargetError(
            f"{where} declares no Task; write `task = samestep.Task(…)` in it or, if it has a loop of its "
            f"own, write `-- python {where}` in its place."
        )
    raise TargetError(
        f"{where} has several Tasks: name one of them, such as `{where}:{next(iter(tasks))}`{_listed(module)}"
    )


def _listed(module: ModuleType) -> str:
    tasks = _tasks_in(module)
    return f"; its Tasks are {', '.join(tasks)}." if tasks else "; it declares no Task."


def _with_overrides(found: Any, label: str, overrides: Sequence[str]) -> Task:
    parsed = {key: (text, value) for key, text, value in map(parse_override, overrides)}
    parameters: Mapping[str, Any] = {}
    if not isinstance(found, Task) and callable(found):
        parameters = _parameters(found)
        given = {
            key: _of_kind(parameters[key], key, *parsed.pop(key)) for key in list(parsed) if key in parameters
        }
        found, function = _call(found, label, given), found
        label = f"what {function.__name__} returned" if hasattr(function, "__name__") else label
    if not isinstance(found, Task):
        raise TargetError(
            f"{label} is of type {type(found).__name__}; it must be a Task or a function that returns one."
        )
    return dataclasses.replace(found, **_settings(parsed, parameters)) if parsed else found


def _parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """The kinds of a function's parameters: what is annotated, else that of the default, else any."""
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # an annotation that only a type checker can read
        hints = {}
    kinds = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            untyped = parameter.default is parameter.empty or parameter.default is None
            kinds[name] = hints.get(name, Any if untyped else type(parameter.default))
    return kinds


def _call(function: Callable[..., Any], label: str, arguments: Mapping[str, Any]) -> Any:
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise TargetError(f"{label} cannot be called: {error}; give it with --set name=value.") from error
    return function(**arguments)


def _settings(parsed: Mapping[str, tuple[str, Any]], parameters: Mapping[str, Any]) -> dict[str, Any]:
    settings = {}
    for key, (text, value) in parsed.items():
        if key in PLAIN_SETTINGS:
            settings[key] = _of_kind(PLAIN_SETTINGS[key], key, text, value)
        elif (head := key.partition(".")[0]) in Task.setting_names():
            raise ConfigError(
                f"--set {key}={text}: `{head}` of a task in Python is code, which --set cannot change. "
                "Name a function that returns the task, and set its parameters: "
                "def task(lr: float = 0.1) -> Task."
            )
        else:
            known = [*parameters, *PLAIN_SETTINGS]
            hint = nearest(key, known) or f". The settings are {', '.join(known)}."
            raise ConfigError(f"--set {key}={text}: there is no setting `{key}`{hint}")
    return settings


def _of_kind(kind: Any, key: str, text: str, value: Any) -> Any:
    """The value as `kind`: as YAML reads it, else as `kind` reads the bare text (`8` for a str)."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))
    attempts = [(value, True), (text, False)]
    if isinstance(value, list | dict):
        attempts.append((value, False))
    for attempt, strict in attempts:
        try:
            return adapter.validate_python(attempt, strict=strict)
        except ValidationError as error:
            said = error.errors()[0]["msg"].replace("Input should", "it should", 1)
    raise ConfigError(f"--set {key}={text}: `{key}` is {value!r}; {said}.")
