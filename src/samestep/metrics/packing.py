"""A tree of tensors and plain values as one flat tensor of bytes, and back.

Ranks may hold trees that differ in shapes, dtypes and lengths; as bytes they travel in a single gather.
Knows nothing of metrics or ranks. What comes back is data only: no code is ever loaded.

    8 bytes: length of the layout | the layout, JSON | the tensors in the order of the layout, each padded
"""

import json
from typing import Any

import torch
from torch import Tensor

_HEAD = 8
_ALIGNMENT = 16  # the largest item (complex128), so that every slice can be viewed as its dtype


class UnpackableError(TypeError):
    """The tree holds a kind of value that does not travel between ranks."""


def pack(tree: Any, device: torch.device) -> Tensor:
    """The tree as a 1-d uint8 tensor on `device`.

    A tree is made of dicts with text keys, lists, tuples, tensors, numbers, texts, bytes, booleans and None.
    """
    pieces: list[Tensor] = []
    layout = json.dumps(_describe(tree, pieces)).encode()
    head = len(layout).to_bytes(_HEAD, "little") + layout
    parts = [torch.frombuffer(bytearray(head), dtype=torch.uint8), *pieces]
    flat = torch.zeros(sum(_padded(part.numel()) for part in parts), dtype=torch.uint8, device=device)
    start = 0
    for part in parts:
        flat[start : start + part.numel()] = part.to(device)
        start += _padded(part.numel())
    return flat


def unpack(flat: Tensor) -> Any:
    """The tree that `pack` was given; its tensors are new and on the device of `flat`."""
    length = int.from_bytes(_bytes(flat[:_HEAD]), "little")
    layout = json.loads(_bytes(flat[_HEAD : _HEAD + length]))
    return _Reader(flat, _padded(_HEAD + length)).read(layout)


def _describe(value: Any, pieces: list[Tensor]) -> list[Any]:
    match value:
        case Tensor():
            flat = value.detach().resolve_conj().resolve_neg().reshape(-1)
            if flat.stride(0) != 1:  # also in tensors of one item or none, which count as contiguous
                flat = flat.clone(memory_format=torch.contiguous_format)
            pieces.append(flat.view(torch.uint8))
            return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape)]
        case bytes():
            pieces.append(torch.frombuffer(bytearray(value or b"\0"), dtype=torch.uint8)[: len(value)])
            return ["bytes", len(value)]
        case dict():
            return ["dict", {str(name): _describe(item, pieces) for name, item in value.items()}]
        case list() | tuple():
            kind = "list" if isinstance(value, list) else "tuple"
            return [kind, [_describe(item, pieces) for item in value]]
        case None | bool() | int() | float() | str():
            return ["plain", value]
    raise UnpackableError(f"a value of type {type(value).__name__}")


class _Reader:
    """Reads a layout and, along with it, the tensors that it names."""

    def __init__(self, flat: Tensor, start: int) -> None:
        self.flat = flat
        self.start = start

    def read(self, layout: list[Any]) -> Any:
        match layout:
            case ["tensor", name, shape]:
                dtype = getattr(torch, name)
                assert isinstance(dtype, torch.dtype)
                count = torch.Size(shape).numel()
                return self._take(count * dtype.itemsize).view(dtype).reshape(shape)
            case ["bytes", length]:
                return _bytes(self._take(length))
            case ["dict", items]:
                return {name: self.read(item) for name, item in items.items()}
            case ["list", items]:
                return [self.read(item) for item in items]
            case ["tuple", items]:
                return tuple(self.read(item) for item in items)
            case ["plain", value]:
                return value
        raise AssertionError(f"unknown layout {layout!r}")

    def _take(self, num_bytes: int) -> Tensor:
        piece = self.flat[self.start : self.start + num_bytes].clone()
        self.start += _padded(num_bytes)
        return piece


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _bytes(flat: Tensor) -> bytes:
    return flat.cpu().numpy().tobytes()
