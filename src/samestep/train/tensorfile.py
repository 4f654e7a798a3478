"""Files of named tensors in the safetensors format, written and read in one pass with their digest.

Knows bytes: how a tensor's are seen without a copy, and how a file of them is laid out. Refuses to know
what the tensors are for and which files belong together.

The format is written here because the writers of safetensors 0.4 to 0.7 hold the interpreter's lock for a
whole file, which would stop a training that is saved by a thread beside it (0.8 does not), and because
the digest then costs no second reading. A file's `write` and hashlib's `update` let go of the lock. Any
safetensors library reads the files.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samestep.errors import CheckpointError

DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
"""The dtypes that every safetensors library knows, with the format's names; no other can be written."""

USE_ANOTHER = "Use another checkpoint of the run, or restore this one from a copy."

_NAMED_DTYPES = {name: dtype for dtype, name in DTYPES.items()}
_CHUNK_BYTES = 8 << 20


class Damaged(CheckpointError):
    """A file is not what was written."""


@dataclass(frozen=True, slots=True)
class Seal:
    """What a file must be to be used: its size and the SHA-256 of its bytes, in hexadecimal."""

    num_bytes: int
    sha256: str


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor in row-major order; a view of a contiguous CPU tensor, of a copy otherwise."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> Seal:
    """Write a new file, and return when its bytes are on the disk."""
    # widest first, as safetensors does, so that every tensor starts at a multiple of its item size
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {}
    end = 0
    for name in names:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    sha = hashlib.sha256()
    with path.open("xb") as file:
        buffers = [memoryview(struct.pack("<Q", len(text)) + text), *(raw_bytes(tensors[n]) for n in names)]
        for buffer in buffers:
            for chunk in _chunks(buffer):
                sha.update(chunk)
                file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return Seal(8 + len(text) + end, sha.hexdigest())


def read_tensors(path: Path, seal: Seal) -> dict[str, Tensor]:
    """The tensors of a file, as views of one buffer, once its bytes are known to be those of its seal."""
    data = bytearray(seal.num_bytes)
    _check(path, seal, data)
    begin = 8 + struct.unpack_from("<Q", data)[0]
    tensors = {}
    for name, entry in json.loads(data[8:begin]).items():
        dtype, (start, end) = _NAMED_DTYPES[entry["dtype"]], entry["data_offsets"]
        count = (end - start) // dtype.itemsize
        if count:
            flat = torch.frombuffer(data, dtype=dtype, count=count, offset=begin + start)
        else:
            flat = torch.empty(0, dtype=dtype)
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


def check_tensors(path: Path, seal: Seal) -> None:
    """Raise `Damaged` unless a file's bytes are those of its seal; needs no memory for them."""
    _check(path, seal, None)


def _check(path: Path, seal: Seal, keep: bytearray | None) -> None:
    try:
        size = path.stat().st_size
        if size != seal.num_bytes:
            raise Damaged(f"{path} has {size} bytes; {seal.num_bytes} were written. {USE_ANOTHER}")
        sha = hashlib.sha256()
        with path.open("rb") as file:
            if keep is None:
                sha = hashlib.file_digest(file, "sha256")
            else:
                for chunk in _chunks(memoryview(keep)):
                    file.readinto(chunk)
                    sha.update(chunk)
    except OSError as error:
        raise Damaged(f"{path} cannot be read ({error.strerror}). {USE_ANOTHER}") from error
    if sha.hexdigest() != seal.sha256:
        raise Damaged(
            f"{path} has SHA-256 {sha.hexdigest()}, but {seal.sha256} was written: bytes have changed. "
            f"{USE_ANOTHER}"
        )


def _chunks(view: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(view), _CHUNK_BYTES):
        yield view[start : start + _CHUNK_BYTES]
