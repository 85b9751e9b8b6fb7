"""The rules of the queue machine, run against the real store by several sessions at once."""
