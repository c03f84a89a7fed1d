"""The georeference of a GeoTIFF as text: where its pixels are on the ground."""

import io
import json
from typing import Any

import numpy as np

from tpufeed.errors import ImageError
from tpufeed.images.header import sniff
from tpufeed.images.kept import NODATA_TAG

_CITATIONS = ("PCSCitationGeoKey", "GTCitationGeoKey", "GeogCitationGeoKey")
_USER_DEFINED, _POINTS = 32767, 2


def read_georeference(data: bytes) -> str:
    """Return the reference system, transform and nodata value of a GeoTIFF as JSON, as far as it has them.

    `crs` is an EPSG code, or what the file calls its system. `transform` has a, b, c, d, e, f of x = a * column +
    b * row + c and y = d * column + e * row + f, from the outer corner of the first pixel, as in rasterio.

    Raises:
        ImageError: the tags are damaged.
    """
    if sniff(data) != "tiff":
        return "{}"
    import tifffile  # it has read the pixels

    found: dict[str, Any] = {}
    try:
        page: Any = tifffile.TiffFile(io.BytesIO(data)).pages[0]
        tags = page.geotiff_tags or {}
        code = tags.get("ProjectedCSTypeGeoKey", tags.get("GeographicTypeGeoKey", _USER_DEFINED))
        if tags:
            called = next((str(tags[name]) for name in _CITATIONS if name in tags), "")
            found["crs"] = called if code == _USER_DEFINED else f"EPSG:{int(code)}"
        matrix = None
        if "ModelTransformation" in tags:
            matrix = np.reshape(tags["ModelTransformation"], (4, 4))[:2, [0, 1, 3]]
        elif {"ModelPixelScale", "ModelTiepoint"} <= tags.keys():
            (across, down), (column, row, _, x, y) = tags["ModelPixelScale"][:2], tags["ModelTiepoint"][:5]
            matrix = np.array([[across, 0, x - across * column], [0, -down, y + down * row]])
        if matrix is not None:
            if tags.get("GTRasterTypeGeoKey") == _POINTS:  # the middle of a pixel
                matrix[:, 2] -= matrix[:, :2].sum(1) / 2
            found["transform"] = matrix.ravel().tolist()
        if NODATA_TAG in page.tags:
            found["nodata"] = str(page.tags[NODATA_TAG].value).strip(" \0")
    except Exception as error:  # it raises all kinds of errors
        raise ImageError("unreadable", f"the georeference of the TIFF does not parse: {error}") from error
    return json.dumps(found)
