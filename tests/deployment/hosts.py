"""Hosts on this machine: each has processes, a user, a file system, a clock, an address and a link of its own.

A host is a set of Linux namespaces, which end with the process that holds them. Its folder is a small disk that no
other host sees. Between the hosts there is one process, :mod:`tests.deployment.wire`. It delays, limits and loses
packets, because few kernels have the module that does so (``sch_netem``). Only root may make hosts.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.deployment.janitor import start
from tests.tools import wait

ROOT = Path(__file__).parents[2]
USER = 30001  # of the first host
HIDDEN = ("/tmp", "/var/tmp", "/home", "/root", "/dev/shm", "/run")  # each host has its own of them
# Gives a process another wall clock. libfaketime would also change how long waits last.
_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long ahead(void) { return atol(getenv("AHEAD")); }
int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = ((int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime"))(clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += ahead();
    return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    int failed = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec, now->tv_usec = found.tv_nsec / 1000;
    return failed;
}
time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
"""
COMPILER = shutil.which("cc")  # for that; without one, all hosts have the clock of this machine
# What a host sees of these folders is empty but for the programs, which stay where they are.
_SET_UP = """
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 none /mnt
number=0
for path in $KEPT; do
    mkdir /mnt/$number
    mount --bind "$path" /mnt/$number
    number=$((number + 1))
done
for path in $HIDDEN; do
    [ -d "$path" ] && mount -t tmpfs -o mode=1777,size=64m none "$path"
done
number=0
for path in $KEPT; do
    mkdir -p "$path"
    mount --bind /mnt/$number "$path"
    number=$((number + 1))
done
umount -R /mnt
mkdir -p "$FOLDER"
mount -t tmpfs -o mode=700,uid=$OWNER,gid=$OWNER,size=$DISK none "$FOLDER"
{ cat /etc/passwd; echo "$HOSTNAME:x:$OWNER:$OWNER::$FOLDER:/bin/sh"; } >/tmp/passwd
mount --bind /tmp/passwd /etc/passwd
hostname "$HOSTNAME"
trap '' CHLD  # a process that is nobody's child is no zombie when it ends
exec sleep infinity
"""


@dataclass(frozen=True)
class Link:
    """What lies between a host and all others.

    Attributes:
        delay: seconds that a packet takes to or from the host.
        loss: share of packets that are lost there.
        rate: bytes a second in each direction; 1.25 million are 10 Mbit/s.
    """

    delay: float = 0.0
    loss: float = 0.0
    rate: float = 1e9


class Hosts:
    """Hosts that reach each other alone. As a context manager.

    Args:
        folder: that holds one folder a host, under the name of the host; here they can be reached by :meth:`outside`.
        names: of the hosts.
        link: of each host.
        clocks: seconds by which the clock of a host is ahead; the others tell the time of this machine.
        disk: bytes of a host's folder.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        link: Link = Link(),
        clocks: dict[str, float] | None = None,
        disk: int = 64 << 20,
    ) -> None:
        self.folder, self.names, self.link, self.disk = folder, list(names), link, disk
        self.clocks = clocks or {}
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._pids: dict[str, int] = {}
        self._wire: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Hosts":
        try:
            for name in self.names:
                self._hold(name)
            for name, holder in self._holders.items():
                wait(lambda: holder.poll() is not None or self._init(holder), 60, "a host")  # noqa: B023
                if holder.poll() is not None:
                    raise OSError((self.folder / f"{name}.host.log").read_text())
                self._pids[name] = self._init(holder)
                if name in self.clocks:
                    target = f"/proc/{self._pids[name]}/root/tmp/clock.so"
                    words = [COMPILER or "cc", "-shared", "-fPIC", "-xc", "-", "-o", target, "-ldl"]
                    subprocess.run(words, input=_CLOCK, text=True, check=True)
            told = {self.address(name): self._pids[name] for name in self.names}
            settings = {"hosts": told, "delay": self.link.delay, "loss": self.link.loss, "rate": self.link.rate}
            words = [sys.executable, "-SEPc", Path(__file__).with_name("wire.py").read_text(), json.dumps(settings)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self._wire = subprocess.Popen(words, **pipes)  # ends with its standard input, that is, with this process
            self._tell({})
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._wire is not None:
            self._wire.communicate()
        for holder in self._holders.values():
            holder.kill()  # takes the first process of the host with it, and so all others
            holder.wait()

    def address(self, name: str) -> str:
        return f"10.77.0.{self.names.index(name) + 1}"

    def user(self, name: str) -> int:
        """The number of the user to whom the folder of a host belongs, and who runs its commands."""
        return USER + self.names.index(name)

    def inside(self, name: str, root: bool = False) -> list[str]:
        """What goes before a command to run it on a host, in its folder."""
        words = ["nsenter", "-t", str(self._pids[name]), "-m", "-n", "-p", "-u", "--"]
        if not root:
            user = self.user(name)
            words += ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--inh-caps=-all"]
        if offset := self.clocks.get(name):
            words += ["env", "LD_PRELOAD=/tmp/clock.so", f"AHEAD={offset:g}"]
        return [*words, "sh", "-c", 'cd "$0" && exec "$@"', str(self.folder / name)]

    def outside(self, name: str) -> Path:
        """The path by which we, and no other host, reach the folder of a host."""
        return Path(f"/proc/{self._pids[name]}/root{self.folder / name}")

    def environment(self, name: str) -> dict[str, str]:
        """That of a user who has just logged in there."""
        home = str(self.folder / name)
        kept = {key: os.environ[key] for key in ("LANG", "LC_ALL", "OMP_NUM_THREADS") if key in os.environ}
        return kept | {"HOME": home, "USER": name, "LOGNAME": name}

    def give(self, file: Path, name: str, to: str = "") -> None:
        """Carry a file or folder from anywhere to a host, whose user then owns it."""
        target = self.outside(name) / (to or file.name)
        (shutil.copytree if file.is_dir() else shutil.copy)(file, target)
        for each in (target, *target.rglob("*")):
            os.chown(each, self.user(name), self.user(name))

    def part(self, *groups: Sequence[str]) -> dict[str, int]:
        """From now on only hosts of one group hear of each other; a host in no group hears of nobody.

        Returns:
            How many packets were ``passed`` and ``lost`` so far.
        """
        return self._tell({self.address(name): number for number, group in enumerate(groups) for name in group})

    def join(self) -> dict[str, int]:
        """All hear of each other again."""
        return self.part(self.names)

    def unplug(self, name: str) -> None:
        """A host, and nobody else, hears of nobody."""
        self.part([each for each in self.names if each != name], [name])

    def fill_disk(self, name: str) -> None:
        """Leave no byte of the disk of a host free."""
        file = self.outside(name) / "full"
        with file.open("wb", buffering=0) as output:
            try:
                while output.write(b"\0" * 65536):
                    pass
            except OSError:
                return

    def free_disk(self, name: str) -> None:
        (self.outside(name) / "full").unlink()

    def cut_power(self, name: str) -> None:
        """All processes of a host end at once; its disk stays."""
        subprocess.run([*self.inside(name, root=True), "sh", "-c", "kill -9 -1"], check=False, capture_output=True)

    @staticmethod
    def why_not(folder: Path) -> str:
        """Why nobody may make hosts here; empty: it works.

        Args:
            folder: for a trial.
        """
        if missing := [each for each in ("unshare", "nsenter", "setpriv", "ip", "mount") if shutil.which(each) is None]:
            return f"there is no {missing[0]}"
        if not sys.platform.startswith("linux") or os.geteuid() != 0 or not os.path.exists("/dev/net/tun"):
            return "needs root, Linux and /dev/net/tun"
        try:
            with Hosts(folder, ["probe"]):
                return ""
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return " ".join(str(error).split()) or type(error).__name__

    def _hold(self, name: str) -> None:
        """Start the process that holds the namespaces of a host."""
        kept = [ROOT, Path(sys.base_prefix)] + [Path(sysconfig.get_path(each)) for each in ("data", "purelib")]
        kept += [each.resolve() for each in (*kept, Path(sysconfig.get_path("data"), "debian"))]
        hidden = [each for each in kept if each.is_dir() and str(each).startswith(tuple(f"{path}/" for path in HIDDEN))]
        settings = {
            "KEPT": " ".join(sorted({shlex.quote(str(each)) for each in hidden})),
            "HIDDEN": " ".join(HIDDEN),
            "FOLDER": str(self.folder / name),
            "OWNER": str(self.user(name)),
            "DISK": str(self.disk),
            "HOSTNAME": name,
        }
        words = ["unshare", "-m", "-n", "-p", "-u", "-i", "--fork", "--kill-child", "--mount-proc", "sh", "-c", _SET_UP]
        self._holders[name] = start(words, self.folder / f"{name}.host.log", environment=dict(os.environ) | settings)

    @staticmethod
    def _init(holder: subprocess.Popen[bytes]) -> int:
        """The first process of a host once all is set up, else 0."""
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        for child in children.read_text().split() if children.exists() else []:
            if Path(f"/proc/{child}/comm").read_text().strip() == "sleep":
                return int(child)
        return 0

    def _tell(self, groups: dict[str, int]) -> dict[str, int]:
        assert self._wire is not None
        assert self._wire.stdin is not None
        assert self._wire.stdout is not None
        print(json.dumps(groups), file=self._wire.stdin, flush=True)
        answer: dict[str, int] = json.loads(self._wire.stdout.readline())
        return answer
