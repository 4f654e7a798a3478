"""Jobs handed over by HTCondor's own bindings where there is no pool: what its schedd would be told.

`python condor_handing.py FOLDER`, by a Python that has the bindings, submits the request in FOLDER by
`htcondor2` and prints one JSON object: the jobs that the description which it made stands for, as HTCondor's
parser reads it. Only the last call, which would go to the schedd, is taken out.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("CONDOR_CONFIG", "/dev/null")

import condor_parser
import htcondor2
from htcondor2 import _schedd

from samestep.cluster.htcondor import HTCondor
from samestep.cluster.request import Request

made = []


class Submit(htcondor2.Submit):
    """A description that is written down."""

    def __init__(self, text):
        super().__init__(text)
        made.append(text)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    _schedd.Submit = htcondor2.Submit = Submit
    _schedd._schedd_submit = lambda *_: SimpleNamespace(cluster=lambda: 7)
    htcondor2.Schedd.__init__ = lambda self: setattr(self, "_addr", None)
    ids = HTCondor().submit(folder, Request.read(folder))
    print(json.dumps({"ids": ids, **condor_parser.read(made[-1].replace("\x1f", ","))}))
