"""Keys: where every random number of a run comes from.

A key is a pure function of the run's seed, a purpose and some numbers (an epoch, a step, a position). No
key contains the world size. What is drawn with a key is the business of whoever asked for it.
"""

import struct
from hashlib import blake2b


def derive(seed: int, purpose: str, *numbers: int) -> int:
    """A 63-bit key for (seed, purpose, numbers): equal for equal arguments, unrelated for others."""
    text = struct.pack(f"<{len(numbers) + 1}q", seed & 0x7FFF_FFFF_FFFF_FFFF, *numbers)
    digest = blake2b(text, digest_size=8, person=purpose.encode()[:16]).digest()
    return int.from_bytes(digest, "little") >> 1
