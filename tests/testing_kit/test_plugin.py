"""The plugin in a project of its own: what a user writes, run by a pytest of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import clean_environment

CONFTEST = """
import attrs
import pytest
import awa_actors as awa

pytest_plugins = ["awa_actors.testing.plugin"]

@attrs.frozen
class Signup:
    user_id: int

@attrs.frozen
class SendWelcome:
    user_id: int

registry = awa.Registry()

@registry.worker(Signup)
async def sign_up(job: awa.Job[Signup]) -> None: ...

@registry.on_completed_enqueue(Signup)
def welcome(event: awa.events.Completed[Signup]) -> SendWelcome:
    return SendWelcome(event.args.user_id)

@pytest.fixture
def awa_registry() -> awa.Registry:
    return registry
"""
TESTS = """
import awa_actors as awa
from awa_actors.testing import Outcome, assert_enqueued, work_one
from conftest import SendWelcome, Signup

async def test_signup_sends_a_welcome(awa_client: awa.Client) -> None:
    await awa_client.insert(Signup(user_id=7))
    worked = await work_one(awa_client, Signup)
    assert worked.outcome is Outcome.COMPLETED
    await assert_enqueued(awa_client, SendWelcome, user_id=7)

async def test_every_test_has_a_database_of_its_own(awa_client: awa.Client) -> None:
    assert await awa_client.admin.jobs() == []
"""
SETTINGS = "[pytest]\ntrio_mode = true\nfilterwarnings = error\n"


def run(project: Path, settings: str = SETTINGS, **environment: str) -> subprocess.CompletedProcess[str]:
    for name, text in {"conftest.py": CONFTEST, "test_shop.py": TESTS, "pytest.ini": settings}.items():
        (project / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(
        command, cwd=project, env=clean_environment(**environment), capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_project_needs_nothing_but_the_plugin(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("place", ["ini", "environment"])
def test_the_database_is_the_one_that_a_setting_names(tmp_path: Path, database: str, place: str) -> None:
    if place == "ini":
        done = run(tmp_path, f"{SETTINGS}awa_database_url = {database}\n")
    else:
        done = run(tmp_path, AWA_TESTING_DATABASE_URL=database)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_a_server_that_is_not_there_is_named_in_the_error(tmp_path: Path) -> None:
    done = run(tmp_path, AWA_TESTING_DATABASE_URL="postgresql://nobody@127.0.0.1:9/none")
    assert "cannot reach the database" in done.stdout
