"""What a job keeps of its past, through the transition between the planes."""

from typing import Any

import pytest
from canonical_plane import CanonicalPlane, flip
from psycopg.types.json import Jsonb


def past(plane: CanonicalPlane, job_id: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plane.stored(job_id)["past"]
    return found


@pytest.mark.parametrize("where", ["available", "scheduled", "parked", "running"])
def test_a_job_changes_planes_with_its_past(plane: CanonicalPlane, where: str) -> None:
    plane.register()
    job_id = plane.job()
    plane.end(plane.take(job_id), state="available", uncount=True, interrupted=True)
    if where == "scheduled":
        plane.end(plane.take(job_id), state="scheduled", delay=600, uncount=True, snooze=True)
    elif where != "available":
        attempt = plane.take(job_id)
        callback = str(plane.value("SELECT awa_queue.register_callback(%s, 2, %s, 60, NULL)", job_id, plane.instance))
        if where == "parked":
            entry = Jsonb([{"job_id": job_id, "run_lease": 2, "callback_id": callback}])
            plane.rows("SELECT awa_queue.park(%s, %s)", plane.instance, entry)
    before = past(plane, job_id)
    flip(plane)
    if where == "running":
        plane.end(attempt, state="scheduled", delay=600, uncount=True, snooze=True)
        assert past(plane, job_id)[: len(before)] == before
    else:
        assert plane.row("SELECT * FROM awa.move_canonical(100)")["moved"] == 1
        assert past(plane, job_id) == before
    assert plane.value("SELECT awa.canonical_live_backlog()") == 0
    assert past(plane, job_id)[0]["outcome"] == "interrupted"
