"""Enqueue on somebody else's connection, in their transaction: one module per driver, each imported by its name.

Importing one of them imports its driver and no other, and no Trio: a producer's process stays what it was.
"""
