"""The demo at work: it watches the database while its scenes, each a task, kill processes and answer callbacks."""

from __future__ import annotations

import datetime as dt
import http.client
import secrets
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import attrs
import orjson
import trio

from awa_actors.cli.demo_app import SCHEDULE
from awa_actors.cli.demo_leadership import nominal_time
from awa_actors.cli.demo_plan import STEPS, Track
from awa_actors.cli.demo_processes import FROM_THE_START, SERVER, STANDBY, Processes
from awa_actors.cli.demo_show import Show
from awa_actors.cli.demo_view import View, Watched
from awa_actors.cli.failures import Failure
from awa_actors.client import Client
from awa_actors.jobs import JobState
from awa_actors.store.leadership import Lease
from awa_actors.web.signing import PREFIX, REQUEST_HEADER, callback_url, sign_request

LOOK_EVERY = 0.08
"""Seconds between looks: handlers take several of these, so that no state goes by unseen."""
KILL_AFTER = 0.5
"""Seconds that the long job runs before its worker is killed."""
POST_BOUND = 5.0
"""Seconds that the callback server may take for an answer."""
SECRET_VARIABLE = "AWA_CALLBACK_HMAC_SECRET"
"""As the callback server knows it, whose module cannot be imported without the extra."""


@attrs.define(eq=False)
class Stage:
    """Where the show takes place. All of its methods raise :class:`Failure` when something goes wrong."""

    client: Client
    processes: Processes
    spectators: View
    show: Show
    names: dict[str, str] = attrs.field(factory=dict)
    """Processes by the instances that they have registered."""
    _looked: trio.Event = attrs.field(factory=trio.Event)

    async def until_up(self) -> None:
        """Wait until somebody leads and every process has registered."""
        while True:
            await self._meet()
            lease = await self.client.admin.leader()
            if lease is not None and not lease.is_free and set(FROM_THE_START) <= set(self.names.values()):
                return
            await trio.sleep(LOOK_EVERY)

    async def enqueue(self) -> None:
        """Insert the jobs of all steps."""
        self.spectators.say(f"enqueuing {len(STEPS)} jobs")
        for step in STEPS:
            job = await self.client.insert(step.args, step.opts)
            track = self.show.tracks[job.id] = Track(step, await self.client.admin.job(job.id))
            self.spectators.moved(track, track.began(self.names))
            if step.twice:
                again = await self.client.insert(step.args, step.opts)
                if again.inserted or again.id != job.id:
                    raise Failure(f"the unique job {job.id} was inserted again as {again.id}")
                track.story.append(f"again: still job {again.id}")

    async def perform(self) -> None:
        """Watch and run the scenes until all went as it should; the first failure ends all of them."""
        failures: list[Failure] = []
        async with trio.open_nursery() as nursery:

            async def run(scene: Callable[[], Awaitable[None]]) -> None:
                try:
                    await scene()
                except Failure as failure:
                    failures.append(failure)
                    nursery.cancel_scope.cancel()

            for scene in (self._watch, self._kill_worker, self._replace_leader, self._call_back, self._end_schedule):
                nursery.start_soon(run, scene)
        if failures:
            raise failures[0]

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._looked.wait()

    async def _until_in(self, state: JobState, track: Track) -> None:
        await self._until(lambda: track.row.state is state)

    async def _meet(self) -> None:
        if ended := self.processes.ended_unasked():
            raise Failure(f"{' and '.join(ended)} ended unasked")
        for one in await self.client.admin.instances():
            self.names[one.id] = self.processes.name_of(one.pid)

    async def _watch(self) -> None:
        """Take in how things stand, and tell it."""
        while not self.show.finished:
            await self._meet()
            await self._look()
            self.spectators.draw(self.show.watched)
            self._looked.set()
            self._looked = trio.Event()
            await trio.sleep(LOOK_EVERY)

    async def _look(self) -> None:
        for row in reversed(await self.client.admin.jobs(limit=1000)):
            one: Watched
            if nominal_time(row) is not None:
                one, happened = self.show.fires, self.show.fires.saw(row)
            elif row.id in self.show.tracks:
                one = track = self.show.tracks[row.id]
                happened = track.saw(row, self.names)
            else:
                one = track = self.show.tracks[row.id] = Track(None, row)
                happened = track.began(self.names)
            if happened is not None:
                self.spectators.moved(one, happened)
        if self.show.fires.problem is not None:
            raise Failure(self.show.fires.problem)

    async def _kill_worker(self) -> None:
        """Kill the worker of the long job when it is in the middle of it."""
        victims = [track for track in self.show.tracks.values() if track.step is not None and track.step.kill]
        for track in victims:
            await self._until_in(JobState.RUNNING, track)
            await trio.sleep(KILL_AFTER)
            await self._until(lambda: self._works_alone(track))  # noqa: B023 - called in this very round
            name = self.names[track.row.instance or ""]
            self.spectators.say(f"killing {name} (SIGKILL) in the middle of {track.name}")
            await self.processes.kill(name)

    def _works_alone(self, victim: Track) -> bool:
        """Whether no other step's job runs on the victim's worker: each shall show one thing."""
        others = [track for track in self.show.tracks.values() if track.step is not None and track is not victim]
        return not any(
            track.row.state is JobState.RUNNING and track.row.instance == victim.row.instance for track in others
        )

    async def _replace_leader(self) -> None:
        """Kill the leader when there is a stand-by and a fire, and time how long nobody leads."""
        takeover = self.show.takeover
        self.spectators.say(f"starting {STANDBY}, to stand by")
        await self.processes.start(STANDBY)
        await self._until(lambda: STANDBY in self.names.values() and bool(self.show.fires.jobs))
        lease = await self._leader_after(0)
        leader = self.names[lease.holder or ""]
        self.spectators.moved(takeover, takeover.led(leader, lease.term))
        self.spectators.say(f"killing {leader} (SIGKILL), which leads")
        await self.processes.kill(leader)
        died = trio.current_time()
        self.spectators.moved(takeover, takeover.killed(dt.datetime.now(dt.UTC)))
        lease = await self._leader_after(lease.term)
        seconds = trio.current_time() - died
        self.spectators.moved(takeover, takeover.succeeded(self.names[lease.holder or ""], lease.term, seconds))

    async def _leader_after(self, term: int) -> Lease:
        while True:
            lease = await self.client.admin.leader()
            if lease is not None and not lease.is_free and lease.term > term:
                return lease
            await trio.sleep(LOOK_EVERY)

    async def _call_back(self) -> None:
        """Answer for the outside world: over HTTP where that is installed."""
        over_http = all(map(find_spec, ("starlette", "hypercorn")))
        secret, base = secrets.token_hex(), ""
        if over_http:
            self.spectators.say(f"starting the {SERVER}")
            await self.processes.start(SERVER, **{SECRET_VARIABLE: secret})
            base = await self._address()
        else:
            self.spectators.say(
                "without awa-actors[http] there is no callback server: the demo completes the job itself"
            )
        answers = [(track, track.step.answer) for track in self.show.tracks.values() if track.step is not None]
        for track, answer in answers:
            if answer is None:
                continue
            await self._until_in(JobState.WAITING_EXTERNAL, track)
            callback_id = (await self.client.admin.job(track.row.id)).callback_id or ""
            if over_http:
                await self._post(base, secret, callback_id, answer)
            else:
                await self.client.complete_external(callback_id, answer)

    async def _address(self) -> str:
        while True:
            if (base := self.processes.said(SERVER, rf"POST (\S+){PREFIX}/")) is not None:
                return base
            await self._looked.wait()

    async def _post(self, base: str, secret: str, callback_id: str, answer: Any) -> None:
        body = orjson.dumps({"payload": answer})
        signature = sign_request(secret, "complete", callback_id, body, time.time())
        url = callback_url(base, callback_id)
        status = await trio.to_thread.run_sync(_posted, url, body, signature, abandon_on_cancel=True)
        self.spectators.say(f"POST {urlsplit(url).path}, signed, to the {SERVER}: {status}")
        if status != http.HTTPStatus.OK:
            raise Failure(f"the {SERVER} answered {status}")

    async def _end_schedule(self) -> None:
        """When all else is done and the new leader has fired, pause the schedule, so that its fires can be counted."""
        show = self.show

        def enough() -> bool:
            killed_at = show.takeover.killed_at
            fires_go_on = killed_at is not None and show.fires.after(killed_at) > 0
            return show.jobs_done and show.takeover.as_expected and fires_go_on

        await self._until(enough)
        await self.client.admin.cron_pause(SCHEDULE, by="the demo")
        (schedule,) = await self.client.admin.cron_list()
        if schedule.skipped or schedule.taken or schedule.refused:
            raise Failure(f"the schedule left fires out: {schedule.last_error or 'skipped'}")
        show.fires.total = schedule.enqueued


def _posted(url: str, body: bytes, signature: str) -> int:
    """Post as the outside world would; returns the status."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=POST_BOUND)
    try:
        headers = {REQUEST_HEADER: signature, "Content-Type": "application/json"}
        connection.request("POST", parts.path, body, headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise Failure(f"the {SERVER} did not answer: {error!r}") from error
    finally:
        connection.close()
