"""The plugin in a project of its own: what docs/how-to/test-your-jobs.md says, run by a pytest of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import REPOSITORY, clean_environment

PAGE = (REPOSITORY / "docs/how-to/test-your-jobs.md").read_text()
CONFTEST, SIGN_UP, DYING = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHOP = """
import attrs
import awa_actors as awa

@attrs.frozen
class Signup:
    user_id: int

@attrs.frozen
class SendWelcome:
    user_id: int

@attrs.frozen
class Charge:
    invoice: int

registry = awa.Registry()

@registry.worker(Signup)
async def sign_up(job: awa.Job[Signup]) -> None: ...

@registry.worker(Charge)
async def charge(job: awa.Job[Charge]) -> None: ...

@registry.on_completed_enqueue(Signup)
def welcome(event: awa.events.Completed[Signup]) -> SendWelcome:
    return SendWelcome(event.args.user_id)
"""
TESTS = f"""
import awa_actors as awa
from awa_actors.testing import abandon_one, expire_instance_and_tick
from shop import Charge, SendWelcome, Signup
{SIGN_UP}
{DYING}
async def test_every_test_has_a_database_of_its_own(awa_client: awa.Client) -> None:
    assert await awa_client.admin.jobs() == []
"""
SETTINGS = "[pytest]\ntrio_mode = true\nfilterwarnings = error\npythonpath = .\n"


def run(project: Path, settings: str = SETTINGS, **environment: str) -> subprocess.CompletedProcess[str]:
    files = {"shop.py": SHOP, "conftest.py": CONFTEST, "test_shop.py": TESTS, "pytest.ini": settings}
    for name, text in files.items():
        (project / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(
        command, cwd=project, env=clean_environment(**environment), capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_project_needs_nothing_but_the_plugin(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("place", ["ini", "environment"])
def test_the_database_is_the_one_that_a_setting_names(tmp_path: Path, database: str, place: str) -> None:
    if place == "ini":
        done = run(tmp_path, f"{SETTINGS}awa_database_url = {database}\n")
    else:
        done = run(tmp_path, AWA_TESTING_DATABASE_URL=database)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_a_server_that_is_not_there_is_named_in_the_error(tmp_path: Path) -> None:
    done = run(tmp_path, AWA_TESTING_DATABASE_URL="postgresql://nobody@127.0.0.1:9/none")
    assert "cannot reach the database" in done.stdout
