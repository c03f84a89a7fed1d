"""Object names that stay below their store's URL."""

from tpufeed.errors import OptionError


def check_name(name: str) -> str:
    """`name` itself where it is relative, without `.` or `..` parts and without NUL.

    Raises:
        OptionError: the name could lead out of its store.
    """
    if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise OptionError(f"{name!r} is no name within a store; names are relative, without empty, '.' or '..' parts")
    return name
