"""What the doctor concludes from facts, without any database."""

from pathlib import Path

import pytest

from awa_actors.core import doctor_server, doctor_storage, doctor_work
from awa_actors.core.doctor import Process, Status, Verdict, ago, listed, size, worst
from awa_actors.core.doctor_server import Privileges, Seats, Session, Way
from awa_actors.core.doctor_storage import Copy, Plane, RingLook
from awa_actors.core.doctor_work import Lease, OutboxLook, Poisoned, QueueLook, ScheduleLook

WORKER = Process("w", "worker", "worker here:1", True, 1.0, kinds=("a",), queues={"q": 2})
SILENT = Process("s", "worker", "worker there:2", False, 90.0)
LEASE = Lease("w", 8.0, True)
DIRECT = Way(False, False, True, True, 0.001)
OK, WARNING, PROBLEM, SKIPPED = Status.OK, Status.WARNING, Status.PROBLEM, Status.SKIPPED


def leading(**lane: object) -> Process:
    return Process("w", "worker", "worker here:1", True, 1.0, lanes={"rescue": {"healthy": True, **lane}})


def with_details(**details: object) -> Process:
    return Process("w", "worker", "worker here:1", True, 1.0, queues={"q": 2}, details=details)


CASES = [
    (doctor_server.judge_server(140000, "14.2", False), PROBLEM, "15 is the oldest"),
    (doctor_server.judge_server(180000, "18", True), PROBLEM, "name the primary"),
    (doctor_server.judge_server(180000, "18", False), OK, "writable"),
    (doctor_server.judge_schema(0, 16), PROBLEM, "awa-actors migrate"),
    (doctor_server.judge_schema(17, 16), PROBLEM, "upgrade"),
    (doctor_server.judge_privileges(Privileges("me", True)), OK, "owns"),
    (doctor_server.judge_privileges(Privileges("me", False, ("reader",))), OK, "may be reader"),
    (doctor_server.judge_privileges(Privileges("me", False, ("reader",), public_executes=True)), WARNING, "every role"),
    (doctor_server.judge_privileges(Privileges("me", False, hidden="awa.x")), PROBLEM, "row security hides"),
    (doctor_server.judge_privileges(Privileges("me", False)), PROBLEM, "--role ROLE=me"),
    (
        doctor_server.judge_privileges(Privileges("me", False, ("producer",), {"worker": ["A on b"] * 5})),
        PROBLEM,
        "cannot be a worker: it lacks A on b, A on b, A on b and 2 more",
    ),
    (doctor_server.judge_pooler(DIRECT, False, []), OK, "direct"),
    (doctor_server.judge_pooler(Way(True, False, True, True, 0.1), False, []), OK, "session pooler"),
    (doctor_server.judge_pooler(Way(True, True, False, False, None), True, []), OK, "as expected"),
    (
        doctor_server.judge_pooler(Way(True, True, False, False, None), False, [with_details(pooler=False)]),
        PROBLEM,
        "(worker here:1 run without it)",
    ),
    (doctor_server.judge_pooler(Way(True, False, True, True, 0.1, "unsupported"), False, []), PROBLEM, "settings"),
    (doctor_server.judge_notify(DIRECT), OK, "1 ms"),
    (doctor_server.judge_notify(Way(False, False, True, True, None)), WARNING, "did not arrive"),
    (doctor_server.judge_notify(Way(True, True, False, False, None)), SKIPPED, "poll"),
    (doctor_server.judge_clock(0.4, 0.1), OK, "within 0.5 s"),
    (doctor_server.judge_clock(-7.0, 1.0), WARNING, "6 s behind this host's"),
    (doctor_server.judge_clock(3600.0, 0.0), PROBLEM, "60 min ahead of"),
    (doctor_server.judge_clock(5.0, 5.0), OK, "within"),
    (doctor_server.judge_connections(Seats(5, 10, 97), [WORKER]), OK, "may open 18"),
    (doctor_server.judge_connections(Seats(5, 90, 97), []), WARNING, "90 of 97"),
    (doctor_server.judge_connections(Seats(5, 90, 97), [WORKER]), PROBLEM, "18 connections beside 85 of others"),
    (doctor_server.judge_locks([], []), OK, "nobody"),
    (
        doctor_server.judge_locks([Session(7, "psql of me", "idle in transaction", 61.0, "awa_actors x on y")], []),
        PROBLEM,
        "awa_actors x on y waits for a lock that server process 7 (psql of me, idle in transaction for 61 s) holds",
    ),
    (
        doctor_server.judge_locks([Session(7, "a", None, None, "x on y")], [Session(7, "a", None, None, "y")]),
        PROBLEM,
        "x on y waits for a lock that server process 7 (a) holds: end it with pg_terminate_backend(7)",
    ),
    (
        doctor_server.judge_horizon([Session(None, "gid", "prepared", 7200.0)], []),
        WARNING,
        "prepared transaction gid (for 2 h) pins",
    ),
    (doctor_server.judge_horizon([], ["standby"]), WARNING, "replication slot standby"),
    (doctor_work.judge_leader(None, False, []), WARNING, "nobody has ever led; no job needs it yet"),
    (doctor_work.judge_leader(None, True, []), PROBLEM, "--role maintenance"),
    (doctor_work.judge_leader(LEASE, True, [WORKER]), OK, "worker here:1 leads"),
    (doctor_work.judge_leader(Lease("w", 8.0, False), True, []), PROBLEM, "session is gone (w)"),
    (doctor_work.judge_leader(Lease("w", -30.0, True), True, []), PROBLEM, "ran out 30 s ago"),
    (doctor_work.judge_leader(Lease(None, -30.0, False), True, []), PROBLEM, "resigned 30 s ago"),
    (doctor_work.judge_lanes(None, [WORKER]), SKIPPED, "nobody leads"),
    (doctor_work.judge_lanes(LEASE, [WORKER]), SKIPPED, "not published"),
    (doctor_work.judge_lanes(LEASE, [leading(last_success_age=1.0)]), OK, "1 lanes"),
    (
        doctor_work.judge_lanes(LEASE, [leading(healthy=False, last_success_age=90.0, last_error="Trace\nboom")]),
        PROBLEM,
        "lane rescue is wedged (last success 90 s before its last report): boom",
    ),
    (doctor_work.judge_lanes(LEASE, [leading(healthy=False, running_for=99)]), PROBLEM, "not ended for 99 s"),
    (doctor_work.judge_lanes(LEASE, [leading(failures=1, last_error="x")]), WARNING, "failed 1 times"),
    (doctor_work.judge_lanes(LEASE, [leading(blocked="pid 3")]), WARNING, "held up: pid 3"),
    (doctor_work.judge_schedules([]), OK, "no schedule"),
    (doctor_work.judge_schedules([ScheduleLook("a", "shop", True, 9.0, False)]), OK, "1 schedules"),
    (doctor_work.judge_schedules([ScheduleLook("a", "shop", False, 9.0, False)]), OK, "1 schedules"),
    (
        doctor_work.judge_schedules([ScheduleLook("a", "shop", False, 400.0, True)]),
        PROBLEM,
        "no live process decides 'a' of 'shop', for 7 min",
    ),
    (
        doctor_work.judge_schedules(
            [ScheduleLook("a", "shop", True, 400.0, True), ScheduleLook("b", "shop", True, 1.0, False)]
        ),
        WARNING,
        "nobody declares 'a' any more",
    ),
    (doctor_work.judge_workers([WORKER], True), OK, "1 workers"),
    (doctor_work.judge_workers([SILENT], False), WARNING, "worker there:2 has been silent for 90 s"),
    (doctor_work.judge_workers([SILENT], True), PROBLEM, "jobs wait and no worker runs"),
    (doctor_work.judge_listeners([with_details(listens=True, listener=5)], {5}), OK, "1 processes listen"),
    (doctor_work.judge_listeners([with_details(listens=True, listener=5)], {6}), WARNING, "server process 5 is gone"),
    (doctor_work.judge_listeners([with_details(listens=True, listener=None)], {6}), WARNING, "does not listen"),
    (doctor_work.judge_listeners([with_details(listens=False)], {6}), OK, "0 processes"),
    (doctor_work.judge_queues([], [], 60), OK, "no job waits"),
    (doctor_work.judge_queues([QueueLook("q", 3, 5.0)], [WORKER], 60), OK, "1 queues"),
    (doctor_work.judge_queues([QueueLook("p", 1000, 5.0)], [WORKER], 60), PROBLEM, "1000 or more jobs"),
    (doctor_work.judge_queues([QueueLook("q", 3, 90.0)], [WORKER], 60), PROBLEM, "claim nothing"),
    (doctor_work.judge_queues([QueueLook("q", 3, 90.0, False, None, 2, 70.0, 9)], [WORKER], 60), PROBLEM, "job 9 for"),
    (doctor_work.judge_queues([QueueLook("q", 3, 90.0, False, None, 2, 3.0, 9)], [WORKER], 60), WARNING, "more comes"),
    (doctor_work.judge_queues([QueueLook("q", 3, 90.0, True, "me")], [], 60), WARNING, "paused by me"),
    (doctor_work.judge_kinds({"a"}, [WORKER], ()), OK, "all known"),
    (doctor_work.judge_kinds({"b"}, [WORKER], ()), PROBLEM, "no live worker has a handler for 'b'"),
    (doctor_work.judge_kinds((), [WORKER], {"c"}), WARNING, "this application has 'c'"),
    (doctor_work.judge_kinds({"b"}, [SILENT], ()), SKIPPED, "no worker"),
    (doctor_work.judge_poison([Poisoned(4, "k", 4, False)]), PROBLEM, "job 4 (k) was rescued 4 times"),
    (doctor_work.judge_poison([Poisoned(4, "k", 5, True)]), WARNING, "failed for it"),
    (doctor_work.judge_follow_ups([], 0, None), OK, "agree"),
    (doctor_work.judge_follow_ups(["x is dormant"], 2, "f of job 1: no"), WARNING, "2 follow-ups failed"),
    (doctor_work.judge_outbox([OutboxLook("k", "s", 3, 1, 5.0, None)], {"s"}, 60), OK, "3 rows"),
    (doctor_work.judge_outbox([OutboxLook("k", "s", 3, 1, 5.0, None)], (), 60), PROBLEM, "no live process has it"),
    (
        doctor_work.judge_outbox([OutboxLook("k", "s", 3, 4, 5.0, "boom")], {"s"}, 60),
        WARNING,
        "parked after 4 tries: boom",
    ),
    (doctor_work.judge_outbox([OutboxLook("k", "s", 3, 1, 99.0, None)], {"s"}, 60), WARNING, "the oldest for 99 s"),
    (doctor_storage.judge_rings([RingLook("ready", 2, 8, 9)], []), OK, "ready 2 of 8"),
    (doctor_storage.judge_rings([RingLook("ready", 8, 8, 9)], []), PROBLEM, "every slot of the ready ring"),
    (doctor_storage.judge_rings([RingLook("segments", 8, 8, 9)], []), OK, "segments 8 of 8"),
    (
        doctor_storage.judge_rings(
            [RingLook("leases", 3, 4, 9)], [Session(7, "psql", "idle", 90.0, "awa_queue.leases_1")]
        ),
        WARNING,
        "server process 7 (psql, idle for 90 s) locks awa_queue.leases_1: end it with pg_terminate_backend(7)",
    ),
    (doctor_storage.judge_history(RingLook("segments", 8, 8, 3 << 30), 0, 0), PROBLEM, "3 GB of jobs in 8 of 8"),
    (doctor_storage.judge_history(RingLook("segments", 7, 8, 3), 0, 0), OK, "in 7 of 8 segments"),
    (doctor_storage.judge_copy(Copy(10, 10, 0)), OK, "consistent"),
    (doctor_storage.judge_copy(Copy(9, 10, 0)), PROBLEM, "setval('awa.job_id_seq', 10)"),
    (doctor_storage.judge_copy(Copy(10, 10, 2)), WARNING, "2 attempts belong to processes"),
    (doctor_storage.judge_storage(None), PROBLEM, "missing"),
    (doctor_storage.judge_storage(Plane("active", "queue_storage", None, 1.0)), OK, "active"),
    (doctor_storage.judge_storage(Plane("canonical", "canonical", None, 1.0)), WARNING, "storage prepare"),
    (
        doctor_storage.judge_storage(Plane("mixed_transition", "canonical", "queue", 7300.0, {"running": 2})),
        WARNING,
        "the move to queue is mixed transition since 2 h; still on the old plane: 2 running",
    ),
]


@pytest.mark.parametrize(
    ("verdict", "status", "part"), CASES, ids=lambda value: getattr(value, "line", "")[:50] or None
)
def test_facts_become_one_line(verdict: Verdict, status: Status, part: str) -> None:
    assert (verdict.status, part in verdict.line) == (status, True), verdict
    assert "\n" not in verdict.line


def test_the_budget_is_the_documented_formula() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "connections.md").read_text()
    assert "| 7 + one per queue (+ 1 with follow-ups of completions) |" in page
    assert "| 13 + one per queue (+ 1 with follow-ups of completions, + 2 with schedules) |" in page
    assert "| 10 (+ 2 with schedules) |" in page
    leading = with_details(pool_size=10, candidate=True, schedules=True)
    maintenance = Process("m", "maintenance", "m", True, 1.0, details={"pool_size": 4, "schedules": False})
    assert doctor_server.budget([leading]) == 10 + 13 + 1 + 2
    assert doctor_server.budget([WORKER]) == 10 + 7 + 1
    following = with_details(pool_size=10, follow_ups=[["cancelled", "a", "b"], ["completed", "a", "b"]])
    assert doctor_server.budget([following]) == 10 + 7 + 1 + 1
    assert doctor_server.budget([maintenance, SILENT]) == 4 + 10


def test_the_worst_of_several_verdicts_counts_and_comes_first() -> None:
    verdict = worst([Verdict(WARNING, "w"), Verdict(PROBLEM, "p")], "fine")
    assert verdict == Verdict(PROBLEM, "p; w")
    assert worst([], "fine") == Verdict(OK, "fine")


def test_lengths_and_sizes_are_said_as_people_do() -> None:
    assert [ago(5), ago(600), ago(9000)] == ["5 s", "10 min", "2 h"]
    assert [size(10), size(5 << 20), size(3 << 40)] == ["10 B", "5 MB", "3.0 TB"]
    assert listed(range(5)) == "0, 1, 2 and 2 more"
