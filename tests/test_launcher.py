"""Which launcher a process believes that it is under, by the variables that real ones set."""

import pytest

from samestep.cli.targets import limits_of
from samestep.errors import LaunchError
from samestep.launch.limits import Limits
from samestep.launcher import Seat, first_host, seat_in
from samestep.world import place_in

# as seen in a task of `srun -N2 --ntasks-per-node=1` (Slurm 22.05), and in the batch script around it
SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "node-of-no-network[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_LAUNCH_NODE_IPADDR": "10.1.2.3",
    "SLURM_NTASKS": "2",
}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
PYTORCHJOB = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "job-master-0",
    "MASTER_PORT": "23456",
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
}
# a pod of a PyTorchJob with nprocPerNode: 4, as newer operators start it, and of a TrainJob
PYTORCHJOB_PODS = PYTORCHJOB | {
    "WORLD_SIZE": "8",
    "PET_MASTER_ADDR": "job-master-0",
    "PET_MASTER_PORT": "23456",
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "4",
}
TRAINJOB = {name: value for name, value in PYTORCHJOB_PODS.items() if name.startswith("PET_")}
# as seen in a worker of Ray Train (2.60)
RAY = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "NODE_RANK": "0",
    "MASTER_ADDR": "10.0.0.2",
    "MASTER_PORT": "48741",
    "RAY_JOB_ID": "01000000",
    "RAY_RAYLET_PID": "27305",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-vm-1@1",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("env", "launcher", "place", "address"),
    [
        (TORCHRUN, "torchrun", (3, 4, 1, 2), "n1"),
        (PYTORCHJOB, "Kubernetes", (1, 2, 0, 1), "job-master-0"),
        (PYTORCHJOB_PODS, "Kubernetes", (1, 2, 0, 1), "job-master-0"),
        (TRAINJOB, "Kubernetes", (1, 2, 0, 1), "job-master-0"),
        (TRAINJOB | TORCHRUN, "torchrun", (3, 4, 1, 2), "n1"),
        (RAY, "Ray", (1, 2, 1, 2), "10.0.0.2"),
        (RAY | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "Ray", (1, 2, 1, 2), "10.0.0.2"),
        (SRUN, "srun", (1, 2, 0, 1), "10.1.2.3"),
        (SRUN | {"MASTER_ADDR": "ib0.n1"}, "srun", (1, 2, 0, 1), "ib0.n1"),
        (OPEN_MPI, "mpirun", (1, 2, 1, 2), "127.0.0.1"),
        (MPICH, "mpirun", (1, 2, 1, 2), "127.0.0.1"),
        (SRUN | TORCHRUN, "torchrun", (3, 4, 1, 2), "n1"),
        (SRUN | OPEN_MPI, "mpirun", (1, 2, 1, 2), "127.0.0.1"),
    ],
    ids=[
        "torchrun",
        "k8s",
        "k8s, pods of four",
        "k8s trainjob",
        "torchrun in k8s",
        "ray",
        "ray in k8s",
        "srun",
        "srun, told where",
        "open mpi",
        "mpich",
        "torchrun in srun",
        "mpi in srun",
    ],
)
def test_the_seat_is_that_of_the_innermost_launcher(env, launcher, place, address):
    seat = seat_in(env)
    assert (seat.launcher, seat.address) == (launcher, address)
    assert (seat.index, seat.count, seat.local_index, seat.local_count) == place
    assert 1024 < seat.port < 65536
    assert launcher in str(seat)
    found = place_in(env)
    assert (found.rank, found.size, found.local_rank, found.local_size, found.launcher) == (*place, launcher)


@pytest.mark.parametrize(
    "env",
    [{}, BATCH, SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, {"RANK": "0", "WORLD_SIZE": "1"}],
)
def test_a_process_alone_has_no_seat(env):
    assert seat_in(env) is None
    assert (place_in(env).rank, place_in(env).size) == (0, 1)


def test_steps_of_one_job_meet_at_different_ports_and_all_tasks_of_a_step_at_one():
    ports = {seat_in(SRUN | {"SLURM_STEP_ID": str(step)}).port for step in range(5)}
    assert len(ports) == 5
    assert seat_in(SRUN | {"SLURM_PROCID": "0"}).port == seat_in(SRUN).port


def test_only_torchruns_agents_keep_a_store():
    assert seat_in(TORCHRUN).has_store and not seat_in(PYTORCHJOB).has_store and not seat_in(SRUN).has_store


@pytest.mark.parametrize(
    ("env", "match"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "process 2 of 2"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK is 'one'"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "MASTER_ADDR"),
        (TRAINJOB | {"PET_NNODES": "1:4"}, "torchrun --no-python samestep"),
        ({"PET_NNODES": "2", "PET_RDZV_ENDPOINT": "job-worker-0:29400"}, "PET_NODE_RANK not set"),
    ],
)
def test_variables_that_make_no_sense_are_refused(env, match):
    with pytest.raises(LaunchError, match=match):
        seat_in(env)


def test_pods_that_are_to_have_several_ranks_say_how_many():
    assert seat_in(PYTORCHJOB_PODS).num_ranks == seat_in(TRAINJOB).num_ranks == 8
    assert limits_of(None, seat_in(TRAINJOB), "task.py").most == 8
    assert limits_of(Limits(most=4), seat_in(TRAINJOB), "task.py").most == 4
    assert seat_in(TRAINJOB | {"PET_NPROC_PER_NODE": "auto"}).num_ranks is None
    assert limits_of(None, seat_in(PYTORCHJOB), "task.py").most == 2


def test_the_only_pod_of_a_job_has_as_many_ranks_as_it_says(monkeypatch):
    pod = TRAINJOB | {"PET_NNODES": "1", "PET_NODE_RANK": "0"}
    assert seat_in(pod) is None, "it meets nobody"
    for name, value in pod.items():
        monkeypatch.setenv(name, value)
    assert limits_of(None, None, "task.py").most == 4
    assert limits_of(Limits(most=2), None, "task.py").most == 2
    monkeypatch.setenv("PET_NPROC_PER_NODE", "auto")
    assert limits_of(None, None, "task.py").most == 1
    monkeypatch.setenv("PET_NPROC_PER_NODE", "4")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")  # what torchrun has started is a rank already
    assert limits_of(None, None, "task.py").most == 1


@pytest.mark.parametrize("name", ["MASTER_ADDR", "MASTER_PORT"])
def test_a_launcher_that_does_not_say_where_to_meet_is_refused(name):
    env = {key: value for key, value in TORCHRUN.items() if key != name}
    with pytest.raises(LaunchError, match=f"{name} is not set"):
        seat_in(env).check_meeting()
    seat_in(TORCHRUN).check_meeting()


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n[1-2]", "n1"),
        ("gpu[003-010,12],login1", "gpu003"),
        ("a,b[1-2]", "a"),
        ("r[1-2]n1", "r1n1"),
    ],
)
def test_first_host_of_a_list(nodes, first):
    assert first_host(nodes) == first


def test_what_torch_reads_is_what_the_seat_says():
    assert seat_in(seat_in(SRUN).as_torchrun_says()).index == 1
    alone = Seat.alone(5000)
    assert alone.is_first and alone.count == 1 and alone.port == 5000
