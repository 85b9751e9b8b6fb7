"""The command line: `awa-actors` and `python -m awa_actors`."""


def main() -> None:
    """Run what the command line asks for and end the process with its exit status."""
    from awa_actors.cli.tree import root

    root.main(prog_name="awa-actors")
