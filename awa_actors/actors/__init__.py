"""ACT: Trio tasks with typed mailboxes, supervised by nurseries."""
