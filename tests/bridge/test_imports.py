"""Importing a bridge brings its own driver into the process, and nothing else of weight."""

import subprocess
import sys

import pytest

HEAVY = {"trio", "trio_asyncio", "asyncpg", "psycopg", "psycopg2", "sqlalchemy", "django", "greenlet", "awa"}


def imported(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split()) & HEAVY


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "sqlalchemy", "django"])
def test_a_bridge_imports_its_own_driver_and_no_other(driver: str) -> None:
    assert imported(f"import awa_actors.bridge.{driver}") == {driver}


def test_enqueueing_on_a_synchronous_session_needs_no_greenlet() -> None:
    script = """
import sys
sys.modules["greenlet"] = None
import sqlalchemy, awa_actors.bridge.sqlalchemy as bridge, awa_actors as awa
engine = sqlalchemy.create_engine("sqlite://")
try:
    with engine.connect() as connection:
        bridge.insert(connection, None)
except awa.UsageError as error:
    assert "sqlite" in str(error), error
else:
    raise AssertionError
del sys.modules["greenlet"]
"""
    assert imported(script) == {"sqlalchemy"}
