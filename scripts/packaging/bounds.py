"""Lower bounds of requirements, as exact ones."""

import re
from collections.abc import Iterable

_BOUND = re.compile(r"(?P<name>[\w.-]+(?:\[[\w,]+\])?)>=(?P<version>[\w.]+)(?:,<[\w.]+)?(?P<marker>\s*;.*)?")


def lowest(requirements: Iterable[str]) -> list[str]:
    """`name>=1.2` becomes `name==1.2`, with or without an upper bound; what is exact already stays.

    Raises:
        ValueError: a requirement without a lower bound.
    """
    exact = []
    for requirement in requirements:
        found = _BOUND.fullmatch(requirement)
        if found is None and "==" not in requirement:
            raise ValueError(f"pyproject.toml: {requirement!r} has no lower bound; give one that the matrix can test")
        exact.append(requirement if found is None else f"{found['name']}=={found['version']}{found['marker'] or ''}")
    return exact
