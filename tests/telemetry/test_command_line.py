"""A process of the command line that is told to measure."""

from pathlib import Path

import pytest
from command_line import awa, running

APPS = Path(__file__).parent / "apps"


@pytest.mark.slow
def test_a_process_with_otel_exports_through_the_global_providers(database: str) -> None:
    asked = ("--role", "maintenance", "--app", "exporting_app:registry", "--otel")
    with running(*asked, url=database, cwd=APPS) as process:
        process.says('"name": "awa.maintenance.leader"')
        process.says('"name": "awa.storage.state"')


def test_measuring_goes_with_a_process(database: str) -> None:
    assert awa("health", "--otel", url=database).status == 2
