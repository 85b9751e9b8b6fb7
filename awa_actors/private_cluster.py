"""The mechanics of a private Postgres: ``initdb``, ``pg_ctl``, signals, and what root has to do differently.

`private_postgres.py` says what users hold; this file only knows one directory and what runs in it. A directory holds
``data`` (the cluster, with ``postgres.log``), ``holders`` and ``turn`` (lock files).
"""

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from awa_actors.errors import StoreError, UsageError

START_LIMIT = 60.0
"""Seconds for Postgres to be ready: crash recovery of a development database is a matter of seconds, not of minutes."""

STOP_LIMIT = 10.0
"""Seconds for each way to stop: cutting sessions off, leaving recovery to the next start, killing what is frozen."""

ORPHAN_LIMIT = 5.0
"""Seconds that the backends of a killed server get to notice; until they do, Postgres refuses to start again."""

NOBODYS_PID = 2**22 + 1
"""Above the highest number that a Linux or macOS process can have."""

_FATAL = re.compile(r"(?:FATAL|PANIC|error):\s+(.+)")


@attrs.frozen
class Cluster:
    """One directory's cluster and how to run it, whoever we are.

    Root may not run Postgres, so for root the server runs as the owner of the data, or as ``nobody`` when it is new.
    That account often cannot get to root's virtual environment or directories, and we open neither: programs are copied
    to the runtime directory, and the data is passed as ``/proc/self/cwd``, since a working directory stays usable
    whatever the permissions above it are, and Postgres never leaves its own.
    """

    home: Path
    programs: Path
    version: int
    account: tuple[int, int] | None
    """User and group to run as; None is ourselves."""

    @classmethod
    def within(cls, home: Path, programs: Path, version: int) -> "Cluster":
        """Describe the cluster of a directory that exists.

        Raises:
            UsageError: what is there cannot be run by this version.
        """
        data = home / "data"
        if data.exists():
            found = (data / "PG_VERSION").read_text().strip()
            if found != str(version):
                raise UsageError(f"{home} holds Postgres {found}: pass version={found} or choose another path")
        return cls(home, programs, version, _account_for(data))

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.home / "data"

    @property
    def runtime(self) -> Path:
        """Where the socket is: named after the data so that URLs last, and short, for a socket's path has 107 bytes."""
        uid = self.account[0] if self.account else os.getuid()
        base = "/tmp" if os.access("/tmp", os.W_OK | os.X_OK) else tempfile.gettempdir()
        return Path(base, f"awa-actors-{uid}-{hashlib.sha256(os.fsencode(self.data)).hexdigest()[:12]}")

    def ensure_running(self, settings: Mapping[str, str], *, durable: bool) -> None:
        """Make the cluster when it is missing, and start it when it is down."""
        pid = self._recorded_pid()
        if pid is not None and self._is_postmaster(pid):
            return
        programs = self._runnable_programs(self._fresh_runtime())
        if not self.data.exists():
            self._initialise(programs, durable=durable)
        if pid is not None and _exists(pid):
            self._disown(pid)
        self._start(programs, settings)

    def _initialise(self, programs: Path, *, durable: bool) -> None:
        # Under another name until it is whole, or a killed initdb would leave a cluster that never starts.
        new = self.home / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        self._give(new)
        # No locale but C is on every machine, and the environment may name one that is not.
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        made = self._run(programs / "initdb", *options, *([] if durable else ["--no-sync"]), data=new)
        if made.returncode:
            raise StoreError(f"initdb failed: {_last_words(made.stderr)}")
        new.rename(self.data)

    def _start(self, programs: Path, settings: Mapping[str, str]) -> None:
        chosen = {
            "listen_addresses": "",
            "port": "5432",
            "unix_socket_directories": str(self.runtime),
            # Trust is the only authentication here, so the socket is for this account (and root) alone.
            "unix_socket_permissions": "0700",
            **settings,
        }
        options = shlex.join(part for name, value in chosen.items() for part in ("-c", f"{name}={value}"))
        log = self.data / "postgres.log"
        deadline = time.monotonic() + ORPHAN_LIMIT
        while True:
            size = log.stat().st_size if log.exists() else 0
            wait = ("-w", "-t", f"{START_LIMIT:.0f}")
            started = self._run(programs / "pg_ctl", "start", *wait, "-l", log.name, "-o", options, data=self.data)
            if started.returncode == 0:
                return
            said = log.read_bytes()[size:].decode(errors="replace") if log.exists() else ""
            if "is still in use" not in said or time.monotonic() > deadline:
                raise StoreError(f"Postgres did not start: {_last_words(said or started.stderr)} (see {log})")
            time.sleep(0.05)

    def running_postmaster(self) -> tuple[int, int, str]:
        """Wait until the server is ready; returns its pid, its port and the directory of its socket."""
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                lines = (self.data / "postmaster.pid").read_text().splitlines()
                # Its eight lines are pid, data, start, port, socket directory, address, shared memory, status.
                if len(lines) >= 8 and lines[7].strip() == "ready":
                    return int(lines[0]), int(lines[3]), lines[4]
            time.sleep(0.01)
        raise StoreError(f"Postgres in {self.home} is not ready (see {self.data / 'postgres.log'})")

    def stop(self, pid: int | None) -> None:
        """Shut the server down, within three times `STOP_LIMIT`, and remove the runtime directory.

        Args:
            pid: of the postmaster when it was last seen; the data directory knows better, if it is still there.
        """
        pid = self._recorded_pid() or pid
        for order in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            if pid is None or not self._is_postmaster(pid):
                break
            os.kill(pid, order)
            deadline = time.monotonic() + STOP_LIMIT
            while self._is_postmaster(pid) and time.monotonic() < deadline:
                time.sleep(0.01)
        shutil.rmtree(self.runtime, ignore_errors=True)

    def _recorded_pid(self) -> int | None:
        try:
            return int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return None

    def _disown(self, pid: int) -> None:
        """Note that a crashed server's number was given to another process, as happens in containers.

        Postgres would take that process for its server and refuse to start. It still needs the rest of the file, where
        it finds the shared memory that the crash left behind.
        """
        record = self.data / "postmaster.pid"
        _, rest = record.read_text().split("\n", 1)
        record.write_text(f"{NOBODYS_PID}\n{rest}")

    def _is_postmaster(self, pid: int) -> bool:
        """Whether a process is this cluster's server, and no later one that was given the same number."""
        if not os.path.exists("/proc/self/cwd"):
            return _exists(pid)
        try:
            return os.readlink(f"/proc/{pid}/cwd").removesuffix(" (deleted)") == str(self.data)
        except OSError:
            # It is gone, a zombie, or somebody else's.
            return False

    def _fresh_runtime(self) -> Path:
        """Make an empty runtime directory that belongs to the server's account."""
        runtime = self.runtime
        if runtime.is_symlink() or runtime.exists():
            found = runtime.lstat()
            mine = {os.geteuid(), self.account[0]} if self.account else {os.geteuid()}
            if not stat.S_ISDIR(found.st_mode) or found.st_uid not in mine:
                raise UsageError(f"{runtime} belongs to somebody else: remove it")
            shutil.rmtree(runtime)
        runtime.mkdir(mode=0o700)
        self._give(runtime)
        return runtime

    def _runnable_programs(self, runtime: Path) -> Path:
        if self.account is None or _reachable(self.programs / "initdb", self.account[0]):
            return self.programs
        install = self.programs.parent
        copy = runtime / "programs" / install.parent.name / install.name
        (copy / "bin").mkdir(parents=True)
        for program in ("initdb", "pg_ctl", "postgres"):
            shutil.copy(self.programs / program, copy / "bin")
        for part in ("lib", "share"):
            shutil.copytree(install / part, copy / part, symlinks=True, ignore=shutil.ignore_patterns("*.a"))
        # Where the programs of a wheel look for their bundled libraries, relative to themselves.
        libraries = install.parent.with_name(f"{install.parent.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, copy.parent.with_name(libraries.name))
        for directory, _, names in os.walk(runtime):
            for path in (Path(directory), *(Path(directory, name) for name in names)):
                self._give(path)
        return copy / "bin"

    def _give(self, path: Path) -> None:
        if self.account is not None:
            os.chown(path, *self.account, follow_symlinks=False)

    def _run(self, program: Path, *args: str, data: Path) -> subprocess.CompletedProcess[str]:
        """Run one of Postgres's programs on a data directory, as the server's account."""
        where, user, group, groups = str(data), None, None, None
        if self.account is not None:
            (user, group), groups = self.account, ()
            if not _reachable(data, user):
                if self.version < 16:
                    # To find itself it changes directory and back, and there is no way back.
                    raise UsageError(f"Postgres {self.version} cannot reach {self.home} when root starts it: move it")
                where = "/proc/self/cwd"
        # PGPORT, PGDATA and the like are meant for the user's own programs.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}
        return subprocess.run(
            [program, "-D", where, *args],
            cwd=data,
            user=user,
            group=group,
            extra_groups=groups,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )


def _account_for(data: Path) -> tuple[int, int] | None:
    if os.geteuid() != 0:
        return None
    import pwd  # not on Windows

    owner = data.stat().st_uid if data.exists() else 0
    try:
        account = pwd.getpwuid(owner) if owner else pwd.getpwnam("nobody")
    except KeyError:
        raise UsageError(f"root may not run Postgres, and no account {owner or 'nobody'} exists to run it") from None
    return account.pw_uid, account.pw_gid


def locked(path: Path, *, exclusive: bool) -> int:
    """Open a file, made when missing, and wait for the lock on it; closing the descriptor lets go."""
    import fcntl  # not on Windows

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
    return descriptor


@contextlib.contextmanager
def turn(home: Path) -> Iterator[None]:
    """Keep everybody else, threads and processes, from starting or stopping the cluster of a directory."""
    descriptor = locked(home / "turn", exclusive=True)
    try:
        yield
    finally:
        os.close(descriptor)


def _reachable(path: Path, uid: int) -> bool:
    """Whether an account gets to a path, and to where its links lead, by the plain mode bits."""
    real = path.resolve()
    for step in (path, *path.parents, real, *real.parents):
        found = step.stat()
        if not found.st_mode & (stat.S_IXUSR if found.st_uid == uid else stat.S_IXOTH):
            return False
    return True


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _last_words(output: str) -> str:
    """The line of an output that says why it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return (_FATAL.findall(output) or lines or ["it said nothing"])[-1]
