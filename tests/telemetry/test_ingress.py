"""The callback ingress counts its answers, also where it has no client."""

from typing import Any

from awa_actors.web.callback_app import callback_app


async def answer(app: Any, path: str) -> int:
    """The status of one POST."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{", "more_body": False}

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
