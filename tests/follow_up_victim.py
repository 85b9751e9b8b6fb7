"""A process that kills itself at one point of a transition that has a follow-up. A program, imported for its registry.

``python follow_up_victim.py URL ACT POINT``: ACT is an outcome of a worker's attempt or what an operator or the outside
world does; POINT is where SIGKILL comes.
"""

import os
import signal
import sys
from functools import partial
from typing import Any

import trio
from follow_up_jobs import Notice, Signup

import awa_actors as awa
from awa_actors.config import MaintenanceSettings

POINTS = ("before the insert", "before the commit", "after the commit")
WORKER_ACTS = ("completed", "retried", "exhausted", "cancelled", "waiting_for_callback", "caller_owned")
CALLER_ACTS = ("cancel", "drain", "complete_external", "fail_external", "retry_external", "resolve_external")
RESCUES = ("outbox", "best_effort")
OUTCOME_OF = {
    "cancel": "cancelled",
    "drain": "cancelled",
    "complete_external": "completed",
    "fail_external": "exhausted",
    "retry_external": "retried",
    "resolve_external": "completed",
}


async def completes(job: awa.Job[Signup]) -> awa.FinalizationReceipt:
    """A handler whose own transaction completes the job and enqueues what follows."""
    async with job.client.transaction() as tx:
        await tx.insert(Notice("caller_owned"))
        return await tx.complete(job)


def registry_for(act: str) -> awa.Registry:
    """A handler that ends as asked for, and a notice that follows."""
    registry = awa.Registry("victim")
    if act == "caller_owned":
        registry.worker(Signup, completion=awa.Completion.CALLER_OWNED)(completes)
        return registry

    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> awa.Verdict:
        match act:
            case "retried":
                return awa.RetryAfter(3600)
            case "exhausted":
                raise awa.TerminalError("gone")
            case "cancelled":
                return awa.Cancel()
            case "waiting_for_callback" | "complete_external" | "fail_external" | "retry_external" | "resolve_external":
                return awa.WaitForCallback(await job.register_callback(expires_in=3600))
        return None

    getattr(registry, f"on_{OUTCOME_OF.get(act, act)}_enqueue")(Signup)(lambda event: Notice(act))
    return registry


def rescued_registry(delivery: str) -> awa.Registry:
    """A notice that follows a rescue, through the outbox or as it comes."""
    registry = awa.Registry("victim")
    registry.on_rescued_enqueue(Signup, delivery=awa.Delivery(delivery))(lambda event: Notice("rescued"))
    return registry


def die() -> None:
    """End this process the hard way."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str) -> None:
    """Make the point deadly: in the first transaction that inserts, and only there."""
    from awa_actors.store.pool import Session

    execute, fetchrow = Session.execute, Session.fetchrow
    is_armed = False

    async def deadly_fetchrow(self: Session, sql: str, *args: Any) -> Any:
        nonlocal is_armed
        if "awa.insert_" in sql:
            is_armed = True
            if point == "before the insert":
                die()
        return await fetchrow(self, sql, *args)

    async def deadly_execute(self: Session, sql: str, *args: Any) -> str:
        if sql == "COMMIT" and is_armed and point == "before the commit":
            die()
        done = await execute(self, sql, *args)
        if sql == "COMMIT" and is_armed and point == "after the commit":
            die()
        return done

    Session.execute = deadly_execute  # type: ignore[method-assign]  # the point of this program
    Session.fetchrow = deadly_fetchrow  # type: ignore[method-assign]


async def act_on(client: awa.Client, act: str, point: str) -> None:
    """Do what an operator or the outside world does."""
    (job,) = await client.admin.jobs(kind="signup")
    async with client.transaction() as tx:
        callback = await tx.fetchval("SELECT callback_id::text FROM awa_queue.callbacks WHERE job_id = $1", job.id)
    arm(point)
    match act:
        case "cancel":
            await client.admin.cancel(job.id)
        case "drain":
            await client.admin.drain_queue("signup")
        case "complete_external":
            await client.complete_external(callback, {"paid": True})
        case "fail_external":
            await client.fail_external(callback, "declined")
        case "retry_external":
            await client.retry_external(callback)
        case "resolve_external":
            await client.resolve_external(callback, {"paid": True}, "complete")


async def main(url: str, act: str, point: str) -> None:
    """Act, and die on the way."""
    registry = rescued_registry(act) if act in RESCUES else registry_for(act)
    async with awa.open_client(url, registry=registry) as client:
        if act in CALLER_ACTS:
            await act_on(client, act, point)
            return
        arm(point)
        if act in RESCUES:
            await client.run_maintenance(settings=MaintenanceSettings(rescue_interval=0.05))
        await client.run_worker(awa.QueueConfig("signup", poll_interval=0.05), maintenance=False)


if __name__ == "__main__":
    trio.run(partial(main, *sys.argv[1:]))
