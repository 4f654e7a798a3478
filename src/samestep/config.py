"""Config: a Task written in YAML.

Knows the keys and where each stands. The kinds of plain settings come from `Task` itself. Code comes in
through dotted names alone: `{class: package.module.Name, argument: value, …}`, or a function's name.
"""

import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, create_model
from torch import nn

from samestep.errors import ConfigError
from samestep.losses import supervised
from samestep.recipe import Recipe, named
from samestep.task import Task
from samestep.usercode import nearest, put_first
from samestep.yamlfile import YamlFile, parse_override


def _is_plain(hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return all(map(_is_plain, get_args(hint)))
    return hint in (int, float, str, bool, NoneType) or get_origin(hint) is Literal


PLAIN_SETTINGS: Mapping[str, Any] = {
    name: hint for name, hint in get_type_hints(Task).items() if _is_plain(hint)
}
"""The settings of a Task that a word or a number can say, with their kinds."""

_ELSEWHERE = {
    "batch_size": ("data", "batch_size"),
    "eval_batch_size": ("data", "eval_batch_size"),
    "workers": ("data", "workers"),
    "shuffle": ("data", "shuffle"),
    "schedule_every": ("schedule", "every"),
}
"""Where the plain settings stand that are not at the top level; `--set` takes their short names too."""


def _class_spec(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or "class" not in value:
        raise ValueError("it must be {class: package.module.Name, argument: value, …}")
    if strange := [key for key in value if not isinstance(key, str)]:
        raise ValueError(f"its key {strange[0]!r} must be a word: put it in quotes")
    return value


def _code_spec(value: Any) -> dict[str, Any] | str:
    return value if isinstance(value, str) else _class_spec(value)


def _batch_keys(value: Any) -> Any:
    for key in value if isinstance(value, list) else [value]:
        if isinstance(key, bool) or not isinstance(key, int | str):
            raise ValueError("it must be a position or a key of a batch")
    return value


_Class = Annotated[Any, PlainValidator(_class_spec)]
_Function = Annotated[Any, PlainValidator(_code_spec)]
_Keys = Annotated[Any, PlainValidator(_batch_keys)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _section(name: str, *above: str, **keys: Any) -> type[_Section]:
    """A section of the file: its own keys, and the plain settings that stand in it."""
    here = {n: (hint, None) for n, hint in PLAIN_SETTINGS.items() if _ELSEWHERE.get(n, (n,))[:-1] == above}
    return create_model(name, __base__=_Section, **{**keys, **here})


_Data = _section(
    "Data",
    "data",
    train=(_Class, ...),
    valid=(_Class, None),
    test=(_Class, None),
    sampler=(_Class, None),
    batch_sampler=(_Class, None),
    collate=(_Function, None),
)
_Config = _section(
    "Config",
    n_gpus=(Annotated[int, Field(ge=1)], None),
    model=(_Class, ...),
    data=(_Data, ...),
    loss=(_Function, ...),
    inputs=(_Keys, 0),
    target=(_Keys, 1),
    optimizer=(_Class, ...),
    schedule=(_Class, None),
    metrics=(dict[str, _Class], {}),
    score=(str, None),
    predict=(str, None),
    hooks=(list[_Class], []),
)


def read_config(path: Path | str, overrides: Sequence[str] = ()) -> Task:
    """The task that a YAML file declares, with `key=value` overrides (`optimizer.lr=0.01`) in place.

    The file's folder goes first on the import path. Classes are found and their arguments checked at once;
    models, data sets, optimizers, schedules, samplers and metrics are made later, on each rank.
    """
    file = YamlFile(Path(path))
    for override in overrides:
        key, _, value = parse_override(override)
        file.set(_ELSEWHERE.get(key) or key.split("."), value, override)
    values = _checked(file)
    put_first(file.path.resolve().parent)
    settings = _plain_settings(values) | _Code(file, values).settings()
    try:
        return Task(**settings)
    except ConfigError as error:
        raise ConfigError(f"{file.path}: {error}") from error


def _checked(file: YamlFile) -> dict[str, Any]:
    """The values of the file, as far as given; the first thing that is wrong as a ConfigError."""
    try:
        return _Config.model_validate(file.values).model_dump(exclude_unset=True)
    except ValidationError as failure:
        # a typo is often an unknown key and a missing one: the unknown one says more
        error = min(failure.errors(), key=lambda e: e["type"] != "extra_forbidden")
    *parents, key = keys = error["loc"]
    place, within = file.place(keys), f"in `{'.'.join(map(str, parents))}`" if parents else "at the top level"
    if error["type"] == "extra_forbidden":
        known = (_Data if parents else _Config).model_fields
        hint = nearest(str(key), known) or f". The keys are {', '.join(known)}."
        if not parents and key in _ELSEWHERE:
            hint = f"; it stands at `{'.'.join(_ELSEWHERE[str(key)])}`."
        raise ConfigError(f"{place}: unknown key `{key}` {within}{hint}")
    if error["type"] == "missing":
        raise ConfigError(f"{place}: the key `{key}` is missing {within}.")
    said = error["msg"].removeprefix("Value error, ").replace("Input should", "it should", 1)
    raise ConfigError(f"{place}: `{'.'.join(map(str, keys))}` is {reprlib.repr(error['input'])}; {said}.")


def _plain_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The plain settings among the values, by the names that they have in a Task."""
    found = {}
    for name in PLAIN_SETTINGS:
        *above, key = _ELSEWHERE.get(name, (name,))
        section = values.get(above[0], {}) if above else values
        if key in section:
            found[name] = section[key]
    return found


class _Code:
    """What is code in the values: recipes and functions, each with the place where it was written."""

    def __init__(self, file: YamlFile, values: Mapping[str, Any]) -> None:
        self.file, self.values = file, values

    def settings(self) -> dict[str, Any]:
        """The settings of a Task that are code, as far as given."""
        data_set = ("data_source", "dataset")
        recipes = {
            "model": self.recipe("model"),
            "train_data": self.recipe("data", "train"),
            "valid_data": self.recipe("data", "valid"),
            "test_data": self.recipe("data", "test"),
        }
        of_something = {
            "sampler": self.recipe("data", "sampler", provided=data_set),
            "batch_sampler": self.recipe("data", "batch_sampler", provided=data_set),
            "optimizer": self.recipe("optimizer", first=True),
            "schedule": self.recipe("schedule", provided=("optimizer",), first=True),
        }
        made = {
            "loss": self.loss(),
            "collate": self.made("data", "collate"),
            "score": self.made("score") or self.score_by_target(),
            "predict": self.made("predict"),
            "metrics": {name: self.recipe("metrics", name) for name in self.values.get("metrics", {})},
            "hooks": [self.made("hooks", index) for index in range(len(self.values.get("hooks", [])))],
        }
        applied = {name: recipe.of for name, recipe in of_something.items() if recipe}
        return {name: value for name, value in (recipes | applied | made).items() if value is not None}

    def place(self, *keys: str | int) -> str:
        return f"{self.file.place(keys)}: `{'.'.join(map(str, keys))}`"

    def spec(self, *keys: str | int) -> Any:
        found: Any = self.values
        for key in keys:
            found = found.get(key) if isinstance(key, str) else found[key]
        return found

    def recipe(self, *keys: str | int, provided: Sequence[str] = (), first: bool = False) -> Recipe | None:
        spec = self.spec(*keys)
        if spec is None:
            return None
        own = {key: value for key, value in spec.items() if (*keys, key) not in _ELSEWHERE.values()}
        return Recipe.read(own, self.place, *keys, provided=provided, first=first)

    def made(self, *keys: str | int) -> Any:
        """A function by its name, or what a recipe makes."""
        spec = self.spec(*keys)
        if not isinstance(spec, str):
            recipe = self.recipe(*keys)
            return recipe and recipe()
        found = named(spec, self.place(*keys))
        if isinstance(found, type):
            raise ConfigError(f"{self.place(*keys)}: {spec} is a class; write {{class: {spec}}}.")
        return found

    def score_by_target(self) -> Any:
        if "target" not in self.values:
            return None
        target = self.values["target"]
        return lambda outputs, batch: (outputs, batch[target])

    def loss(self) -> Any:
        found = self.made("loss")
        if isinstance(found, nn.Module):
            try:
                return supervised(
                    found, inputs=self.values.get("inputs", 0), target=self.values.get("target", 1)
                )
            except ConfigError as error:
                raise ConfigError(f"{self.place('loss')}: {error}") from error
        if "inputs" in self.values:
            raise ConfigError(
                f"{self.place('inputs')} is given, but `loss` is a function of a whole batch: "
                "take `inputs` out, or give a criterion such as {class: torch.nn.MSELoss}."
            )
        return found
