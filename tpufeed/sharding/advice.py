"""What the columns of a table may not have been meant to become, as sentences."""

from collections.abc import Iterator, Sequence

from tpufeed.dataset.schema import LABEL, FeatureSpec, further_columns
from tpufeed.sharding.tables import SUFFIXES

_SHOWN = 8


def iter_label_warnings(source: str, label: str, features: Sequence[FeatureSpec]) -> Iterator[str]:
    """About a dataset with these features that a table became without labels, though nobody asked for none.

    Args:
        source: as a URL.
        label: the option.
        features: of the dataset.
    """
    others = list(further_columns(features))
    labelled = any(spec.name == LABEL for spec in features)
    if label != "auto" or labelled or not others or not source.lower().endswith(SUFFIXES):
        return
    more = f" and {len(others) - _SHOWN:,} more" if len(others) > _SHOWN else ""
    yield (
        f"no labels: none of the columns {', '.join(others[:_SHOWN])}{more} is called label, class ...; give --label "
        "COLUMN, or --label none"
    )
