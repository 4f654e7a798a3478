"""How much memory is free on this machine."""

from pathlib import Path


def available_bytes() -> int:
    """What can be had without swapping; 0 where nobody says."""
    file = Path("/proc/meminfo")
    if not file.exists():
        return 0
    line = next(line for line in file.read_text().splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024
