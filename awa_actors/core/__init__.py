"""Decide: pure functions and tables. No Trio, no SQL, no clock and no randomness of its own."""
