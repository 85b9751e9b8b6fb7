"""One machine per file: a frozen state, actions, invariants, and the guards whose removal must be noticed."""
