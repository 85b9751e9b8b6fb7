"""Forward-only migrations: numbered SQL files, one transaction each, under one advisory lock."""

from __future__ import annotations

import hashlib
import importlib.resources
import re

import attrs
import trio

from awa_actors.errors import SchemaNewerThanCode, SchemaNotMigrated, StoreError, TransientStoreError, UsageError
from awa_actors.store.pool import Session

LOCK_KEY = 0x4157_415F_4D49_4752  # "AWA_MIGR"
LOCK_WAIT = 30.0
"""Seconds to wait for another process that migrates; then its pid is named."""
DEADLOCK_RETRIES = 5
_FILE_NAME = re.compile(r"(\d{4})_(\w+)\.sql")

_LEDGER = """
CREATE TABLE IF NOT EXISTS awa.schema_migrations (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""
_HAS_SCHEMA = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = 'awa')"
_HAS_LEDGER = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = 'awa' AND c.relname = 'schema_migrations')
"""
_APPLIED = "SELECT version, checksum FROM awa.schema_migrations ORDER BY version"
_RECORD = "INSERT INTO awa.schema_migrations (version, name, checksum) VALUES ($1, $2, $3)"
_START_CANONICAL = "SELECT awa.start_canonical()"
_LOCK = f"SELECT pg_advisory_xact_lock({LOCK_KEY})"
_HOLDER = f"""
SELECT l.pid FROM pg_catalog.pg_locks l
WHERE l.locktype = 'advisory' AND l.granted AND l.classid = {LOCK_KEY >> 32} AND l.objid = {LOCK_KEY & 0xFFFF_FFFF}
LIMIT 1
"""


@attrs.frozen
class Migration:
    """One numbered step."""

    version: int
    name: str
    sql: str = attrs.field(repr=False)

    @property
    def checksum(self) -> str:
        """Digest of the text: a step that was changed after it was applied is refused."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> list[Migration]:
    """Every step this release knows, in order."""
    folder = importlib.resources.files("awa_actors.store") / "migrations"
    found = []
    for entry in folder.iterdir():
        if match := _FILE_NAME.fullmatch(entry.name):
            found.append(Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8")))
    return sorted(found, key=lambda migration: migration.version)


def expected_version() -> int:
    """The schema version this release works with."""
    return migrations()[-1].version


async def schema_version(session: Session) -> int:
    """The version of the database, 0 without a schema. Needs no right to create anything."""
    if not await session.fetchval(_HAS_LEDGER):
        return 0
    return await session.fetchval("SELECT coalesce(max(version), 0) FROM awa.schema_migrations") or 0


async def check(session: Session) -> None:
    """Refuse a database that this release cannot work with.

    Raises:
        SchemaNotMigrated: no schema, or an older one.
        SchemaNewerThanCode: a newer one.
    """
    found, expected = await schema_version(session), expected_version()
    if found < expected:
        what = (
            "the database has no awa schema"
            if found == 0
            else f"the schema is at version {found}, this release needs {expected}"
        )
        raise SchemaNotMigrated(f"{what}: run 'awa-actors migrate'")
    if found > expected:
        raise SchemaNewerThanCode(
            f"the schema is at version {found}, this release knows {expected}: upgrade awa-actors"
        )


async def migrate(session: Session, to: int | None = None) -> list[Migration]:
    """Apply what is missing, up to version `to`.

    Each step is one transaction under an advisory lock that ends with it, so a cancelled or killed run leaves whole
    steps and no lock; concurrent runs wait for each other and converge. A current schema is only read.

    Returns:
        The steps that this call applied.

    Raises:
        SchemaNewerThanCode: the database knows steps that this release does not.
        StoreError: a recorded step has another text.
        TransientStoreError: another process holds the lock for longer than LOCK_WAIT (its pid is named).
    """
    known = migrations()
    if to is not None and to not in {0, *(migration.version for migration in known)}:
        raise UsageError(f"there is no migration {to}; the newest is {known[-1].version}")
    applied: list[Migration] = []
    if not await _missing(session, known, to):
        return applied
    for attempt in range(DEADLOCK_RETRIES):
        try:
            while step := await _apply_next(session, known, to):
                applied.append(step)
            return applied
        except TransientStoreError as error:
            if attempt == DEADLOCK_RETRIES - 1 or "40P01" not in str(error):
                raise
            await trio.sleep(0.05 * 2**attempt)
    return applied


async def _missing(session: Session, known: list[Migration], to: int | None) -> list[Migration]:
    recorded = {}
    if await session.fetchval(_HAS_LEDGER):
        recorded = {row["version"]: row["checksum"] for row in await session.fetch(_APPLIED)}
    newest = known[-1].version
    if recorded and max(recorded) > newest:
        raise SchemaNewerThanCode(
            f"the schema is at version {max(recorded)}, this release knows {newest}: upgrade awa-actors"
        )
    for migration in known:
        if recorded.get(migration.version, migration.checksum) != migration.checksum:
            raise StoreError(
                f"migration {migration.version} ({migration.name}) was applied with another text: "
                "the database was migrated by a different build"
            )
    return [m for m in known if m.version not in recorded and (to is None or m.version <= to)]


async def _apply_next(session: Session, known: list[Migration], to: int | None) -> Migration | None:
    async with session.transaction():
        await _take_lock(session)
        if not await session.fetchval(_HAS_SCHEMA):
            await session.execute("CREATE SCHEMA awa")
        await session.execute(_LEDGER)
        missing = await _missing(session, known, to)
        if not missing:
            return None
        await session.execute("SET LOCAL statement_timeout = 0")
        await session.execute(missing[0].sql)
        await session.execute(_RECORD, missing[0].version, missing[0].name, missing[0].checksum)
        return missing[0]


async def _take_lock(session: Session) -> None:
    await session.execute("SET LOCAL client_min_messages = warning")
    await session.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}s'")
    await session.execute("SAVEPOINT waiting")
    try:
        await session.call(session.raw.execute(_LOCK), LOCK_WAIT + 5)
    except TransientStoreError:
        if session.broken:
            raise
        await session.execute("ROLLBACK TO waiting")
        pid = await session.fetchval(_HOLDER)
        raise TransientStoreError(
            f"another process (server pid {pid}) has been migrating for {LOCK_WAIT:.0f} s; wait for it or end it"
        ) from None


async def start_canonical(session: Session) -> None:
    """Begin on the canonical plane, in a database where nothing has happened yet; again changes nothing.

    Raises:
        UsageError: the database has been used, or its transition has begun.
    """
    if not await session.fetchval(_START_CANONICAL):
        raise UsageError("only a fresh database can begin on the canonical plane: this one has been used")


def export_sql(to: int | None = None) -> str:
    """The whole of it as one script for psql, for those who apply DDL themselves."""
    parts = ["-- awa_actors schema; run with: psql -v ON_ERROR_STOP=1 -f FILE"]
    for migration in migrations():
        if to is not None and migration.version > to:
            break
        first = "CREATE SCHEMA IF NOT EXISTS awa;\n" + _LEDGER.strip() + ";\n" if migration.version == 1 else ""
        parts.append(
            f"BEGIN;\n{_LOCK};\n{first}{migration.sql.strip()}\n"
            f"INSERT INTO awa.schema_migrations (version, name, checksum) "
            f"VALUES ({migration.version}, '{migration.name}', '{migration.checksum}');\nCOMMIT;"
        )
    return "\n\n".join(parts) + "\n"
