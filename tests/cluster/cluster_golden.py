"""Golden files: what engines are told for each feature, kept beside the tests and compared letter by letter.

`python tests/cluster/cluster_golden.py` writes them anew; look at the difference before you keep it.
"""

from pathlib import Path

from cluster_requests import request_of

from samestep.cluster.htcondor import description, run_script
from samestep.cluster.ray import PLAN, Ray
from samestep.cluster.slurm import script

FOLDER = Path(__file__).parent / "golden"
GIB = 2**30

SLURM = {
    "plain": {},
    "two_nodes": {"world_size": 4, "num_nodes": 2},
    "resources": {
        "needs": {
            "cpus_per_rank": 6,
            "memory_per_rank_bytes": 12 * GIB,
            "time_s": 5400,
            "gpu_type": "a100",
        },
        "lead_s": 300,
    },
    "no_gpus": {"needs": {"device": "cpu"}},
    "array": {"items": 3},
    "site": {
        "options": {
            "partition": "gpu",
            "account": "physics-1",
            "qos": "short",
            "constraint": "a100|h100",
            "comment": 'say "hi" \\o/ to $HOME & #ada; é',
            "exclusive": "",
        }
    },
    "names": {"home": '/shared/it\'s a "run" é', "python": "/opt/my env's/bin/python"},
    "verify": {"command": "verify", "name": "verify"},
}
CONDOR = {
    "plain": {},
    "resources": {
        "needs": {
            "cpus_per_rank": 6,
            "memory_per_rank_bytes": 12 * GIB,
            "time_s": 5400,
            "gpu_memory_bytes": 40 * GIB,
            "gpu_capability": 8.0,
            "gpu_type": 'NVIDIA "A100"',
        }
    },
    "no_gpus": {"needs": {"device": "cpu"}},
    "itemdata": {"items": 3},
    "conda": {"environment": "/home/ada/env.yml"},
    "tarball": {"environment": "/home/ada/my env.tar.gz"},
    "container": {"environment": "docker://pytorch/pytorch:2.6.0"},
    "files": {"transfer": ("/home/ada/task.py", "/home/ada/it's $data é.csv")},
    "site": {"options": {"accounting_group": "physics", "+WantFlocking": "true", "request_disk": "20G"}},
    "names": {"home": '/shared/it\'s a "run" $(HOME) é'},
    "verify": {"command": "verify", "name": "verify"},
}
RAY = {
    "plain": {},
    "resources": {
        "needs": {"cpus_per_rank": 6, "memory_per_rank_bytes": 12 * GIB, "gpu_type": "A100"},
        "options": {"resource:big disk": "2"},
    },
    "no_gpus": {"needs": {"device": "cpu"}},
    "cluster": {"options": {"address": "head-1.lab:6379", "max_failures": "10"}},
    "verify": {"command": "verify", "name": "verify"},
}


def texts() -> dict[str, str]:
    """Every golden file by its name, as the program makes it now."""
    found = {f"slurm_{name}.sh": script(request_of(**asked)) for name, asked in SLURM.items()}
    for name, asked in CONDOR.items():
        request = request_of(engine="htcondor", **asked)
        found[f"condor_{name}.sub"] = description(request, Path(request.home))
        if name in ("plain", "conda", "tarball", "container"):
            found[f"condor_{name}.sh"] = run_script(request)
    for name, asked in RAY.items():
        found[f"ray_{name}.json"] = Ray().files(request_of(engine="ray", **asked))[PLAN]
    return found


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
