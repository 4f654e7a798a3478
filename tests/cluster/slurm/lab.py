"""A real Slurm on one machine: a controller and two nodes with two make-believe GPUs each.

`python lab.py start FOLDER` prints the environment that Slurm's commands need; `python lab.py stop FOLDER`
ends all that was started. Tests use `Lab`; several may stand side by side. It wants root and Debian's
slurmctld, slurmd, slurm-client and munge; `why_not` says what is missing. With `has_accounting` it also keeps
books, for `sacct`, and wants slurmdbd and mariadb-server. Partitions: `main`, and `high`, whose jobs preempt
those of `main`.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TOOLS = ("slurmctld", "slurmd", "sbatch", "munged")
OF_ACCOUNTING = ("slurmdbd", "mariadbd", "mariadb-install-db")
NODES = ("n1", "n2")

CONF = """\
ClusterName=lab
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmctldPort={controller}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmctldParameters=preempt_send_user_signal
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=1000
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
KillWait=5
SlurmdTimeout=30
MinJobAge=300
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobcomp.txt
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=DEFAULT CPUs=4 RealMemory=8000 Gres=gpu:2
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={first} Feature=lab
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={second}
PartitionName=main Nodes=n1,n2 Default=YES PriorityTier=10 GraceTime=20
PartitionName=high Nodes=n1,n2 PriorityTier=100 PreemptMode=OFF
"""

ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={books}
AccountingStoragePass={folder}/munge/socket
AccountingStorageTRES=gres/gpu
"""
BOOKS = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
DbdPort={books}
SlurmUser=root
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass=slurm
"""


def why_not(*, has_accounting: bool = False) -> str | None:
    """What keeps a lab from being started here, or None."""
    tools = (*TOOLS, *(OF_ACCOUNTING if has_accounting else ()))
    missing = [tool for tool in tools if shutil.which(tool, path=_path()) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if os.geteuid() != 0:
        return "the lab's daemons run as root"
    return None


class Lab:
    """Slurm's daemons, below one folder; use it in a `with`."""

    def __init__(self, folder: Path, *, has_accounting: bool = False) -> None:
        self.folder = folder.resolve()
        self._has_accounting = has_accounting
        self._database: subprocess.Popen[bytes] | None = None
        self.env = {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": _path()}

    def __enter__(self) -> "Lab":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start munge, the controller and the nodes; return when both are idle."""
        reason = why_not(has_accounting=self._has_accounting)
        if reason is not None:
            raise RuntimeError(reason)
        ports = dict(zip(("controller", "first", "second", "books", "database"), _free_ports(5), strict=True))
        self._write(ports)
        self._munge()
        if self._has_accounting:
            self._keep_books(ports)
        self._daemon("slurmctld", "-f", self.env["SLURM_CONF"])
        for node in NODES:
            self._daemon("slurmd", "-f", self.env["SLURM_CONF"], "-N", node)
        deadline = time.monotonic() + 30
        while self.run("sinfo", "-h", "-o", "%t", "-p", "main").split() != ["idle"]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the nodes did not come up: {self.run('sinfo', '-N')}")
            time.sleep(0.2)

    def stop(self) -> None:
        """End jobs and daemons, by the numbers that they wrote down."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            self.run("scancel", "--user", "root")
            self._wait_until(lambda: not self.run("squeue", "-h").strip(), 8)
        pids = []
        for path in [
            self.folder / "slurmctld.pid",
            self.folder / "slurmdbd.pid",
            *self.folder.glob("slurmd-*.pid"),
            self.folder / "munged.pid",
        ]:
            with contextlib.suppress(OSError, ValueError):
                pids.append(int(path.read_text()))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        self._wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._database is not None:
            self._database.terminate()
            self._database.wait(30)

    def run(self, *command: str, check: bool = False) -> str:
        """What a command of Slurm's prints."""
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env={**os.environ, **self.env}, check=check
        )
        return done.stdout

    def _write(self, ports: dict[str, int]) -> None:
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(4):
            device = self.folder / f"gpu{number}"
            if not device.exists():
                os.mknod(device, 0o20666, os.makedev(1, 3))
        text = CONF + ACCOUNTING if self._has_accounting else CONF
        (self.folder / "slurm.conf").write_text(text.format(folder=self.folder, **ports))
        gres = [f"NodeName=n{n} Name=gpu File={self.folder}/gpu[{2 * n - 2}-{2 * n - 1}]\n" for n in (1, 2)]
        (self.folder / "gres.conf").write_text("".join(gres))

    def _munge(self) -> None:
        """Slurm knows its own by munge; a daemon of this lab alone, for others end theirs when they like."""
        own = self.folder / "munge"
        own.mkdir(mode=0o700, exist_ok=True)
        key = own / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self._daemon(
            # it would warn that nobody but root can come to its folder
            "munged", "--force", f"--socket={own}/socket", f"--key-file={key}",
            f"--pid-file={self.folder}/munged.pid", f"--log-file={own}/log", f"--seed-file={own}/seed",
        )  # fmt: skip

    def _keep_books(self, ports: dict[str, int]) -> None:
        """Start a database of our own, on loopback, and the daemon that writes accounts into it."""
        data = self.folder / "database"
        data.mkdir(exist_ok=True)
        (data / "begin.sql").write_text(
            "CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm';\n"
            "GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1';\n"
        )
        install, serve = (shutil.which(name, path=_path()) or name for name in OF_ACCOUNTING[:0:-1])
        own = ["--no-defaults", "--user=root", f"--datadir={data}"]
        with (self.folder / "daemons.log").open("ab") as log:
            subprocess.run([install, *own], stdout=log, stderr=log, check=True, timeout=60)
            self._database = subprocess.Popen(
                [serve, *own, "--bind-address=127.0.0.1", f"--port={ports['database']}",
                 "--skip-name-resolve", f"--socket={data}/socket", f"--pid-file={data}/pid",
                 f"--init-file={data}/begin.sql"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self._wait_until(lambda: _is_open(ports["database"]), 30)
        books = self.folder / "slurmdbd.conf"
        books.write_text(BOOKS.format(folder=self.folder, **ports))
        books.chmod(0o600)
        self._daemon("slurmdbd")
        self._wait_until(lambda: _is_open(ports["books"]), 30)
        self.run("sacctmgr", "--immediate", "add", "cluster", "lab", check=True)

    def _daemon(self, name: str, *options: str) -> None:
        program = shutil.which(name, path=_path()) or name
        with (self.folder / "daemons.log").open("ab") as log:
            subprocess.run(
                [program, *options],
                env={**os.environ, **self.env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                check=True, timeout=30,
            )  # fmt: skip

    @staticmethod
    def _wait_until(is_so: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_so() and time.monotonic() < deadline:
            time.sleep(0.1)


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main() -> None:
    action, folder = sys.argv[1:]
    lab = Lab(Path(folder))
    if action == "stop":
        lab.stop()
        return
    lab.start()
    for name, value in lab.env.items():
        print(f"export {name}='{value}'")


if __name__ == "__main__":
    main()
