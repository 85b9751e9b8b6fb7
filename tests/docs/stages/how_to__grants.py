"""psql finds the page's database; the roles go when the page has been looked at, since they outlive a database."""

from typing import Any

import psycopg
import psycopg.conninfo

ENVIRONMENT: dict[str, str] = {}
NAMES = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD", "dbname": "PGDATABASE"}


async def begin(client: Any) -> None:
    known = psycopg.conninfo.conninfo_to_dict(client.pool.url)
    ENVIRONMENT.update({name: str(known[key]) for key, name in NAMES.items() if known.get(key)})
    with psycopg.connect(client.pool.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE app_reader")


async def end(client: Any) -> None:
    with psycopg.connect(client.pool.url, autocommit=True) as connection:
        allowed = connection.execute("SELECT has_schema_privilege('app_web', 'awa', 'USAGE')").fetchone()
        connection.execute("DROP OWNED BY app_web, app_worker, app_reader")
        connection.execute("DROP ROLE app_web, app_worker, app_reader")
    assert allowed == (True,)
