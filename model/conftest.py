"""Databases for the refinement, and what the development ring leaves out: as for the tests, in this folder too."""

from database_fixtures import database, migrated_template, server, session_server
from inner_rings import pytest_ignore_collect

__all__ = ["database", "migrated_template", "pytest_ignore_collect", "server", "session_server"]
