"""``python -m fuzzshard``."""

from fuzzshard.cli import main

if __name__ == "__main__":
    main()
