"""The grants of the documented roles: as a script, applied, and held against what a role has."""

from __future__ import annotations

from collections.abc import Sequence

from awa_actors.core.doctor_server import Privileges
from awa_actors.errors import StoreError, UsageError
from awa_actors.store.grant_table import PRIVILEGES, ROLES, decisions, only_for
from awa_actors.store.pool import Session
from awa_actors.store.queue_schema import USUAL

OWNER = "owner"
ENQUEUE = "awa.insert_jobs"
GRANTED = (*ROLES, OWNER)
_KEYWORDS = {"table": "TABLE", "sequence": "SEQUENCE", "routine": "ROUTINE"}
# Nothing here waits behind a long transaction: a grant that cannot be written now is told, and applied again.
_LOCK_WAIT = "SET LOCAL lock_timeout = '5s'"
_FROM_PUBLIC = "REVOKE ALL ON ALL {} IN SCHEMA {} FROM PUBLIC"
_MAY_MIGRATE = """
DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {}', current_database()); END $$
"""
# Names are looked up in the catalogs: asking by name raises where a role may not use the schema.
HAS = """
SELECT d.kind, d.name, d.letter,
       CASE d.kind WHEN 'routine' THEN has_function_privilege(current_user, p.oid, 'EXECUTE')
                   WHEN 'sequence' THEN has_sequence_privilege(current_user, c.oid, d.privilege)
                   ELSE CASE d.letter WHEN 'l' THEN has_any_column_privilege(current_user, c.oid, 'UPDATE')
                   ELSE has_table_privilege(current_user, c.oid, d.privilege) END END
       AND has_schema_privilege(current_user, n.oid, 'USAGE') AS held
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS d (kind, name, letter, privilege)
JOIN pg_catalog.pg_namespace n ON n.nspname = split_part(d.name, '.', 1)
LEFT JOIN pg_catalog.pg_class c
  ON d.kind <> 'routine' AND c.relnamespace = n.oid AND c.relname = split_part(d.name, '.', 2)
LEFT JOIN pg_catalog.pg_proc p
  ON d.kind = 'routine' AND p.pronamespace = n.oid AND p.proname = split_part(d.name, '.', 2)
"""
QUEUE_SCHEMA = "SELECT awa.storage_schema()"
WHO = """
SELECT current_user::text AS role, r.rolsuper OR pg_has_role(current_user, n.nspowner, 'USAGE') AS owns,
       EXISTS (SELECT FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace s ON s.oid = p.pronamespace,
               aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) x
               WHERE s.nspname IN ('awa', split_part('awa_queue.', '.', 1)) AND x.grantee = 0) AS public_executes,
       EXISTS (SELECT FROM aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) x
               WHERE x.grantee <> 0 AND x.grantee <> n.nspowner) AS granted,
       (SELECT string_agg(s.nspname || '.' || c.relname, ', ' ORDER BY c.oid)
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
        WHERE s.nspname IN ('awa', split_part('awa_queue.', '.', 1)) AND c.relrowsecurity AND NOT r.rolbypassrls
          AND NOT pg_has_role(current_user, c.relowner, 'USAGE') AND NOT EXISTS (
              SELECT FROM pg_catalog.pg_policy y
              WHERE y.polrelid = c.oid AND y.polname = 'awa_by_grants')) AS hidden
FROM pg_catalog.pg_namespace n, pg_catalog.pg_roles r WHERE n.nspname = 'awa' AND r.rolname = current_user
"""


def script(roles: Sequence[tuple[str, str]], queue_schema: str = USUAL) -> list[str]:
    """Give the statements that grant documented roles to roles of the database. Adds, and takes only from PUBLIC.

    Args:
        roles: documented role and name in the database; one name may have several.
        queue_schema: where the queue plane is.

    Raises:
        UsageError: a documented role that there is not.
    """
    schemas = f"awa, {queue_schema}"
    statements = [_FROM_PUBLIC.format(what, schemas) for what in ("TABLES", "SEQUENCES", "ROUTINES")]
    if all(role == OWNER for role, _ in roles):
        # There is no schema yet.
        statements = []
    for role, name in roles:
        if role not in GRANTED:
            raise UsageError(f"there is no role {role!r} to grant: {', '.join(GRANTED)}")
        statements.extend(_granting(role, _quoted(name), schemas))
    return statements


def _granting(role: str, name: str, schemas: str) -> list[str]:
    if role == OWNER:
        # Within a quoted body that format() reads, a percent sign and a quote are doubled.
        return [_MAY_MIGRATE.format(name.replace("%", "%%").replace("'", "''")).strip()]
    grouped: dict[tuple[str, str], list[str]] = {}
    for decision in decisions():
        if role in decision.acl:
            grouped.setdefault((decision.kind, decision.acl[role]), []).append(decision.name)
    return [f"GRANT USAGE ON SCHEMA {schemas} TO {name}"] + [
        f"GRANT {', '.join(PRIVILEGES[letter] for letter in letters)} ON {_KEYWORDS[kind]} {', '.join(names)} TO {name}"
        for (kind, letters), names in grouped.items()
    ]


def _quoted(name: str) -> str:
    if not 0 < len(name.encode()) <= 63 or "\0" in name or "$$" in name:
        raise UsageError(f"{name!r} cannot be the name of a role")
    return '"' + name.replace('"', '""') + '"'


def export_grants(roles: Sequence[tuple[str, str]]) -> str:
    """The same as one script for psql, to be run by the owner of the schema."""
    names = dict.fromkeys(name for _, name in roles)
    head = [
        "-- awa_actors grants; run as the owner of the schema: psql -v ON_ERROR_STOP=1 -f FILE",
        "-- The roles exist already, made by",
        *(f"--   CREATE ROLE {_quoted(name)} NOLOGIN;" for name in names),
    ]
    statements = ["BEGIN", _LOCK_WAIT, *script(roles), "COMMIT"]
    return "\n".join([*head, *(f"{statement};" for statement in statements)]) + "\n"


async def apply(session: Session, roles: Sequence[tuple[str, str]]) -> None:
    """Grant, all or nothing; safe to repeat, and to be repeated after every migration."""
    # A session puts another name for the queue plane's schema into statements, where it is followed by a point.
    schema = USUAL if all(role == OWNER for role, _ in roles) else await session.fetchval(QUEUE_SCHEMA)
    statements = script(roles, schema)
    async with session.transaction():
        await session.execute(_LOCK_WAIT)
        for statement in statements:
            await session.execute(statement)


def _signs(role: str) -> list[str]:
    """Routines that show what a role was meant for."""
    return [ENQUEUE] if role == "producer" else only_for(role)


async def held(session: Session) -> Privileges:
    """Hold the grants of the session's role against the documented ones. Needs the schema of this release."""
    who = await session.fetchrow(WHO)
    if who is None:
        raise StoreError("the database has no awa schema")
    wanted = [(d.kind, d.name, letter) for d in decisions() for letter in sorted(set("".join(d.acl.values())))]
    columns = [list(column) for column in zip(*wanted, strict=True)]
    schema = session.schema.named(f"{USUAL}.")
    columns[1] = [name.replace(f"{USUAL}.", schema) for name in columns[1]]
    rows = await session.fetch(HAS, *columns, [PRIVILEGES[letter] for _, _, letter in wanted])
    has = {(row["kind"], row["name"].replace(schema, f"{USUAL}."), row["letter"]) for row in rows if row["held"]}
    complete, lacking = [], {}
    for role in ROLES:
        missing = [
            f"{PRIVILEGES[letter]} on {decision.name}"
            for decision in decisions()
            for letter in decision.acl.get(role, "")
            if (decision.kind, decision.name, letter) not in has
        ]
        if not missing:
            complete.append(role)
        elif any(("routine", name, "X") in has for name in _signs(role)):
            lacking[role] = missing
    if complete or len(lacking) > 1:
        # Whoever does more than a producer enqueues, too.
        lacking.pop("producer", None)
    public = who["public_executes"] and who["granted"]
    return Privileges(who["role"], who["owns"], tuple(complete), lacking, public, who["hidden"])
