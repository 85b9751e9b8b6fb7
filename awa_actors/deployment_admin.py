"""What operators ask and decide about a deployment as a whole: a part of :class:`awa_actors.admin.Admin`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from awa_actors.bulk_admin import BulkAdmin

if TYPE_CHECKING:
    from awa_actors.core.doctor import Finding


@attrs.frozen(eq=False)
class DeploymentAdmin(BulkAdmin):
    """Grants, and the doctor."""

    async def grant(self, roles: Sequence[tuple[str, str]]) -> None:
        """Grant documented roles to roles of the database, all or nothing; to be repeated after every migration.

        Args:
            roles: (documented role, name in the database); a name may get several.

        Raises:
            UsageError: there is no such documented role.
            StoreError: the name does not exist, or this session is not the owner of the schema.
        """
        from awa_actors.store import grants

        async with self._pool.acquire() as session:
            await grants.apply(session, roles)

    async def doctor(self, *, patience: float = 60.0, pooler: bool = False) -> list[Finding]:
        """Check everything that is known to go wrong; each check answers by itself, whatever becomes of the others.

        Args:
            patience: seconds that a job may wait, or a transaction stay open, before something is said about it.
            pooler: processes here are meant to run behind a transaction pooler.

        Returns:
            One finding per check, in a fixed order.
        """
        from awa_actors.doctor import examine

        return await examine(self._pool, self._registry, patience=patience, pooler=pooler)
