"""Walks and chains of device ops with fresh seeds: python -m tests.oracle [--seconds 1800] [--seed N]."""

import os
import tempfile
from collections import Counter
from pathlib import Path

os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"})

from tests.oracle.datasets import make_pool
from tests.oracle.device import by_torch, check_often
from tests.oracle.seeds import make_parser, try_seeds
from tests.oracle.walks import FEEDS, walk_often

WALKS = 50  # of one seed, before the next


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--feeds", default=",".join(FEEDS))
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="tpufeed-oracle-") as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/labels"
        pool = make_pool(Path(folder))

        def take(number: int) -> None:
            walk_often(pool, number, WALKS, options.feeds.split(","), counts)
            check_often(number, WALKS, by_torch)

        try_seeds("walks", options, counts, take, f" --feeds {options.feeds}")


if __name__ == "__main__":
    main()
