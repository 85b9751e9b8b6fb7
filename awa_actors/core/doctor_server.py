"""Judgements about the server, the way to it, and what this role may do there."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from awa_actors.core.doctor import Process, Verdict, ago, bad, fine, listed, skipped, warn, worst
from awa_actors.core.health import CROWDED, schema_reason

OLDEST_SERVER = 150000
CLOCK_DIFFERS, CLOCK_IS_WRONG = 2.0, 60.0
"""Seconds between the clocks above which something is said."""
CONTROL = {"worker": 7, "candidate": 13, "maintenance": 10}
"""Connections of a process beside its pool, one per queue and two for schedules: docs/reference/connections.md."""


@attrs.frozen
class Privileges:
    """What the session's role has of the documented grants.

    Args:
        role: its name.
        owns: it owns the schema, or is a superuser.
        complete: the documented roles that it fulfils.
        lacking: what it lacks of those that it was evidently meant to have, as texts.
        public_executes: functions may be called by every role that may use the schema.
        hidden: tables whose rows row security hides from it.
    """

    role: str
    owns: bool
    complete: tuple[str, ...] = ()
    lacking: dict[str, list[str]] = attrs.field(factory=dict)
    public_executes: bool = False
    hidden: str | None = None


@attrs.frozen
class Way:
    """How this connection gets to the server.

    Args:
        proxied: something between us and the server answers for it.
        shared: two open sessions got the same server process: it is shared out between them by transaction.
        prepared: prepared statements survive from one transaction to the next.
        settings: so do settings of the session.
        heard: seconds a notification took from one session to another; None when it did not come.
        refused: what was said to a session that asked for its own settings, as processes do without --pooler.
    """

    proxied: bool
    shared: bool
    prepared: bool
    settings: bool
    heard: float | None
    refused: str | None = None

    @property
    def is_pooled(self) -> bool:
        """Whether sessions mean nothing here."""
        return self.shared or not self.prepared or not self.settings or self.refused is not None


@attrs.frozen
class Seats:
    """Connections: in use, and at most for us."""

    ours: int
    everybody: int
    most: int


@attrs.frozen
class Session:
    """Another session (or a prepared transaction, whose pid is None) that stands in the way.

    Args:
        pid: of its server process.
        name: what it calls itself: application and role.
        state: active, idle in transaction, prepared …; None when this role may not see it.
        age: seconds since its transaction began; None when this role may not see it.
        what: the relations that it locks, or what waits for it.
    """

    pid: int | None
    name: str
    state: str | None
    age: float | None
    what: str = ""

    @property
    def text(self) -> str:
        """Who it is, for people."""
        if self.pid is None:
            return f"prepared transaction {self.name}" + (f" (for {ago(self.age)})" if self.age is not None else "")
        state = "" if self.state is None else f", {self.state}"
        return f"server process {self.pid} ({self.name}{state}" + (
            f" for {ago(self.age)})" if self.age is not None else ")"
        )

    @property
    def cure(self) -> str:
        """What ends it."""
        if self.pid is None:
            return f"commit it or run ROLLBACK PREPARED '{self.name}'"
        return f"end it with pg_terminate_backend({self.pid})"


def judge_server(version: int, text: str, read_only: bool) -> Verdict:
    """A primary of a supported version."""
    if version < OLDEST_SERVER:
        return bad(f"the server is Postgres {text}; 15 is the oldest that works: upgrade it")
    if read_only:
        return bad("the database is read-only (a standby, or default_transaction_read_only): name the primary")
    return fine(f"Postgres {text}, writable")


def judge_schema(found: int, expected: int) -> Verdict:
    """The schema is the one that this release needs."""
    return fine(f"version {found}") if found == expected else bad(schema_reason(found, expected))


def judge_privileges(has: Privileges) -> Verdict:
    """The current role may do what some documented role does."""
    again = "as the owner, run 'awa-actors migrate --grants --apply --role {}=" + has.role + "'"
    if has.owns:
        return fine(f"{has.role} owns the schema, and may do everything")
    if has.hidden is not None:
        return bad(f"row security hides the rows of {has.hidden} from {has.role}: {again.format('ROLE')}")
    if has.lacking:
        role, missing = next(iter(has.lacking.items()))
        return bad(f"{has.role} cannot be a {role}: it lacks {listed(missing)}; {again.format(role)}")
    if not has.complete:
        return bad(f"{has.role} fulfils none of the documented roles: {again.format('ROLE')}")
    if has.public_executes:
        return warn(f"every role that may use the schema may call its functions: {again.format('ROLE')}")
    return fine(f"{has.role} may be {listed(has.complete, 6)}")


def judge_pooler(way: Way, told: bool, processes: Sequence[Process]) -> Verdict:
    """Sessions mean something, or whoever runs here knows that they do not."""
    if not way.is_pooled:
        return fine("a session pooler stands in between" if way.proxied else "a direct connection")
    broken = [
        name
        for name, wrong in (
            ("LISTEN", way.heard is None),
            ("prepared statements", not way.prepared or way.shared),
            ("session settings", not way.settings or way.refused is not None),
        )
        if wrong
    ]
    what = f"this URL leads to a transaction pooler: {', '.join(broken)} do not work through it"
    unaware = [one.name for one in processes if one.alive and one.details.get("pooler") is False]
    if told:
        return fine("a transaction pooler, as expected")
    also = f" ({listed(unaware)} run without it)" if unaware else ""
    return bad(f"{what}; name the server itself, or run every process with --pooler{also}")


def judge_notify(way: Way) -> Verdict:
    """A notification arrives."""
    if way.heard is not None:
        return fine(f"a notification took {way.heard * 1000:.0f} ms")
    if way.is_pooled:
        return skipped("notifications do not pass a transaction pooler; processes poll")
    return warn("a notification did not arrive: every process works at its poll interval; look at the server's load")


def judge_clock(offset: float, uncertainty: float) -> Verdict:
    """The server's clock and this host's agree.

    Args:
        offset: seconds by which the server is ahead.
        uncertainty: seconds that the measurement may be wrong by.
    """
    apart = max(0.0, abs(offset) - uncertainty)
    if apart < CLOCK_DIFFERS:
        return fine(f"within {abs(offset) + uncertainty:.1f} s of this host")
    side = "ahead of" if offset > 0 else "behind"
    line = f"the server's clock is {ago(apart)} {side} this host's: jobs are due by the server's; check NTP on both"
    return bad(line) if apart >= CLOCK_IS_WRONG else warn(line)


def budget(processes: Sequence[Process]) -> int:
    """How many connections the live processes may open, by the documented formula."""
    total = 0
    for one in processes:
        if not one.alive:
            continue
        seats = one.details.get("pool_size", 10)
        candidate = one.role == "worker" and bool(one.details.get("candidate"))
        total += seats if isinstance(seats, int) else 10
        total += CONTROL["candidate" if candidate else one.role] if one.role in CONTROL else 0
        total += len(one.queues) + 2 * bool(one.details.get("schedules"))
        total += one.role == "worker" and _follows_completions(one.details.get("follow_ups"))
    return total


def _follows_completions(follow_ups: object) -> bool:
    """Whether a worker has a second completer: what it publishes of its follow-ups are (outcome, kind, name)."""
    return isinstance(follow_ups, list) and any(isinstance(one, list) and "completed" in one[:1] for one in follow_ups)


def judge_connections(seats: Seats, processes: Sequence[Process]) -> Verdict:
    """The budget of the live processes fits, and so does what is open now."""
    wanted, others = budget(processes), max(0, seats.everybody - seats.ours)
    if wanted + others > seats.most:
        return bad(
            f"the live processes may open {wanted} connections beside {others} of others, and the server takes"
            f" {seats.most}: lower pool_size or raise max_connections"
        )
    if seats.everybody >= CROWDED * seats.most:
        return warn(f"{seats.everybody} of {seats.most} connections are in use: find out who holds them")
    return fine(f"{seats.everybody} of {seats.most} in use; the live processes may open {wanted}")


def judge_locks(blockers: Sequence[Session], strong: Sequence[Session]) -> Verdict:
    """Nobody waits for a lock on our tables, and nobody keeps one that others must wait for."""
    found = [bad(f"{one.what} waits for a lock that {one.text} holds: {one.cure}") for one in blockers]
    named = {one.text.partition(" (")[0] for one in blockers}
    found += [
        bad(f"{one.text} keeps everybody out of {one.what}: {one.cure}")
        for one in strong
        if one.text.partition(" (")[0] not in named
    ]
    return worst(found[:3], "nobody waits for a lock")


def judge_horizon(pins: Sequence[Session], slots: Sequence[str]) -> Verdict:
    """No old transaction keeps deleted rows from being cleaned up."""
    found = [
        warn(f"{one.text} pins the horizon, so dead rows of other tables stay and claims get slower: {one.cure}")
        for one in pins[:2]
    ]
    found += [warn(f"replication slot {name} pins the horizon: drop it or let its consumer catch up") for name in slots]
    return worst(found, "no old transaction")
