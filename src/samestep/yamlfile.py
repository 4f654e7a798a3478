"""YamlFile: the values of a YAML file, the line that each stands on, and overrides in their place.

Reads plain YAML and nothing else: no tags that make objects. Knows nothing of what the keys mean.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from samestep.errors import ConfigError


class Loader(yaml.SafeLoader):
    """Plain YAML where `1e-3` is a number, as in YAML 1.2, and no key is written twice."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        assert node is not None
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = f"the key `{key.value}` is there twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return node


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def parse_override(override: str) -> tuple[str, str, Any]:
    """`key=value` as its key, its text, and its value read as YAML."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {override!r} is not of the form key=value.")
    try:
        return key.strip(), text, yaml.load(text, Loader)  # noqa: S506  Loader is a SafeLoader
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"--set {override!r}: the value is not YAML; put it in quotes.") from error


class YamlFile:
    """The keys and values of one file; no two keys share a value, whatever its anchors say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._overridden: dict[tuple[str, ...], str] = {}
        try:
            loader = Loader(path.read_text(encoding="utf-8"))
            self._root = loader.get_single_node()
            values = _unshared(loader.construct_document(self._root)) if self._root else None
        except yaml.MarkedYAMLError as error:
            line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
            raise ConfigError(f"{path}{line}: this YAML cannot be read: {error.problem}.") from error
        except RecursionError as error:
            raise ConfigError(
                f"{path} cannot be read: a value in it holds itself, or is nested too deep."
            ) from error
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{path} holds {values!r}; it must hold keys and values such as `epochs: 3`.")
        self.values: dict[Any, Any] = values

    def set(self, steps: Sequence[str], value: Any, override: str) -> None:
        """Put `value` where the keys `steps` lead; keys that are not there yet are made on the way."""
        within: Any = self.values
        for depth, step in enumerate(steps):
            key: str | int = int(step) if isinstance(within, list) and step.isdigit() else step
            fits = isinstance(within, dict) or (isinstance(within, list) and key in range(len(within)))
            if not fits:
                held = f"`{'.'.join(steps[:depth])}` is {within!r}"
                raise ConfigError(f"--set {override}: {held} in {self.path}, which has no `{step}` to set.")
            if depth == len(steps) - 1:
                within[key] = value
            elif isinstance(within, dict):
                within = within.setdefault(key, {})
            else:
                within = within[key]
        self._overridden[tuple(steps)] = override

    def place(self, keys: Sequence[str | int]) -> str:
        """`file:line` of a key (of the nearest one above it that is there), or the override that set it."""
        words = tuple(map(str, keys))
        for steps, override in self._overridden.items():
            if words[: len(steps)] == steps:
                return f"--set {override}"
        node, line = self._root, None
        for word in words:
            if isinstance(node, yaml.MappingNode):
                found = [pair for pair in node.value if pair[0].value == word]
            elif isinstance(node, yaml.SequenceNode):
                found = [(item, item) for index, item in enumerate(node.value) if str(index) == word]
            else:
                found = []
            if not found:
                break
            line, node = found[0][0].start_mark.line + 1, found[0][1]
        return f"{self.path}:{line}" if line else str(self.path)


def _unshared(value: Any) -> Any:
    """A copy in which an anchor and its aliases are values of their own, so that one can be overridden."""
    if isinstance(value, dict):
        return {key: _unshared(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unshared(item) for item in value]
    return value
