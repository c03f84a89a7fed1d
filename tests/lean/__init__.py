"""Import frameworks without what they need not have: in this process, and where FOLDER is on PYTHONPATH."""

from pathlib import Path

from tests.lean import sitecustomize  # noqa: F401

FOLDER = str(Path(__file__).parent)
