"""Dropout whose masks belong to examples, not to ranks.

The mask of an example is a pure function of the step's key, the number of the dropout call in the step, and
the example's position in the global batch. So it does not matter which rank works on the example. Layers
change class in place; in evaluation, without a stream, and where the rows of the input cannot be matched
with examples, they are torch's own, and `rank_dependent` names those of the last kind.

Rows belong to examples when their number is a multiple k of the rank's number of examples, with the k rows of
an example together and k the same on all ranks. Of a tensor with three or more dimensions, the second may
hold the examples (sequence first). Ragged input that is a multiple by chance is not noticed, nor a sequence
that is just as long as a rank's share.
"""

import re

import torch
from torch import Tensor, nn

from samestep.nn.adopt import adopt
from samestep.nn.tracing import untraced
from samestep.world import current

__all__ = ["DropoutStream", "convert_dropout", "rank_dependent", "set_stream", "stream"]


class DropoutStream:
    """The key of the current step and the numbers of the dropout calls in it."""

    def __init__(self) -> None:
        self.key = 0
        self._calls: dict[int, int] = {}

    def begin(self, key: int) -> None:
        """Start a step (or a shard that runs by itself); `key` is a function of nothing about the rank."""
        self.key = key
        self._calls.clear()

    def now(self) -> tuple[int, dict[int, int]]:
        """Where the stream is, for `go_back`."""
        return self.key, dict(self._calls)

    def go_back(self, place: tuple[int, dict[int, int]]) -> None:
        """Go on from where the stream was."""
        self.key, self._calls = place[0], dict(place[1])

    def call(self) -> int:
        """The number of this call in the step.

        A call is known by a token from torch's default generator, which activation checkpointing winds back
        before it runs a forward again: the second run of a call gets the number, and the mask, of the first.
        """
        return self._calls.setdefault(_token(None), len(self._calls))

    def draw_tokens(self, generator: torch.Generator) -> None:
        """Draw from another generator what the calls of this step have drawn from torch's default one."""
        for _ in self._calls:
            _token(generator)


def _token(generator: torch.Generator | None) -> int:
    return int(torch.randint(1 << 62, (), dtype=torch.int64, device="cpu", generator=generator))


_stream: DropoutStream | None = None


def stream() -> DropoutStream | None:
    """The stream that masks are drawn from, or None."""
    return _stream


def set_stream(new: DropoutStream | None) -> None:
    """Draw masks from `new`; with None, dropout is torch's own."""
    global _stream
    _stream = new


class _ExampleNoise(nn.modules.dropout._DropoutNd):
    samestep_rank_dependent = False
    _no_batch_dim: int | None = None
    _whole_channels = False

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not 0 < self.p < 1 or input.numel() == 0:
            return super().forward(input)  # type: ignore[no-any-return]
        kept = _kept(self, input)
        if kept is None:
            return super().forward(input)  # type: ignore[no-any-return]
        return self._apply_noise(input, kept)

    def _apply_noise(self, x: Tensor, kept: Tensor) -> Tensor:
        kept.mul_(1 / (1 - self.p))
        return x.mul_(kept) if self.inplace else x * kept


class _ExampleAlphaNoise(_ExampleNoise):
    # −λα of SELU, to which dropped values are set; then mean 0 and variance 1 are restored
    # (Klambauer et al., "Self-normalizing neural networks", 2017, section on alpha dropout)
    _SATURATION = 1.7580993408473766

    def _apply_noise(self, x: Tensor, kept: Tensor) -> Tensor:
        s = self._SATURATION
        a = ((s * s * self.p + 1) * (1 - self.p)) ** -0.5
        offset = (kept - 1).mul_(s * a).add_(s * a * self.p)
        kept.mul_(a)
        return x.mul_(kept).add_(offset) if self.inplace else torch.addcmul(offset, x, kept)


class ExampleDropout(_ExampleNoise, nn.Dropout):
    pass


class ExampleDropout1d(_ExampleNoise, nn.Dropout1d):
    _whole_channels = True
    _no_batch_dim = 2


class ExampleDropout2d(_ExampleNoise, nn.Dropout2d):
    _whole_channels = True


class ExampleDropout3d(_ExampleNoise, nn.Dropout3d):
    _whole_channels = True
    _no_batch_dim = 4


class ExampleAlphaDropout(_ExampleAlphaNoise, nn.AlphaDropout):
    pass


class ExampleFeatureAlphaDropout(_ExampleAlphaNoise, nn.FeatureAlphaDropout):
    _whole_channels = True


_REPLACEMENTS: dict[type, type] = {
    nn.Dropout: ExampleDropout,
    nn.Dropout1d: ExampleDropout1d,
    nn.Dropout2d: ExampleDropout2d,
    nn.Dropout3d: ExampleDropout3d,
    nn.AlphaDropout: ExampleAlphaDropout,
    nn.FeatureAlphaDropout: ExampleFeatureAlphaDropout,
}

_RANDOM_NAME = re.compile(r"drop|stochasticdepth|rrelu", re.I)


def convert_dropout(model: nn.Module) -> None:
    """Give torch's dropout layers, and subclasses of them, masks by example; in place."""
    for module in model.modules():
        if isinstance(module, tuple(_REPLACEMENTS)):
            adopt(module, _REPLACEMENTS)


def rank_dependent(model: nn.Module) -> list[str]:
    """Names of the modules whose random numbers depend on the rank.

    Those are converted layers that met input whose rows are not examples, and modules that draw for
    themselves: attention and recurrent layers with dropout inside, and other layers of that kind by name.
    A call of `F.dropout` in a user's own forward cannot be seen here.
    """
    return [name for name, module in model.named_modules() if _is_rank_dependent(module)]


def _is_rank_dependent(module: nn.Module) -> bool:
    if isinstance(module, _ExampleNoise):
        return module.samestep_rank_dependent
    if isinstance(module, nn.MultiheadAttention):
        return bool(module.dropout > 0)
    if isinstance(module, nn.RNNBase):
        return bool(module.dropout > 0 and module.num_layers > 1)
    if isinstance(module, nn.RReLU):
        return module.lower != module.upper
    if next(module.children(), None) is not None or not _RANDOM_NAME.search(type(module).__name__):
        return False
    rates = (getattr(module, name, 0) for name in ("p", "drop_prob", "rate"))
    return any(isinstance(rate, int | float) and rate > 0 for rate in rates)


@untraced
def _kept(layer: _ExampleNoise, x: Tensor) -> Tensor | None:
    """1 where `x` is kept and 0 where it is dropped, in its dtype; None where torch must draw."""
    masks = stream()
    if masks is None:
        return None
    if not layer._whole_channels and _is_sequence_first(x):
        kept = _kept(layer, x.transpose(0, 1))
        return None if kept is None else kept.transpose(0, 1)
    first = None if x.dim() == layer._no_batch_dim else _first_row(x)
    if first is None or (layer._whole_channels and x.dim() < 2):
        layer.samestep_rank_dependent = True
        return None
    shape = [*x.shape[:2], *[1] * (x.dim() - 2)] if layer._whole_channels else list(x.shape)
    columns = torch.Size(shape[1:]).numel()
    bits = _bits(masks.key, masks.call(), first, shape[0], columns, x.device)
    return bits.ge_(_threshold(layer.p)).to(x.dtype).view(shape)


def _is_sequence_first(x: Tensor) -> bool:
    """Whether examples lie along the second dimension, as recurrent and attention layers have them."""
    world = current()
    if world is None or world.share is None or world.is_idle or x.dim() < 3:
        return False
    return x.shape[0] != world.share.count == x.shape[1]


def _first_row(x: Tensor) -> int | None:
    """Where the rows of `x` start among those of the global batch, or None if rows are not examples."""
    world = current()
    if world is None or world.share is None or x.dim() == 0:
        return None
    if world.is_idle:
        return 0  # a stand-in batch: its masks count for nothing
    per_example, rest = divmod(x.shape[0], world.share.count)
    return None if rest else world.share.first * per_example


def _threshold(p: float) -> int:
    """The smallest of the 2³² values of an int32 that is kept, so that a share `p` of them lies below it."""
    return min(round(p * 2**32) - 2**31, 2**31 - 1)


def _bits(key: int, call: int, first: int, rows: int, columns: int, device: torch.device) -> Tensor:
    """A (rows, columns) table of random int32, each a function of (key, call, row, column) alone.

    With keys r of the row and c of the column, both already mixed:
        h = (r ⊕ c)·M₁;  h = h ⊕ (h ≫ 15);  h = h·M₂   (mod 2³²)
    These are the inner rounds of Chris Wellons' `lowbias32` (hash-prospector, 2018). Its first shift is left
    out since r ⊕ c is mixed, its last since a comparison looks at the high bits, which are done.
    """
    seed = _mix64(key ^ _mix64(call))
    row_keys = _keys(first, rows, seed, device)
    column_keys = _keys(0, columns, _mix64(seed), device)
    bits = row_keys.unsqueeze(1).bitwise_xor(column_keys)
    bits.mul_(_M1)
    _shift_xor_(bits, 15)
    return bits.mul_(_M2)


def _keys(first: int, count: int, seed: int, device: torch.device) -> Tensor:
    """An int32 for each position from `first`; distinct, because every operation has an inverse."""
    keys = torch.arange(first, first + count, dtype=torch.int32, device=device)
    for half in (seed & 0xFFFFFFFF, seed >> 32):
        keys.bitwise_xor_(_signed(half))
        _shift_xor_(keys, 16)
        keys.mul_(_M1)
        _shift_xor_(keys, 15)
        keys.mul_(_M2)
        _shift_xor_(keys, 16)
    return keys


def _shift_xor_(h: Tensor, shift: int) -> None:
    # torch shifts signed numbers arithmetically; the mask makes it the logical shift that the mixer means
    h.bitwise_xor_((h >> shift).bitwise_and_((1 << (32 - shift)) - 1))


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value


def _mix64(value: int) -> int:
    """SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014)."""
    mask = (1 << 64) - 1
    z = (value + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


_M1, _M2 = _signed(0x7FEB352D), _signed(0x846CA68B)
