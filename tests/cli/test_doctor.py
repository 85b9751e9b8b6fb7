"""The doctor as a command: how it ends, what it says where it cannot look, and that no check hides another."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from command_line import REPOSITORY, UNREACHABLE, awa, one_line
from database_roles import Granted, granted_roles
from jobs_at_hand import inserted
from postgres_servers import Server, query

from awa_actors import doctor
from awa_actors.core.doctor import Verdict
from awa_actors.doctor_checks import CHECKS, Visit
from awa_actors.errors import StoreError, TransientStoreError


def said(*args: str, url: str) -> dict[str, tuple[str, str]]:
    answer = awa("doctor", "--json", *args, url=url)
    return {one["check"]: (one["status"], one["line"]) for one in answer.json["checks"]}


def test_a_database_without_jobs_is_fine_though_nobody_leads(database: str) -> None:
    answer = awa("doctor", url=database)
    assert answer.status == 0
    assert len(answer.out.splitlines()) == len(CHECKS)
    (leader,) = [line for line in answer.out.splitlines() if line.split()[1] == "leader"]
    assert leader.startswith("warning")
    assert "nobody has ever led; no job needs it yet" in leader


def test_the_reference_lists_the_checks() -> None:
    page = (REPOSITORY / "docs" / "reference" / "cli.md").read_text()
    listed = page[page.index("The checks, in this order: ") :].partition(". Warnings")[0]
    assert re.findall(r"`([^`]+)`", listed) == list(CHECKS)


def test_follow_ups_that_failed_or_wait_are_named(database: str) -> None:
    query(
        database,
        "INSERT INTO awa.follow_up_failures (job_id, kind, outcome, spec, error, event)"
        " VALUES (7, 'signup', 'completed', 'welcome', 'boom', '{}')",
    )
    query(
        database,
        "INSERT INTO awa.rescue_outbox (kind, spec, job, reason) VALUES ('signup', 'note', '{}', 'stale_instance')",
    )
    found = said(url=database)
    assert found["follow-ups"][0] == "warning"
    assert "1 follow-ups failed and wait to be replayed, the newest welcome of job 7: boom" in found["follow-ups"][1]
    assert found["outbox"][0] == "problem"
    assert "1 rescues of 'signup' wait for follow-up note" in found["outbox"][1]


DECLARED = """
INSERT INTO awa.cron_schedules (name, application, digest, expression, timezone, missed_fire, overlap, jitter, kind,
    queue, args, priority, max_attempts, options, declared_at, paused_at)
SELECT s.name, 'shop', 'd', '0 3 * * *', 'UTC', 'coalesce', 'allow', 0, 'report', 'default', '{}', 2, 25, '{}',
       clock_timestamp() - s.ago, CASE WHEN s.paused THEN clock_timestamp() END
FROM (VALUES ('nightly', interval '10 minutes', false), ('weekly', interval '10 minutes', true),
             ('hourly', interval '1 second', false)) s (name, ago, paused)
"""
DECIDES = """
INSERT INTO awa.leadership (name, holder, term, expires_at, sessions_matter, acquired_at, renewed_at)
VALUES ('cron of shop', gen_random_uuid(), 1, clock_timestamp() + interval '1 minute', false, now(), now())
"""


def test_schedules_that_no_live_process_decides_are_named(database: str) -> None:
    query(database, DECLARED)
    status, line = said(url=database)["schedules"]
    assert status == "problem"
    assert "no live process decides 'nightly' of 'shop', for 10 min" in line
    assert "weekly" not in line
    query(database, DECIDES)
    status, line = said(url=database)["schedules"]
    assert status == "warning"
    assert "nobody declares 'nightly' any more" in line
    query(database, "UPDATE awa.cron_schedules SET declared_at = clock_timestamp()")
    assert said(url=database)["schedules"] == ("ok", "2 schedules, all decided")


def test_jobs_that_nobody_works_on_are_a_problem(database: str) -> None:
    inserted(database)
    answer = awa("doctor", "--json", url=database)
    assert (answer.status, answer.json["status"]) == (1, "problem")
    checks = {one["check"]: one["status"] for one in answer.json["checks"]}
    assert (checks["leader"], checks["workers"], checks["queues"]) == ("problem", "problem", "problem")


def test_an_unreachable_database_is_69() -> None:
    answer = awa("doctor", "--json", url=UNREACHABLE)
    assert (answer.status, answer.json["status"], answer.json["checks"]) == (69, "unreachable", [])
    one_line(answer.err, "cannot reach the database")


def test_without_a_schema_what_needs_none_is_checked_all_the_same(empty_database: str) -> None:
    answer = said(url=empty_database)
    assert answer["schema"] == ("problem", "the database has no awa schema: run 'awa-actors migrate'")
    assert {answer[check][0] for check in ("server", "pooler", "notify", "clock", "locks", "horizon")} == {"ok"}
    assert {answer[check][0] for check in ("privileges", "queues", "rings", "copy", "storage")} == {"skipped"}


def test_a_read_only_database_is_named(database: str) -> None:
    alter = "format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database())"
    query(database, f"DO $$ BEGIN EXECUTE {alter}; END $$")
    assert said(url=database)["server"][0] == "problem"


def test_what_an_application_has_and_no_worker_is_not_asked_without_workers(database: str, here: Path) -> None:
    (here / "shop.py").write_text("import awa_actors\nregistry = awa_actors.Registry()\n")
    assert said("--app", "shop:registry", url=database)["kinds"] == ("skipped", "no worker runs")


@pytest.fixture
def granted(database: str, server: Server) -> Iterator[Granted]:
    with granted_roles(database, server) as granted:
        yield granted


def test_a_role_is_held_against_the_documented_grants(granted: Granted) -> None:
    def privileges(role: str) -> tuple[str, str]:
        return said(url=granted.url_of(role))["privileges"]

    assert privileges("worker") == ("ok", f"{granted.names['worker']} may be worker")
    status, line = privileges("nobody")
    assert status == "problem"
    assert "fulfils none of the documented roles" in line
    taken = f'REVOKE INSERT ON awa_queue.done, awa_queue.terminal FROM "{granted.names["worker"]}"'
    query(granted.url, taken)
    status, line = privileges("worker")
    assert status == "problem"
    assert "cannot be a worker: it lacks INSERT on awa_queue.done, INSERT on awa_queue.terminal;" in line
    assert f"--role worker={granted.names['worker']}" in line


def test_row_security_that_hides_rows_is_named(granted: Granted) -> None:
    query(granted.url, "DROP POLICY awa_by_grants ON awa_queue.ready")
    status, line = said(url=granted.url_of("reader"))["privileges"]
    assert status == "problem"
    assert "row security hides the rows of awa_queue.ready" in line


def test_a_reader_may_have_everything_checked(granted: Granted) -> None:
    found = said(url=granted.url_of("reader"))
    assert {check for check, (status, _) in found.items() if status == "skipped"} == {"lanes", "kinds"}


def test_a_worker_has_checked_what_it_may_see(granted: Granted) -> None:
    found = said(url=granted.url_of("worker"))
    assert found["leader"][0] == "warning"
    assert found["workers"] == ("ok", "0 workers and 0 other processes beat")
    assert found["history"][0] == "ok"
    assert found["copy"][0] == "skipped"
    assert "permission denied" in found["copy"][1]


async def _raises(visit: Visit) -> Verdict:
    raise ZeroDivisionError("by hand")


async def _refused(visit: Visit) -> Verdict:
    raise StoreError("permission denied for table x")


async def _away(visit: Visit) -> Verdict:
    raise TransientStoreError("gone for a moment")


async def _hangs(visit: Visit) -> Verdict:
    await trio.sleep_forever()
    raise AssertionError


def test_a_check_that_fails_hides_no_other(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECK_LIMIT", 1.5)
    for name, check in (("clock", _raises), ("queues", _refused), ("kinds", _away), ("rings", _hangs)):
        monkeypatch.setitem(CHECKS, name, check)
    found = said(url=database)
    assert list(found) == list(CHECKS)
    assert found["clock"] == ("problem", "the check itself failed: ZeroDivisionError: by hand")
    assert found["queues"] == ("skipped", "could not be checked: permission denied for table x")
    assert found["kinds"] == ("problem", "could not be checked now: gone for a moment")
    assert found["rings"][1].startswith("no answer within")
    assert found["storage"] == ("ok", "active on queue_storage")
