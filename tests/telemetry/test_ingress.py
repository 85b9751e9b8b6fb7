"""The callback ingress counts its answers, also where it has no client."""

from typing import Any

import psycopg
from callback_jobs import dying

import awa_actors as awa
from awa_actors.web.callback_app import callback_app


async def answer(app: Any, path: str, body: bytes = b"{") -> int:
    """The status of one POST."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "root_path": "", "headers": [], "query_string": b""}
    await app(scope, receive, send)
    status: int = sent[0]["status"]
    return status


async def test_answers_are_counted_by_action_and_status(observatory: Any) -> None:
    app = callback_app("postgresql://", allow_unsigned=True, telemetry=observatory.telemetry)
    assert await answer(app, "/api/callbacks/no-id/complete") == 400
    assert await answer(app, "/api/callbacks/no-id/fail") == 400
    assert await answer(app, "/api/callbacks/no-id/anything-else") == 404
    assert observatory.values("awa.callback.requests") == {
        ("complete", "400"): 1,
        ("fail", "400"): 1,
        ("none", "404"): 1,
    }
    assert observatory.values("awa.callback.duration") == {("complete",): 1, ("fail",): 1, ("none",): 1}


async def test_a_callback_that_fails_its_job_counts_the_dead_letter(database: str, observatory: Any) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        job = dying(connection)
    async with awa.open_client(database, telemetry=observatory.telemetry) as client:
        app = callback_app(client, allow_unsigned=True)
        assert await answer(app, f"/api/callbacks/{job.callback_id}/fail", b'{"error": "no"}') == 200
    ((reason, kind, _),) = observatory.values("awa.job.dlq_moved")
    assert (reason, kind) == ("external_fail", "errand")
