"""Keys: where every random number of a run comes from.

A key is a pure function of the run's seed, a purpose and some numbers (an epoch, a step, a position). No
key contains the world size. What is drawn with a key is the business of whoever asked for it.
"""

import struct
from functools import cache, lru_cache
from hashlib import blake2b

_64_BITS = (1 << 64) - 1


def derive(seed: int, purpose: str, *numbers: int) -> int:
    """A 63-bit key for (seed, purpose, numbers): equal for equal arguments, unrelated for others.

    Number by number, a key becomes that output of the generator SplitMix64 started at it (Steele, Lea and
    Flood, "Fast splittable pseudorandom number generators", 2014): distinct for distinct numbers, found
    without walking, and cheaper than a digest, since some keys are needed in every step.
    """
    if not numbers:
        return _root(seed, purpose) >> 1
    # the first number, an epoch or an optimizer, is the same for many keys in a row
    key = _begun(seed, purpose, numbers[0])
    for number in numbers[1:]:
        key = _output(key, number)
    return key >> 1


def _output(key: int, number: int) -> int:
    key = (key + (number + 1) * 0x9E3779B97F4A7C15) & _64_BITS
    key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return key ^ (key >> 31)


@lru_cache(maxsize=64)
def _begun(seed: int, purpose: str, number: int) -> int:
    return _output(_root(seed, purpose), number)


@cache
def _root(seed: int, purpose: str) -> int:
    text = struct.pack("<q", seed & 0x7FFF_FFFF_FFFF_FFFF)
    return int.from_bytes(blake2b(text, digest_size=8, person=purpose.encode()[:16]).digest(), "little")
