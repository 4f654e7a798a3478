"""One rank of a library: does what the conductor asks for, with functions of this package, one at a time.

`python -m benchmarks.peers.rank NAME SOCKET` under torchrun or `samestep train`; Ray calls `serve` itself.
"""

import sys
import traceback
from importlib import import_module

import torch

from benchmarks.peers import libraries
from benchmarks.peers.line import Closed, Line


def serve(name: str, path: str) -> None:
    """Make the library and answer until there is nothing more to do."""
    torch.set_num_threads(1)
    library = libraries.load(name)()
    line = Line.to(path)
    line.say(rank=library.rank, settings=library.settings)
    try:
        while (message := line.hear())["call"] is not None:
            module, function = message["call"].split(":")
            try:
                answer = getattr(import_module(module), function)(library, line, **message["arguments"])
            except Closed:
                raise
            except Exception as error:  # what a library refuses is a result, and is told
                traceback.print_exc()
                line.say(error=f"{type(error).__name__}: {error}".strip().splitlines()[0])
            else:
                line.say(answer=answer)
    except Closed:
        return
    library.close()
    line.close()


if __name__ == "__main__":
    serve(*sys.argv[1:])
