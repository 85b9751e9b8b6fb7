"""What the tables of the queue plane must be for its promises to hold."""

import re
from pathlib import Path

from queue_plane import Attempt, Plane

MIGRATIONS = Path(__file__).parents[2] / "awa_actors" / "store" / "migrations"
PARTITIONS = """
SELECT c.relname, p.relname AS parent, c.reloptions, t.reloptions AS toast_options, i.inhparent::regclass::text
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent
LEFT JOIN pg_class t ON t.oid = c.reltoastrelid
WHERE c.relnamespace = 'awa_queue'::regnamespace AND c.relkind = 'r'
"""


def test_autovacuum_leaves_the_rings_alone(plane: Plane) -> None:
    """T9: it would hold the lock that truncation needs, and never yields to a lock timeout under a second."""
    partitions = plane.rows(PARTITIONS)
    assert len(partitions) == 28
    assert [row["relname"] for row in partitions if row["reloptions"] != ["autovacuum_enabled=off"]] == []
    # A TOAST table that says nothing follows its table.
    assert [row["relname"] for row in partitions if row["toast_options"]] == []


def test_a_truncation_makes_the_slot_young_again(plane: Plane) -> None:
    """T9: with autovacuum off, this is what keeps the freeze age of a ring down."""
    plane.insert()
    plane.complete(plane.claim().attempts)
    plane.turn("ready")
    before = plane.value("SELECT relfrozenxid::text::bigint FROM pg_class WHERE oid = 'awa_queue.ready_0'::regclass")
    assert plane.value("SELECT outcome FROM awa_queue.truncate_slot('ready', 0, '0', '0')") == "truncated"
    after = plane.value("SELECT relfrozenxid::text::bigint FROM pg_class WHERE oid = 'awa_queue.ready_0'::regclass")
    assert after > before


def test_a_job_is_found_by_its_id_through_a_btree_everywhere(plane: Plane) -> None:
    """T10: a BRIN index of ids stops to help as soon as some old ids are appended."""
    rows = plane.rows(
        "SELECT i.indrelid::regclass::text AS name, a.amname FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid"
        " JOIN pg_am a ON a.oid = x.relam JOIN pg_class c ON c.oid = i.indrelid"
        " JOIN pg_attribute k ON k.attrelid = c.oid AND k.attnum = i.indkey[0] AND k.attname = 'job_id'"
        " WHERE c.relnamespace = 'awa_queue'::regnamespace AND c.relkind = 'r'"
    )
    assert {row["amname"] for row in rows} == {"btree"}
    named = {row["name"] for row in rows}
    expected = {f"awa_queue.{table}_{slot}" for table in ("bodies", "done") for slot in range(8)}
    expected |= {f"awa_queue.leases_{slot}" for slot in range(4)}
    expected |= {f"awa_queue.{table}" for table in ("deferred_jobs", "terminal", "dlq_entries")}
    assert expected <= named


def test_slots_are_few_enough_for_cheap_locks(plane: Plane) -> None:
    counts = plane.rows(
        "SELECT i.inhparent::regclass::text AS parent, count(*) AS slots FROM pg_inherits i"
        " JOIN pg_class c ON c.oid = i.inhrelid AND c.relkind = 'r' AND c.relnamespace = 'awa_queue'::regnamespace"
        " GROUP BY 1"
    )
    assert {row["parent"]: row["slots"] for row in counts} == {
        "awa_queue.bodies": 8, "awa_queue.done": 8, "awa_queue.ready": 8, "awa_queue.leases": 4,
    }  # fmt: skip


def test_advisory_keys_are_in_a_class_of_our_own(plane: Plane) -> None:
    """T11: the oid of one of our tables; a bare number would collide with another schema's, or with the user's own."""
    statements = [
        line.strip()
        for path in MIGRATIONS.glob("*.sql")
        for line in re.sub(r"--.*", "", path.read_text()).splitlines()
        if "advisory" in line
    ]
    assert [line for line in statements if "::regclass::oid" not in line] == []
    plane.insert()
    with plane.transaction():
        plane.complete(claimed_within(plane))
        plane.promote()
        plane.rescue_stale()
        plane.truncate("ready", 1)
        assert plane.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()") == 0


def claimed_within(plane: Plane) -> list[Attempt]:
    """Claim inside the open transaction, where the procedure may not be called."""
    batch = plane.row(
        "SELECT (t).job_ids, (t).run_leases FROM awa_queue.take('default', 9, 99, %s, 0, NULL, '{}') t", plane.instance
    )
    pairs = zip(batch["job_ids"], batch["run_leases"], strict=True)
    return [Attempt(job_id, run_lease, 0, 1, 2, "email", "{}", None, None) for job_id, run_lease in pairs]


def test_hot_functions_pin_their_plans(plane: Plane) -> None:
    """T8: statistics of churning tables are always wrong."""
    pinned = {"enable_seqscan=off", "enable_hashjoin=off", "enable_mergejoin=off", "jit=off",
              "plan_cache_mode=force_generic_plan", "search_path=pg_catalog"}  # fmt: skip
    rows = plane.rows(
        "SELECT p.proname, p.proconfig FROM pg_proc p WHERE p.pronamespace = 'awa_queue'::regnamespace"
        " AND p.proname IN ('take', 'take_lane', 'take_one', 'complete', 'promote', 'lost')"
    )
    assert len(rows) == 6
    assert {row["proname"]: pinned - set(row["proconfig"]) for row in rows if pinned - set(row["proconfig"])} == {}


def test_every_function_in_plpgsql_pins_its_search_path(plane: Plane) -> None:
    """Procedures that commit cannot; they name everything."""
    rows = plane.rows(
        "SELECT p.pronamespace::regnamespace::text || '.' || p.proname AS name FROM pg_proc p"
        " JOIN pg_language l ON l.oid = p.prolang WHERE l.lanname = 'plpgsql' AND p.prokind = 'f'"
        " AND p.pronamespace IN ('awa'::regnamespace, 'awa_queue'::regnamespace)"
        " AND NOT coalesce(p.proconfig, '{}') @> '{search_path=pg_catalog}'"
    )
    assert rows == []
