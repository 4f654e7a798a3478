"""`python -m benchmarks [name…] [--quick] [--json FILE]`: runs them, prints a table each.

`python -m benchmarks faults [--kills N] [--seed S]` takes about twenty minutes, and runs only when named.
`python -m benchmarks peers …` is the comparison with other libraries, with options of its own.
"""

import argparse
import json
import os
import platform
import sys
from pathlib import Path

import torch
from rich.console import Console

import samestep
from benchmarks import bitwise, ddp, faults, order, scaling, step, timing, watch
from benchmarks.peers import command as peers
from benchmarks.rows import table

_ALL = {
    "step": step,
    "ddp": ddp,
    "bitwise": bitwise,
    "order": order,
    "watch": watch,
    "timing": timing,
    "scaling": scaling,
    "faults": faults,
}
_LONG = ("faults",)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What Samestep costs.")
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"of {', '.join(_ALL)}; without a name, all but {_LONG[0]}"
    )
    parser.add_argument("--quick", action="store_true", help="a few steps each, to see that they run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--kills", type=int, default=100, help="of faults: at least so many  [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="of faults: which  [%(default)s]")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(_ALL):
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; there are {', '.join(_ALL)}")
    # as wide as the rows need where the output goes to a file or a pipe
    console = Console(width=None if os.isatty(1) else 150)
    machine = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "samestep": samestep.__version__,
        "threads_per_rank": 1,
        "quick": arguments.quick,
    }
    console.print(
        f"{machine['processor']}, {machine['cores']} cores (load {machine['load_before']:.1f}); "
        f"Python {machine['python']}, torch {machine['torch']}, samestep {machine['samestep']}; "
        "no GPU figure is claimed",
        highlight=False,
    )
    results = {}
    for name in arguments.names or [name for name in _ALL if name not in _LONG]:
        options = {"kills": arguments.kills, "seed": arguments.seed} if name == "faults" else {}
        rows = _ALL[name].run(quick=arguments.quick, **options)
        console.print(table(_ALL[name].TITLE, rows))
        results[name] = [row.to_json() for row in rows]
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"machine": machine, "benchmarks": results}, indent=2) + "\n")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine()
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["peers"]:
        peers.main(sys.argv[2:])
    else:
        main()
