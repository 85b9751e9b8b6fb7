"""What a benchmark reads: CPU of client and server from the operating system, WAL and tuples from Postgres."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import psycopg


def client_cpu() -> float:
    """CPU seconds of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def server_cpu(postmaster: int) -> float:
    """CPU seconds of a postmaster's live children, in nanoseconds' precision; keep sessions open while you measure."""
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    total = 0
    for pid in children:
        try:
            total += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
        except FileNotFoundError:
            continue
    return total / 1e9


def process_cpu(pid: int) -> float:
    """CPU seconds of a process so far, all threads that live."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


@attrs.define
class Reading:
    """What was spent between the begin and the end of a `measured` block."""

    seconds: float = 0.0
    client: float = 0.0
    server: float = 0.0
    wal: int = 0

    def per_job(self, jobs: int) -> dict[str, float]:
        """Microseconds of CPU and bytes of WAL per job, and jobs per second."""
        return {
            "jobs_per_second": jobs / self.seconds,
            "client_us": self.client / jobs * 1e6,
            "server_us": self.server / jobs * 1e6,
            "wal_bytes": self.wal / jobs,
        }


@attrs.define
class Table:
    """The rows of a run, printed as one Markdown table when it is over."""

    rows: list[list[str]] = attrs.field(factory=list)

    def row(self, what: str, measured: str, target: str = "") -> None:
        """Add one."""
        self.rows.append([what, measured, target])

    def markdown(self) -> str:
        """Give the table."""
        lines = [["", "measured", "target"], ["---"] * 3, *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


class Meters:
    """Reads one server."""

    def __init__(self, url: str, postmaster: int) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._postmaster = postmaster
        self._own = 0

    def wal(self) -> int:
        """Bytes written to WAL so far."""
        return int(self.value("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))

    def value(self, statement: str) -> Any:
        """First column of the first row."""
        row = self._connection.execute(statement.encode()).fetchone()
        assert row is not None
        return row[0]

    def dead_tuples(self) -> int:
        """Dead tuples of all tables of both schemas, as the statistics know them."""
        self._connection.execute("SELECT pg_stat_clear_snapshot()")
        return int(self.value("SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables"))

    def wait_done(self) -> None:
        """Wait until no job is ready or running."""
        left = "SELECT EXISTS (SELECT FROM awa_queue.ready) OR EXISTS (SELECT FROM awa_queue.leases)"
        while self.value(left):
            time.sleep(0.005)

    def commits(self) -> int:
        """Transactions committed in this database by others than this connection."""
        self._connection.execute("SELECT pg_stat_clear_snapshot()")
        self._own += 2
        committed = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        return int(self.value(committed)) - self._own

    @contextmanager
    def measured(self, clock: Any) -> Iterator[Reading]:
        """Fill a reading from the block; `clock` is time.perf_counter."""
        reading = Reading()
        wal, server, client, began = self.wal(), server_cpu(self._postmaster), client_cpu(), clock()
        yield reading
        reading.seconds = clock() - began
        reading.client = client_cpu() - client
        reading.server = server_cpu(self._postmaster) - server
        reading.wal = self.wal() - wal

    def close(self) -> None:
        """Close the reading connection."""
        self._connection.close()
