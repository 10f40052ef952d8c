"""`python -m atoll`."""

from atoll.cli import main

if __name__ == "__main__":  # a spawned worker imports this file too
    main()
