"""Descriptors: published by the processes that declare, read with what is stale or told in two ways."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

import attrs
import orjson

from awa_actors.core.descriptors import Descriptor
from awa_actors.store.pool import Session

CHUNK = 1_000
"""Descriptors in one statement."""

# Processes that say the same share a row, and the first of them to come round keeps it fresh for all.
PUBLISH = """
INSERT INTO awa.descriptors AS d (subject, name, application, digest, descriptor, publish_every)
SELECT x.subject, x.name, $2, x.digest, x.descriptor, make_interval(secs => $3)
FROM jsonb_to_recordset($1::text::jsonb) AS x (subject text, name text, digest text, descriptor jsonb)
ORDER BY x.subject, x.name
ON CONFLICT (subject, name, application, digest) DO UPDATE
SET last_seen_at = excluded.last_seen_at, publish_every = excluded.publish_every
WHERE d.last_seen_at < excluded.last_seen_at - excluded.publish_every / 2
"""
LIST = """
WITH told AS (
    SELECT d.*, d.last_seen_at + greatest(3 * d.publish_every, interval '30 seconds') >= clock_timestamp() AS live
    FROM awa.descriptors d
), digests AS (
    SELECT t.subject, t.name, count(DISTINCT t.digest) AS digests, array_agg(DISTINCT t.application) AS applications
    FROM told t WHERE t.live GROUP BY t.subject, t.name
)
SELECT DISTINCT ON (t.subject, t.name) t.subject, t.name, t.application, t.descriptor::text AS descriptor, t.digest,
       t.first_seen_at, t.last_seen_at, NOT t.live AS stale, coalesce(g.digests > 1, false) AS drift,
       coalesce(g.applications, ARRAY[t.application]) AS applications
FROM told t LEFT JOIN digests g ON g.subject = t.subject AND g.name = t.name
ORDER BY t.subject DESC, t.name, t.live DESC, CASE WHEN t.live THEN t.first_seen_at ELSE t.last_seen_at END DESC
"""
FORGET = "DELETE FROM awa.descriptors d WHERE d.last_seen_at < clock_timestamp() - make_interval(secs => $1)"


@attrs.frozen
class Described:
    """What is said about a queue or a kind.

    Args:
        subject: `queue` or `kind`.
        name: of it.
        application: whose word this is: the newest that a live process says, else the last that one said.
        descriptor: what is said, see :class:`~awa_actors.core.descriptors.Descriptor`.
        digest: of it.
        first_seen_at: when this was first said.
        last_seen_at: when it was last said.
        stale: no live process says it any more.
        drift: live processes say different things.
        applications: all that live processes speak for.
    """

    subject: str
    name: str
    application: str
    descriptor: dict[str, Any]
    digest: str
    first_seen_at: dt.datetime
    last_seen_at: dt.datetime
    stale: bool
    drift: bool
    applications: tuple[str, ...]


async def publish(
    session: Session, application: str, queues: Iterable[Descriptor], kinds: Iterable[Descriptor], every: float
) -> None:
    """Say what this process declares.

    Args:
        session: outside a transaction.
        application: who says it.
        queues: descriptors of queues.
        kinds: descriptors of kinds.
        every: seconds between publications; after three without one it is stale.
    """
    told = [_row("queue", one) for one in queues] + [_row("kind", one) for one in kinds]
    for start in range(0, len(told), CHUNK):
        await session.execute(PUBLISH, orjson.dumps(told[start : start + CHUNK]).decode(), application, every)


def _row(subject: str, descriptor: Descriptor) -> dict[str, Any]:
    return {
        "subject": subject,
        "name": descriptor.name,
        "digest": descriptor.digest,
        "descriptor": descriptor.value(),
    }


async def described(session: Session) -> list[Described]:
    """Everything that is described, queues first, each once."""
    found = []
    for row in await session.fetch(LIST):
        values = dict(row)
        values["descriptor"] = orjson.loads(values["descriptor"])
        values["applications"] = tuple(values["applications"])
        found.append(Described(**values))
    return found


async def forget(session: Session, after: float) -> None:
    """Delete descriptors that nobody has published for `after` seconds."""
    await session.execute(FORGET, after)
