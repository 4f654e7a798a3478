"""Fingerprints of examples: a short text that is equal for equal data and tells nothing else about it."""

from dataclasses import fields, is_dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch


def fingerprint(value: Any) -> str:
    """A digest of numbers, texts, arrays and tensors in any nesting of containers.

    Objects of unknown classes count with their class only: no promise is made about what they hold.
    """
    digest = blake2b(digest_size=16)
    _feed(value, digest)
    return digest.hexdigest()


def _feed(value: Any, digest: Any) -> None:
    digest.update(type(value).__name__.encode())
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(memoryview(value.reshape(-1).view(torch.uint8).numpy()))
    elif isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, bytes | bytearray):
        digest.update(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            _feed(key, digest)
            _feed(item, digest)
    elif isinstance(value, list | tuple):
        digest.update(str(len(value)).encode())
        for item in value:
            _feed(item, digest)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            _feed(getattr(value, field.name), digest)
    elif isinstance(value, str | int | float | complex | bool | np.generic) or value is None:
        digest.update(repr(value).encode())
