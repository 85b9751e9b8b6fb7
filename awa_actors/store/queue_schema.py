"""Where the queue plane is. Statements name its usual schema, and are rewritten where it was given another one."""

from __future__ import annotations

import functools
import re
from typing import Any, Protocol

import attrs

from awa_actors.errors import StoreError, TransientStoreError

USUAL = "awa_queue"
_NAMED = re.compile(rf"\b{USUAL}\.")
_CAN_TELL = "SELECT pg_catalog.to_regprocedure('awa.storage_schema()') IS NOT NULL"
_TELL = "SELECT awa.storage_schema()"


class Asks(Protocol):
    """What a session is to this module."""

    async def fetchval(self, sql: str, *args: Any) -> Any: ...  # noqa: D102


@attrs.define
class QueueSchema:
    """One name, shared by the sessions of a pool; None as long as it is not known.

    Source: ADR 0013.
    """

    _name: str | None = None

    @property
    def known(self) -> bool:
        """Whether there is no need to ask."""
        return self._name is not None

    async def learn(self, session: Asks) -> None:
        """Ask. A database without our schema, or one that tells us nothing, is asked again next time."""
        try:
            if await session.fetchval(_CAN_TELL):
                self._name = await session.fetchval(_TELL)
        except TransientStoreError:
            raise
        except StoreError:
            self._name = None

    def forget(self) -> None:
        """Something was not where it should be: ask again."""
        self._name = None

    def named(self, sql: str) -> str:
        """Give a statement with the right name in it; as a rule that is the statement itself."""
        return sql if self._name in (None, USUAL) else _renamed(sql, str(self._name))


@functools.lru_cache(maxsize=512)
def _renamed(sql: str, name: str) -> str:
    return _NAMED.sub(f"{name}.", sql)
