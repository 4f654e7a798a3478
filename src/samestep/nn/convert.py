"""Finding the norm layers of a model, making them work over all ranks, and naming those that do not.

A layer is known by the qualified name of its class or of one of its bases, so that converters for other
libraries cost no import. Knows nothing of how a layer computes its statistics.
"""

import re
from collections.abc import Callable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from samestep.errors import ConfigError
from samestep.findings import Finding
from samestep.nn import escnn
from samestep.nn.adopt import qualified_name
from samestep.nn.batch_norm import synchronise_batch_norm
from samestep.nn.instance_norm import synchronise_instance_norm

__all__ = ["Converter", "is_synchronised", "register_norm", "synchronise"]

Converter = Callable[[nn.Module], None]

_converters: dict[str, Converter] = {}

# a buffer that holds a statistic, by its name; `(?<![a-z])` keeps `var` out of `invariant`
_STATISTIC = re.compile(
    r"(?<![a-z])(running|moving|ema|mean|avg|average|var|variance|std|cov|covariance)(?![a-z])", re.I
)
# what only a layer that updates its statistics has: FrozenBatchNorm and input normalisation have neither
_UPDATES = ("momentum", "bn_momentum", "decay", "ema_decay")
_COUNTERS = ("num_batches_tracked", "num_updates", "num_batches", "steps_tracked")


def register_norm(kind: type[nn.Module] | str, converter: Converter) -> None:
    """Have `synchronise` call `converter(module)` on instances of `kind` and of its subclasses.

    `kind` is a class or its qualified name ("package.module.Class"), which is not imported. The converter
    changes the module in place and sets its attribute `samestep_synchronised` to True. The most derived
    class that is registered decides; a later registration replaces an earlier one.
    """
    name = kind if isinstance(kind, str) else qualified_name(kind)
    if "." not in name:
        raise ConfigError(
            f"register_norm was given {name!r}, a name without a module; give the class itself or its "
            "full name, such as 'package.module.Norm'."
        )
    _converters[name] = converter


def synchronise(model: nn.Module) -> list[Finding]:
    """Make every norm layer known here work over all ranks, in place; findings name those left out."""
    for module in model.modules():
        converter = None if is_synchronised(module) else _converter_of(module)
        if converter is not None:
            converter(module)
    return [
        _unsynchronised(name, module, statistics)
        for name, module in model.named_modules()
        if not is_synchronised(module) and (statistics := _statistics_of(module))
    ]


def is_synchronised(module: nn.Module) -> bool:
    """Whether the module says that its statistics cover all ranks."""
    return bool(getattr(module, "samestep_synchronised", False))


def _converter_of(module: nn.Module) -> Converter | None:
    names = (qualified_name(kind) for kind in type(module).__mro__)
    return next((_converters[name] for name in names if name in _converters), None)


def _statistics_of(module: nn.Module) -> list[str]:
    """The module's own buffers that look like statistics which training updates.

    Names alone would accuse constants, so the module must also show a sign of updating: a counter of
    batches or a momentum. A layer that shows none is caught when its buffers change: see `checks`.
    """
    own = dict(module.named_buffers(recurse=False))
    updates = any(name in own or hasattr(module, name) for name in _COUNTERS) or any(
        _is_momentum(module, name) for name in _UPDATES
    )
    if not updates:
        return []
    return [n for n, buffer in own.items() if buffer.is_floating_point() and _STATISTIC.search(_spaced(n))]


def _is_momentum(module: nn.Module, name: str) -> bool:
    missing = object()
    value = getattr(module, name, missing)
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _spaced(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", name)


def _unsynchronised(name: str, module: nn.Module, statistics: list[str]) -> Finding:
    kind = qualified_name(type(module))
    return Finding(
        cause="norm-not-synchronised",
        message=(
            f"{name or 'the model itself'} ({kind}) keeps batch statistics of its own rank only: "
            f"{', '.join(statistics)}."
        ),
        evidence={"module": name, "class": kind, "buffers": statistics},
        fix=(
            "Compute its statistics with samestep.nn.moments and set `samestep_synchronised = True` on the "
            "class, or give a converter to samestep.nn.register_norm."
        ),
    )


register_norm(_BatchNorm, synchronise_batch_norm)
register_norm(_InstanceNorm, synchronise_instance_norm)
for _name, _converter in escnn.CONVERTERS.items():
    register_norm(_name, _converter)
