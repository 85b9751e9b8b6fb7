"""A connection with one owner that is opened again when it breaks."""

from __future__ import annotations

from types import TracebackType

import attrs

from awa_actors.store.pool import Pool, Session


@attrs.define(eq=False)
class OwnConnection:
    """One actor's reserved connection. Leaving the context closes it."""

    pool: Pool
    name: str
    _session: Session | None = None

    async def session(self) -> Session:
        """The connection, opened or reopened as needed.

        Raises:
            TransientStoreError: the database cannot be reached now.
        """
        current = self._session
        if current is not None and not current.broken and not current.raw.is_closed():
            return current
        if current is not None:
            current.cut()
            self._session = None
        self._session = await self.pool.connect(self.name)
        return self._session

    async def __aenter__(self) -> OwnConnection:
        """Nothing is opened before it is needed."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close, bounded."""
        await self.close()

    async def close(self) -> None:
        """Close, bounded; may be called again."""
        if self._session is not None:
            await self._session.close()
            self._session = None
