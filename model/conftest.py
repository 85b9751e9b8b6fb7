"""Databases for the refinement: the fixtures of the tests, in this folder too."""

from database_fixtures import database, migrated_template, server, session_server

__all__ = ["database", "migrated_template", "server", "session_server"]
