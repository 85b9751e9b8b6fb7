"""Roles of a server that got the documented grants in one database, with row security on everywhere."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qsl, urlencode, urlsplit

import attrs
import psycopg
import trio
from postgres_servers import Server
from psycopg import sql

import awa_actors as awa
from awa_actors.store.grant_table import ROLES

_numbers = itertools.count(1)
ROW_SECURITY = """
SELECT format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', c.oid::regclass)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname IN ('awa', 'awa_queue') AND c.relkind IN ('r', 'p')
"""


@attrs.frozen
class Granted:
    """A database and who may do what in it.

    Attributes:
        url: of the database, as its owner.
        names: of the roles, by documented role; `nobody` got nothing.
    """

    url: str
    names: dict[str, str]

    def url_of(self, role: str) -> str:
        """The URL under which a role comes."""
        parts = urlsplit(self.url)
        query = dict(parse_qsl(parts.query)) | {"user": self.names[role]}
        return f"{parts.scheme}://{parts.netloc}{parts.path}?{urlencode(query)}"

    async def grant(self) -> None:
        """Grant what is documented."""
        async with awa.open_client(self.url) as client:
            await client.admin.grant([(role, name) for role, name in self.names.items() if role in ROLES])


@contextmanager
def granted_roles(url: str, server: Server) -> Iterator[Granted]:
    """Make the roles, grant, turn row security on; the roles are gone afterwards."""
    suffix = f"{os.getpid()}_{next(_numbers)}"
    granted = Granted(url, {role: f"awa {role} {suffix}" for role in (*ROLES, "nobody")})
    identifiers = sql.SQL(", ").join(sql.Identifier(name) for name in granted.names.values())
    for name in granted.names.values():
        server.ask(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
    try:
        trio.run(granted.grant)
        with psycopg.connect(url, autocommit=True) as connection:
            for (statement,) in connection.execute(ROW_SECURITY).fetchall():
                connection.execute(statement)
        yield granted
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(identifiers))
        server.ask(sql.SQL("DROP ROLE {}").format(identifiers))
