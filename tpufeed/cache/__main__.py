"""`python -m tpufeed.cache warmup ...` is `tpufeed cache warmup ...`."""

import sys

from tpufeed.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["cache"]
    main()
