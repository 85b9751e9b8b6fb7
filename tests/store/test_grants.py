"""Every object has a decision, every decision is enough for what its role calls, and nobody gets more."""

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import trio
from database_roles import Granted, granted_roles
from postgres_servers import Server

from awa_actors.store.grant_table import PRIVILEGES, ROLES, Decision, decisions

OBJECTS = """
SELECT CASE c.relkind WHEN 'S' THEN 'sequence' ELSE 'table' END, n.nspname || '.' || c.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname IN ('awa', 'awa_queue') AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'i' AND c.relkind = 'S')
UNION SELECT 'routine', n.nspname || '.' || p.proname
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname IN ('awa', 'awa_queue')
"""
WITHOUT_POLICY = """
SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname IN ('awa', 'awa_queue') AND c.relkind IN ('r', 'p')
  AND NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polname = 'awa_by_grants')
"""
BODIES = """
SELECT n.nspname || '.' || p.proname, p.prosrc FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname IN ('awa', 'awa_queue')
"""
VIEWS = """
SELECT n.nspname || '.' || c.relname, pg_get_viewdef(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname IN ('awa', 'awa_queue') AND c.relkind = 'v'
"""
ACCESS = re.compile(r"\b(INSERT INTO|DELETE FROM|UPDATE|FROM|JOIN|USING)\s+(awa(?:_queue)?\.\w+)")
LETTER = {"INSERT INTO": "a", "DELETE FROM": "d", "UPDATE": "w", "FROM": "r", "JOIN": "r", "USING": "r"}
HELD = """
SELECT CASE d.kind WHEN 'routine' THEN has_function_privilege(%s, p.oid, 'EXECUTE')
                   WHEN 'sequence' THEN has_sequence_privilege(%s, c.oid, d.privilege)
                   ELSE has_table_privilege(%s, c.oid, d.privilege) END AS held, d.kind, d.name, d.privilege
FROM unnest(%s::text[], %s::text[], %s::text[]) AS d (kind, name, privilege)
LEFT JOIN pg_class c ON d.kind <> 'routine' AND c.oid = to_regclass(d.name)
LEFT JOIN pg_proc p ON d.kind = 'routine' AND p.oid = to_regproc(d.name)
"""
LETTERS = {"table": "rawdD", "sequence": "rwU", "routine": "X"}


def rows(url: str, statement: Any, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement, values).fetchall()


@pytest.fixture
def granted(database: str, server: Server) -> Iterator[Granted]:
    with granted_roles(database, server) as granted:
        yield granted


def test_every_object_has_a_decision_and_every_table_a_policy(database: str) -> None:
    """What fails here is named: write the object into grant_table.py, and say who may use it."""
    there = {(kind, name) for kind, name in rows(database, OBJECTS)}
    decided = {(decision.kind, decision.name) for decision in decisions()}
    undecided = [f"{kind} {name} has no grant decision" for kind, name in sorted(there - decided)]
    undecided += [f"{kind} {name} is decided about, but does not exist" for kind, name in sorted(decided - there)]
    unprotected = [
        f"table {name} has no policy: end its migration with SELECT awa.admit_granted_roles()"
        for (name,) in rows(database, WITHOUT_POLICY)
    ]
    assert not undecided + unprotected, "\n".join(undecided + unprotected)


def _calls(body: str, known: set[str]) -> set[str]:
    return {name for name in re.findall(r"(awa(?:_queue)?\.\w+)\s*\(", body) if name in known}


def test_a_role_may_use_whatever_its_functions_use(database: str) -> None:
    """Functions run with their caller's rights, so a grant that one of them lacks would be found at 3 a.m."""
    bodies = {name: re.sub(r"--[^\n]*", "", body) for name, body in rows(database, BODIES)}
    acl = {(decision.kind, decision.name): decision.acl for decision in decisions()}
    lacking = []
    for (kind, caller), who in acl.items():
        if kind != "routine":
            continue
        used = {("routine", name, "X") for name in _calls(bodies.get(caller, ""), set(bodies))}
        for verb, name in ACCESS.findall(bodies.get(caller, "")):
            if name not in bodies:
                used.add(("sequence" if name.endswith("_seq") else "table", name, LETTER[verb]))
        lacking += [
            f"{role} calls {caller}, which needs {PRIVILEGES[letter]} on {name}"
            for role in who
            for used_kind, name, letter in sorted(used)
            if letter not in acl.get((used_kind, name), {}).get(role, "")
        ]
    for name, definition in rows(database, VIEWS):
        lacking += [
            f"{role} reads {name}, which needs EXECUTE on {called}"
            for called in _calls(definition, set(bodies))
            for role in acl["table", name]
            if role not in acl["routine", called]
        ]
    assert not lacking, "\n".join(lacking)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_what_is_decided_and_nothing_else(role: str, granted: Granted) -> None:
    every = [(d, letter) for d in decisions() for letter in LETTERS[d.kind]]
    name = granted.names[role]
    columns = [d.kind for d, _ in every], [d.name for d, _ in every], [PRIVILEGES[letter] for _, letter in every]
    found = {(kind, object_, privilege): held for held, kind, object_, privilege in rows(
        granted.url, HELD, name, name, name, *columns)}  # fmt: skip
    wrong = [
        f"{role} {'has' if held else 'lacks'} {privilege} on {object_}"
        for (decision, letter) in every
        for kind, object_, privilege in [(decision.kind, decision.name, PRIVILEGES[letter])]
        if (held := found[kind, object_, privilege]) != _decided(decision, role, letter)
    ]
    assert not wrong, "\n".join(wrong)


def _decided(decision: Decision, role: str, letter: str) -> bool:
    return letter in decision.acl.get(role, "")


def test_granting_twice_changes_nothing(granted: Granted) -> None:
    before = rows(granted.url, "SELECT oid, relacl FROM pg_class WHERE relacl IS NOT NULL ORDER BY 1")
    trio.run(granted.grant)
    assert rows(granted.url, "SELECT oid, relacl FROM pg_class WHERE relacl IS NOT NULL ORDER BY 1") == before
