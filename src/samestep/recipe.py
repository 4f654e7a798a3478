"""Recipe: something to be made later, by a class or function and its arguments.

Written as `{class: package.module.Name, argument: value, …}`. The name and the arguments are checked when
the recipe is read, so that a typo is found before anything is made; it is made as often as it is called.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samestep.errors import ConfigError
from samestep.usercode import CannotImport, find, nearest

Key = str | int


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A class or function `make`, called `name`, with arguments that may hold recipes themselves.

    `parameters` are the names that `make` takes, each with whether it may be left out, or None where Python
    cannot tell. `takes` are the names under which `of` hands over its value. `place` says where the
    recipe was written.
    """

    name: str
    make: Callable[..., Any]
    arguments: Mapping[str, Any]
    parameters: Mapping[str, bool] | None
    takes: tuple[str, ...]
    place: str

    @classmethod
    def read(
        cls,
        spec: Mapping[str, Any],
        where: Callable[..., str],
        *keys: Key,
        provided: Sequence[str] = (),
        first: bool = False,
    ) -> "Recipe":
        """The recipe that `spec` writes down at `keys`; `where(*keys)` says the place of a key.

        `provided` are names of arguments that will come with the call, for this recipe and those inside it;
        with `first`, so will the first argument of this one, whatever its name.
        """
        name = spec["class"]
        if not isinstance(name, str):
            raise ConfigError(f"{where(*keys)}: `class` is {name!r}; it must be `package.module.Name`.")
        make = named(name, where(*keys))
        parameters = _parameters_of(make)
        inner = {key: value for key, value in spec.items() if key != "class"}
        for key in inner:
            if parameters is not None and key not in parameters and "**" not in parameters:
                raise ConfigError(
                    f"{where(*keys, key)}: {name} has no argument `{key}`{nearest(key, parameters) or '.'} "
                    f"It takes {', '.join(parameters) or 'none'}."
                )
        named_ones = [key for key in parameters or () if key != "**"]
        takes = (*provided, *named_ones[: int(first)])
        given = {*spec, *takes}
        missing = [key for key, optional in (parameters or {}).items() if not optional and key not in given]
        if missing:
            raise ConfigError(f"{where(*keys)}: {name} needs {', '.join(missing)}, which is not given.")
        return cls(
            name=name,
            make=make,
            arguments=_read(inner, where, *keys, provided=provided),
            parameters=parameters,
            takes=takes,
            place=where(*keys),
        )

    def of(self, value: Any) -> Any:
        """Make it of `value`: the optimizer of parameters, the sampler of a data set."""
        return self(**dict.fromkeys(self.takes, value))

    def __call__(self, **provided: Any) -> Any:
        """Make it; a provided argument goes wherever a parameter of that name was left open."""
        known = self.parameters or {}
        extra = {key: value for key, value in provided.items() if key in known and key not in self.arguments}
        arguments = {key: _made(value, provided) for key, value in self.arguments.items()}
        try:
            return self.make(**arguments, **extra)
        except Exception as error:
            error.add_note(f"while making {self.name} ({self.place})")
            raise


def named(name: str, place: str) -> Callable[..., Any]:
    """The class or function of a dotted name."""
    try:
        found = find(name)
    except CannotImport as error:
        raise ConfigError(f"{place}: `{name}` cannot be used: {error}") from error.__cause__
    if not callable(found):
        raise ConfigError(f"{place}: `{name}` is {found!r}; it must be a class or a function.")
    return found  # type: ignore[no-any-return]


def _read(value: Any, where: Callable[..., str], *keys: Key, provided: Sequence[str]) -> Any:
    if isinstance(value, dict):
        if "class" in value:
            return Recipe.read(value, where, *keys, provided=provided)
        return {key: _read(item, where, *keys, key, provided=provided) for key, item in value.items()}
    if isinstance(value, list):
        return [_read(item, where, *keys, i, provided=provided) for i, item in enumerate(value)]
    return value


def _made(value: Any, provided: Mapping[str, Any]) -> Any:
    if isinstance(value, Recipe):
        return value(**provided)
    if isinstance(value, dict):
        return {key: _made(item, provided) for key, item in value.items()}
    if isinstance(value, list):
        return [_made(item, provided) for item in value]
    return value


def _parameters_of(make: Callable[..., Any]) -> dict[str, bool] | None:
    """Names that can be given, and whether each may be left out; `**` stands for any other name."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # written in C, without a signature
        return None
    named = {}
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            named["**"] = True
        elif parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            named[parameter.name] = parameter.default is not parameter.empty
    return named
