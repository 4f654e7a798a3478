"""The state of an optimizer, told by parameter name, so that it fits any order of the parameters."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from samestep.errors import CheckpointError, listed
from samestep.train.state import Tree

# `foreach` and the like say how an update is computed, not which
_NOT_SETTINGS = {"params", "param_names", "foreach", "fused", "capturable", "differentiable"}


def optimizer_state(optimizer: Optimizer, model: nn.Module, states: Mapping[Any, Any] | None = None) -> Tree:
    """The state of an optimizer by parameter name, and its groups' settings with the names they hold.

    `states` are its state for whole parameters, where it holds only a slice of that itself.
    Two optimizers of the same parameters give the same tree, whatever the order they got them in. Tensors
    are the optimizer's own. Settings that say how an update is computed, not which (`foreach`, `fused`,
    `capturable`), belong to the machine and are left out.
    """
    names = _parameter_names(optimizer, model)
    parts: dict[str, dict[str, Any]] = {}
    whole: dict[Any, Any] = {}
    key: Any  # torch says Tensor, yet lets an optimizer keep state of the whole under keys of its own
    for key, entries in (optimizer.state if states is None else states).items():
        if isinstance(key, Tensor):
            parts[names[key]] = dict(entries)
        else:
            whole[key] = entries
    groups = [
        {
            "parameters": {names[p]: list(p.shape) for p in _in_order(optimizer, group["params"], names)},
            "settings": {key: value for key, value in group.items() if key not in _NOT_SETTINGS},
        }
        for group in optimizer.param_groups
    ]
    groups.sort(key=lambda group: sorted(group["parameters"]))
    return {
        "kind": type(optimizer).__name__,
        "state": {name: parts[name] for name in sorted(parts)},
        "whole": whole,
        "groups": groups,
    }


def load_optimizer_state(optimizer: Optimizer, model: nn.Module, tree: Tree) -> None:
    """Put `optimizer_state`'s tree back into an optimizer of the same parameters, in any order of theirs.

    State goes to the device and memory layout of its parameter and keeps its own dtype; `step` counters
    stay on the CPU unless the update reads them on the device. Refuses before anything is changed.
    """
    names = _parameter_names(optimizer, model)
    _check_same_parameters(optimizer, names, tree)
    saved: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for group in tree["groups"]:
        saved.setdefault(tuple(sorted(group["parameters"])), []).append(group["settings"])
    optimizer.state.clear()
    for key, entries in tree["whole"].items():
        optimizer.state[key] = copy.deepcopy(entries)
    for group in optimizer.param_groups:
        _load_settings(group, saved[tuple(sorted(names[p] for p in group["params"]))].pop(0))
        counts_on_device = bool(group.get("capturable") or group.get("fused"))
        for parameter in group["params"]:
            entries = tree["state"].get(names[parameter])
            if entries is not None:
                optimizer.state[parameter] = {
                    key: _beside(parameter, value, on_host=key == "step" and not counts_on_device)
                    for key, value in entries.items()
                }


def _parameter_names(optimizer: Optimizer, model: nn.Module) -> dict[Tensor, str]:
    names: dict[Tensor, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        # a tied parameter has several names; the smallest does not depend on the order of the modules
        names[parameter] = min(name, names.get(parameter, name))
    for i, group in enumerate(optimizer.param_groups):
        for j, parameter in enumerate(group["params"]):
            names.setdefault(parameter, f"(group {i}, parameter {j})")
    return names


def _in_order(optimizer: Optimizer, parameters: list[Tensor], names: dict[Tensor, str]) -> list[Tensor]:
    # LBFGS keeps one long vector over all parameters, so for it alone their order is part of the state
    return parameters if isinstance(optimizer, LBFGS) else sorted(parameters, key=names.__getitem__)


def _check_same_parameters(optimizer: Optimizer, names: dict[Tensor, str], tree: Tree) -> None:
    groups = [{names[p]: list(p.shape) for p in group["params"]} for group in optimizer.param_groups]
    saved_groups = [group["parameters"] for group in tree["groups"]]
    here = {name: shape for group in groups for name, shape in group.items()}
    saved = {name: shape for group in saved_groups for name, shape in group.items()}
    faults = []
    if tree["kind"] != type(optimizer).__name__:
        faults.append(f"it was saved by {tree['kind']} and is to be restored into {type(optimizer).__name__}")
    if missing := sorted(here.keys() - saved.keys()):
        faults.append(f"it has nothing for {listed(missing)}, which the optimizer holds")
    if extra := sorted(saved.keys() - here.keys()):
        faults.append(f"it has {listed(extra)}, which the optimizer does not hold")
    foreign = [name for name in sorted(here.keys() & saved.keys()) if here[name] != saved[name]]
    if foreign:
        shapes = [f"{name} of shape {saved[name]} (here {here[name]})" for name in foreign]
        faults.append(f"it has {listed(shapes)}")
    if not faults:
        group_of = {name: set(group) for group in groups for name in group}
        moved = sorted(name for group in saved_groups for name in group if group_of[name] != set(group))
        if moved or len(groups) != len(saved_groups):
            faults.append(
                f"it has {len(saved_groups)} parameter groups and the optimizer {len(groups)}, "
                f"with other members for {listed(moved) or 'none'}"
            )
        if isinstance(optimizer, LBFGS) and list(here) != list(saved):
            faults.append(f"LBFGS needs the parameters in the order it was saved with: {listed(list(saved))}")
    if faults:
        raise CheckpointError(
            f"The optimizer's state in the checkpoint does not fit: {'; '.join(faults)}. "
            "Resume with the model and optimizer that the run was started with, or start a new run from the "
            "weights alone."
        )


def _load_settings(group: dict[str, Any], settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        if isinstance(value, Tensor) and isinstance(group.get(key), Tensor):
            with torch.no_grad():
                group[key].copy_(value)  # in place: schedules and captured graphs hold on to this tensor
        else:
            group[key] = copy.deepcopy(value)


def _beside(parameter: Tensor, value: Any, *, on_host: bool) -> Any:
    if isinstance(value, Tensor):
        if value.shape == parameter.shape and not on_host:
            return torch.empty_like(parameter.detach(), dtype=value.dtype).copy_(value)
        return value.detach().to("cpu" if on_host else parameter.device, copy=True)
    if isinstance(value, dict):
        return type(value)({key: _beside(parameter, item, on_host=on_host) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return type(value)(_beside(parameter, item, on_host=on_host) for item in value)
    return copy.deepcopy(value)
