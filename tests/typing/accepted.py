"""Every form that users are shown: `mypy --strict` has nothing to say about this file."""

from dataclasses import dataclass
from typing import ClassVar

import attrs
import trio

import awa_actors as awa


@attrs.frozen
class Signup:
    queue: ClassVar[str] = "signup"
    user_id: int


@dataclass(frozen=True)
class SendWelcome:
    kind: ClassVar[str] = "send_welcome_email"
    queue: ClassVar[str] = "email"
    user_id: int


@attrs.frozen
class NotifyOps:
    text: str


registry = awa.Registry()


@registry.worker(Signup)
async def sign_up(job: awa.Job[Signup]) -> None:
    assert job.args.user_id > 0
    job.set_progress(100)


@registry.worker(SendWelcome)
async def send_welcome(job: awa.Job[SendWelcome]) -> awa.Verdict:
    match job.args.user_id:
        case 200:
            return None
        case 429:
            return awa.RetryAfter(30)
        case 503:
            return awa.Snooze(5)
        case 410:
            return awa.Cancel("mailbox gone")
        case status:
            raise awa.TerminalError(f"mail API said {status}")


@registry.worker(NotifyOps)
def notify(job: awa.Job[NotifyOps]) -> awa.Snooze | None:
    job.check_cancelled()
    return None


@registry.on_event(Signup)
async def measure(event: awa.Event[Signup]) -> None:
    assert event.args.user_id == event.job.args["user_id"]


@registry.on_completed_enqueue(Signup)
def welcome(event: awa.events.Completed[Signup]) -> SendWelcome:
    return SendWelcome(user_id=event.args.user_id)


@registry.on_exhausted_enqueue(Signup)
def page(event: awa.events.Exhausted[Signup]) -> awa.Enqueue[NotifyOps]:
    return awa.Enqueue(NotifyOps(event.error), awa.InsertOpts(queue="ops", priority=1))


@registry.on_rescued_enqueue(Signup, delivery="outbox")
def note(event: awa.events.Rescued[Signup]) -> NotifyOps:
    return NotifyOps(event.reason)


registry.cron("nightly", "0 3 * * *", NotifyOps("report"), timezone="UTC", missed_fire=awa.MissedFire.COALESCE)
registry.describe_queue("email", display_name="Email", owner="growth")
registry.describe_kind(Signup, description="Creates an account")


async def use(url: str) -> None:
    async with awa.open_client(url, registry=registry) as client:
        job: awa.InsertedJob = await client.insert(Signup(user_id=1))
        jobs: list[awa.InsertedJob] = await client.insert_many([Signup(user_id=n) for n in range(job.id)])
        async with client.transaction() as tx:
            await tx.execute("INSERT INTO orders (id) VALUES ($1)", len(jobs))
            await tx.insert(Signup(user_id=2), awa.InsertOpts(unique=awa.UniqueOpts(by_queue=True)))
        async with trio.open_nursery() as nursery:
            worker: awa.Worker = await nursery.start(client.run_worker, awa.QueueConfig("signup", max_workers=8))
            with trio.move_on_after(30):
                await worker.drain()
            maintenance: awa.Maintenance = await nursery.start(client.run_maintenance)
            await maintenance.wait_leader()
            nursery.cancel_scope.cancel()
        await client.tick(awa.Budget(seconds=20, rows=5_000))
