"""What the signature of a loader says of the options that all loaders share."""

import inspect
from dataclasses import fields

from tpufeed.loaders.options import LoaderOptions


def differing_options(loader, count):
    """Options whose default is not that of `LoaderOptions`, or that are not keywords; or their number."""
    known = inspect.signature(LoaderOptions).parameters
    shown = inspect.signature(loader).parameters
    shared = [shown[field.name] for field in fields(LoaderOptions) if field.name in shown]
    assert all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in shown.values())
    different = [str(found) for found in shared if found.default != known[found.name].default]
    return different + [len(shared)] * (len(shared) != count)
