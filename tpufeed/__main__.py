"""`python -m tpufeed ...` is `tpufeed ...`."""

from tpufeed.cli import main

if __name__ == "__main__":
    main()
