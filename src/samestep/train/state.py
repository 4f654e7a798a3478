"""State trees: what a run must remember, as plain data and named tensors, without pickle.

Knows how a tree becomes a JSON document with tensors beside it and back, and what the digest of a state is.
Refuses to know files, steps and devices: tensors come back on the CPU.

A document is the tree itself wherever JSON can say it. The rest is an object with one key that starts
with "$": `{"$tuple": [...]}`, `{"$tensor": "fc.weight"}`. A dict with such keys of its own, or with keys
that are not texts, is written as `{"$dict": [[key, value], ...]}`.
"""

import base64
import hashlib
import json
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samestep.errors import CheckpointError
from samestep.train.tensorfile import DTYPES, raw_bytes

Tree = Any
"""None, bool, int, float, str, bytes, list, tuple, dict, OrderedDict, Counter, set, frozenset, tensors,
numeric numpy arrays and scalars, torch dtypes and devices, nested as one likes."""

_MAPPINGS: dict[type, str] = {dict: "$dict", OrderedDict: "$ordered", Counter: "$counter"}
_NUMERIC_KINDS = "biufcmM"


def pack(tree: Tree) -> tuple[Any, dict[str, Tensor]]:
    """The tree as (JSON document, tensors by name); names are readable paths, such as "state/fc.weight/step".

    The tensors are the tree's own, not copies. Values, dtypes and shapes are kept; devices, strides,
    gradients, and whether two places hold one tensor are not.
    """
    packer = _Packer()
    return packer.pack(tree), packer.tensors


def unpack(document: Any, tensors: Mapping[str, Tensor]) -> Tree:
    """The tree that `pack` was given; its tensors are those of `tensors` wherever their dtype allows."""
    try:
        return _unpack(document, tensors)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"The document of this state cannot be read ({type(error).__name__}: {error}); it was not made "
            "by this version of Samestep. Load it with the version that wrote it."
        ) from error


def digest(trees: Mapping[str, Tree]) -> str:
    """SHA-256 of named trees: names, dtypes, shapes and bytes, in the order of the names.

    Equal states have equal digests whatever device they are on and in whatever order their dicts were
    filled. One bit of difference in one tensor gives another digest.
    """
    packer = _Packer(canonical=True)
    document = packer.pack(dict(trees))
    sha = hashlib.sha256(b"samestep-state-1\n")
    sha.update(_text(document).encode())
    for name in sorted(packer.tensors):
        tensor = packer.tensors[name]
        # a line of JSON holds no newline, and its dtype and shape say how many bytes follow: unambiguous
        sha.update(f"\n{_text([name, _name_of(tensor.dtype), list(tensor.shape)])}\n".encode())
        sha.update(raw_bytes(tensor))
    return sha.hexdigest()


class _Packer:
    """One walk over a tree; `canonical` makes the document independent of the order and kind of mappings."""

    def __init__(self, *, canonical: bool = False) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._canonical = canonical

    def pack(self, tree: Tree) -> Any:
        try:
            return self._encode(tree, ())
        except RecursionError:
            raise CheckpointError(
                "The state holds itself or is nested hundreds of levels deep, so it cannot be saved; "
                "leave out the reference that leads back."
            ) from None

    def _encode(self, value: Tree, path: tuple[str, ...]) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if kind is list:
            return self._encode_all(value, path)
        if kind is tuple:
            return {"$tuple": self._encode_all(value, path)}
        if kind in (set, frozenset):
            return {f"${kind.__name__}": sorted((self._encode_key(v, path) for v in value), key=_text)}
        if kind in _MAPPINGS:
            return self._encode_mapping(value, path)
        if kind is bytes:
            return {"$bytes": base64.b64encode(value).decode()}
        if kind is torch.dtype:
            return {"$dtype": _name_of(value)}
        if kind is torch.device:
            return {"$device": str(value)}
        if kind in (Tensor, nn.Parameter):
            return self._encode_tensor(value, path)
        if kind is np.ndarray and value.dtype.kind in _NUMERIC_KINDS:
            raw = torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8) if value.size else _EMPTY
            return {"$array": self._name(raw, path), "dtype": value.dtype.str, "shape": list(value.shape)}
        if isinstance(value, np.generic) and value.dtype.kind in _NUMERIC_KINDS:
            return {"$scalar": base64.b64encode(value.tobytes()).decode(), "dtype": value.dtype.str}
        raise self._refused(
            kind.__name__, path, "keep what its own state_dict() or dict(), list() or .tolist() gives"
        )

    def _encode_all(self, values: Iterable[Tree], path: tuple[str, ...]) -> list[Any]:
        return [self._encode(value, (*path, str(index))) for index, value in enumerate(values)]

    def _encode_mapping(self, mapping: Mapping[Any, Tree], path: tuple[str, ...]) -> Any:
        keyed = [(self._encode_key(key, path), key, value) for key, value in mapping.items()]
        if self._canonical:
            keyed.sort(key=lambda item: _text(item[0]))
        items = [[key_doc, self._encode(value, (*path, _segment(key)))] for key_doc, key, value in keyed]
        kind = dict if self._canonical else type(mapping)
        if kind is dict and all(type(key) is str and not key.startswith("$") for key in mapping):
            return dict(items)
        return {_MAPPINGS[kind]: items}

    def _encode_key(self, key: Any, path: tuple[str, ...]) -> Any:
        num_tensors = len(self.tensors)
        document = self._encode(key, (*path, "key"))
        if len(self.tensors) != num_tensors:
            raise self._refused("tensor as a key or set member", path, "use a name or number in its place")
        return document

    def _encode_tensor(self, tensor: Tensor, path: tuple[str, ...]) -> Any:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta or tensor.is_nested:
            what = f"{tensor.layout} {_name_of(tensor.dtype)} tensor on {tensor.device}"
            raise self._refused(what, path, "make it a plain tensor with values, as .to_dense() does")
        if tensor.dtype in DTYPES:
            return {"$tensor": self._name(tensor.detach(), path)}
        raw = torch.frombuffer(bytearray(raw_bytes(tensor)), dtype=torch.uint8) if tensor.numel() else _EMPTY
        return {
            "$tensor": self._name(raw, path), "dtype": _name_of(tensor.dtype), "shape": list(tensor.shape)
        }  # fmt: skip

    def _name(self, tensor: Tensor, path: tuple[str, ...]) -> str:
        wanted = name = "/".join(path) or "value"
        count = 1
        while name in self.tensors or name == "__metadata__":  # safetensors keeps that name for itself
            count += 1
            name = f"{wanted}~{count}"
        self.tensors[name] = tensor
        return name

    def _refused(self, what: str, path: tuple[str, ...], cure: str) -> CheckpointError:
        where = "/".join(path) or "(the whole state)"
        return CheckpointError(
            f"The state at {where} is a {what}, which a checkpoint cannot hold; {cure}. "
            "It holds plain Python values and containers, tensors, and numeric numpy arrays."
        )


_EMPTY = torch.empty(0, dtype=torch.uint8)


def _unpack(document: Any, tensors: Mapping[str, Tensor]) -> Tree:
    if isinstance(document, list):
        return [_unpack(item, tensors) for item in document]
    if not isinstance(document, dict):
        return document
    tag = next(iter(document), "")
    if not tag.startswith("$"):
        return {key: _unpack(value, tensors) for key, value in document.items()}
    if tag == "$tensor" and "dtype" in document:
        # cloned, because bytes in a file need not start where the dtype may
        return tensors[document[tag]].clone().view(_dtype(document["dtype"])).reshape(document["shape"])
    if tag == "$tensor":
        return tensors[document[tag]]
    if tag == "$array":
        flat = np.frombuffer(bytearray(raw_bytes(tensors[document[tag]])), dtype=document["dtype"])
        return flat.reshape(document["shape"])
    if tag == "$scalar":
        return np.frombuffer(base64.b64decode(document[tag]), dtype=document["dtype"])[0]
    if tag in _PLAIN:
        return _PLAIN[tag](document[tag])
    return _CONTAINERS[tag](_unpack(document[tag], tensors))


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch.{name} is not a dtype")
    return dtype


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "$float": float,
    "$bytes": base64.b64decode,
    "$dtype": _dtype,
    "$device": torch.device,
}
_CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$dict": dict,
    "$ordered": OrderedDict,
    "$counter": lambda items: Counter(dict(items)),
}


def _segment(key: Any) -> str:
    text = key if isinstance(key, str) else repr(key)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _text(document: Any) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
