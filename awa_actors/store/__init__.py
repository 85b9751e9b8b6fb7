"""REMEMBER: the only SQL; one verb per file. Importing this package imports nothing heavy."""
