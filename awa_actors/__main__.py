"""python -m awa_actors: the command line, without a script on the path."""

from awa_actors.cli import main

if __name__ == "__main__":
    main()
