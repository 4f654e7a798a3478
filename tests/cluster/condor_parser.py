"""HTCondor's own parser on submit descriptions: run by a Python that has its bindings, `htcondor` 24.

`python condor_parser.py FILE…` prints one JSON object a file: the attributes of each job that HTCondor would
queue, or why it would not. No pool is asked. What the parser lets pass silently, a command that it does not
know, is looked for here.
"""

import json
import os
import re
import sys
from pathlib import Path

os.environ.setdefault("CONDOR_CONFIG", "/dev/null")

import htcondor

KNOWN = {
    "accounting_group", "allowed_execute_duration", "arguments", "batch_name", "checkpoint_exit_code",
    "container_image", "error", "executable", "initialdir", "log", "output", "request_cpus", "request_disk",
    "request_gpus", "request_memory", "require_gpus", "should_transfer_files", "stream_output",
    "transfer_checkpoint_files", "transfer_input_files", "transfer_output_files", "transfer_output_remaps",
    "universe", "when_to_transfer_output",
}  # fmt: skip


def read(text: str) -> dict:
    head = text.partition("\nqueue")[0]
    names = re.findall(r"^(\+?\w+) *=", head, re.MULTILINE)
    unknown = [name for name in names if name not in KNOWN and not name.startswith("+")]
    if unknown:
        return {"refused": f"unknown: {', '.join(unknown)}"}
    try:
        submit = htcondor.Submit(text)
        items = list(submit.itemdata())
        jobs = list(submit.jobs(count=1, itemdata=iter(items)))
    except Exception as error:
        return {"refused": str(error)}
    return {"jobs": [{key: str(job[key]) for key in job} for job in jobs]}


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(json.dumps(read(Path(path).read_text(encoding="utf-8"))))
