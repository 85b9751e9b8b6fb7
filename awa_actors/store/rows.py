"""One stored job as a value, from the JSON in which every verb returns it."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

from awa_actors.jobs import JobRow, JobState


def _instant(text: str | None) -> dt.datetime | None:
    return None if text is None else dt.datetime.fromisoformat(text)


def _instance(stored: dict[str, Any]) -> str | None:
    if stored["instance"] is not None:
        return str(uuid.UUID(stored["instance"]))
    number = stored.get("instance_number")
    return None if number is None else f"#{number}"


def job_row(stored: dict[str, Any]) -> JobRow:
    """Read a row of awa.jobs, or of the whole-job tables (where the id is called job_id)."""
    key = stored.get("unique_key")
    deadline = stored.get("deadline_ms")
    created_at = _instant(stored["created_at"])
    run_at = _instant(stored["run_at"])
    assert created_at is not None
    assert run_at is not None
    return JobRow(
        id=stored["id"] if "id" in stored else stored["job_id"],
        kind=stored["kind"],
        queue=stored["queue"],
        args=stored["args"],
        state=JobState(stored["state"]),
        priority=stored["priority"],
        attempt=stored["attempt"],
        run_lease=stored["run_lease"],
        max_attempts=stored["max_attempts"],
        run_at=run_at,
        created_at=created_at,
        attempted_at=_instant(stored["attempted_at"]),
        finalized_at=_instant(stored["finalized_at"]),
        deadline=None if deadline is None else dt.timedelta(milliseconds=deadline),
        deadline_at=_instant(stored.get("deadline_at")),
        metadata=stored["metadata"] or {},
        tags=tuple(stored["tags"] or ()),
        errors=tuple(stored["errors"] or ()),
        past=tuple(stored.get("past") or ()),
        progress=stored["progress"],
        result=stored["result"],
        unique_key=None if key is None else bytes.fromhex(key[2:]),
        snoozes=stored["snoozes"] or 0,
        rescues=stored["rescues"] or 0,
        interrupted=stored["interrupted"] or 0,
        instance=_instance(stored),
        callback_id=stored.get("callback_id"),
        dlq_reason=stored.get("dlq_reason"),
    )
