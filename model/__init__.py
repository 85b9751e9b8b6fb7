"""The executable specification: machines, their broken twins, and what drives the real store by the same rules."""
