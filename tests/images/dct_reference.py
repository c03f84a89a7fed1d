"""Coefficients of images in plain numpy: what `tpufeed.images.coefficients` says, in code of its own."""

import numpy as np

_FREQUENCY, _PLACE = np.arange(8)[:, None], np.arange(8)
BASIS = np.sqrt(2 / 8) * np.cos(np.pi * (2 * _PLACE + 1) * _FREQUENCY / 16)
BASIS[0] /= np.sqrt(2)


def _blocks(plane):
    rows, columns = plane.shape[0] // 8, plane.shape[1] // 8
    return plane.reshape(rows, 8, columns, 8).transpose(0, 2, 1, 3)


def _plane(blocks):
    rows, columns = blocks.shape[:2]
    return blocks.transpose(0, 2, 1, 3).reshape(rows * 8, columns * 8)


def _components(rgb, sampling):
    """Split an image into Y, Cb and Cr, each around 0."""
    if sampling == "grey":
        return [rgb.reshape(rgb.shape[:2]).astype(float) - 128]
    r, g, b = np.moveaxis(rgb.astype(float), -1, 0)
    y = 0.299 * r + 0.587 * g + 0.114 * b
    chroma = [(b - y) / 1.772, (r - y) / 1.402]
    if sampling == "420":
        chroma = [(c[::2, ::2] + c[1::2, ::2] + c[::2, 1::2] + c[1::2, 1::2]) / 4 for c in chroma]
    return [y - 128, *chroma]


def quantize(rgb, coefficients):
    """Return each component's quantized values, (rows of blocks, columns of blocks, 8, 8)."""
    luma, chroma = (np.reshape(table, (8, 8)) for table in coefficients.tables)
    return [
        np.rint(BASIS @ _blocks(plane) @ BASIS.T / (chroma if i else luma)).astype(int)
        for i, plane in enumerate(_components(rgb, coefficients.sampling))
    ]


def pack_planes(quantized, coefficients):
    """Lay quantized values out as a batch holds them."""
    parts, highs = [], []
    for blocks in quantized:
        size, step = np.abs(blocks), coefficients.step
        coded = np.sign(blocks) * np.where(size > 96, np.minimum(127, 96 + (size - 96 + step // 2) // step), size)
        high = (blocks[..., 0, 0] + 64) // 128
        coded[..., 0, 0] = blocks[..., 0, 0] - 128 * high
        parts.append(_plane(coded))
        highs.append(high.ravel())
    if coefficients.sampling == "420":
        parts[1:] = [np.hstack(parts[1:])]
    array = np.zeros(coefficients.shape, np.int8)
    flat = np.concatenate([part.ravel() for part in parts] + highs)
    array.ravel()[: flat.size] = flat
    return array


def encode_planes(rgb, coefficients):
    """Encode uint8 pixels (height, width, 3 or 1) as a batch holds them."""
    return pack_planes(quantize(rgb, coefficients), coefficients)


def unpack_planes(array, coefficients):
    """Return each component's quantized values again."""
    (height, width), flat = coefficients.size, array.ravel().astype(int)
    luma, rest = flat[: height * width].reshape(height, width), flat[height * width :]
    planes = [luma]
    if coefficients.sampling == "420":
        both, rest = rest[: height * width // 2].reshape(height // 2, width), rest[height * width // 2 :]
        planes += np.hsplit(both, 2)
    elif coefficients.sampling == "444":
        planes += list(rest[: 2 * height * width].reshape(2, height, width))
        rest = rest[2 * height * width :]
    quantized = []
    for plane in planes:
        coded = _blocks(plane)
        size = np.abs(coded)
        values = np.sign(coded) * (np.minimum(size, 96) + coefficients.step * np.maximum(size - 96, 0))
        count = values.shape[0] * values.shape[1]
        values[..., 0, 0] = coded[..., 0, 0] + 128 * rest[:count].reshape(values.shape[:2])
        rest = rest[count:]
        quantized.append(values)
    return quantized


def _upsample(plane):
    """Double both sides by libjpeg's triangle filter: 3/4 of the nearer sample and 1/4 of the next."""
    for _ in range(2):
        padded = np.pad(plane, ((1, 1), (0, 0)), mode="edge")
        doubled = np.empty((2 * plane.shape[0], plane.shape[1]))
        doubled[::2] = 0.75 * plane + 0.25 * padded[:-2]
        doubled[1::2] = 0.75 * plane + 0.25 * padded[2:]
        plane = doubled.T
    return plane


def decode_planes(array, coefficients):
    """Decode a batch's array of one image to uint8 pixels (height, width, 3 or 1)."""
    luma, chroma = (np.reshape(table, (8, 8)) for table in coefficients.tables)
    planes = [
        _plane(BASIS.T @ (values * (chroma if i else luma)) @ BASIS)
        for i, values in enumerate(unpack_planes(array, coefficients))
    ]
    y = planes[0] + 128
    if coefficients.sampling == "grey":
        rgb = y[..., None]
    else:
        cb, cr = map(_upsample, planes[1:]) if coefficients.sampling == "420" else planes[1:]
        rgb = np.stack([y + 1.402 * cr, y - 0.344136 * cb - 0.714136 * cr, y + 1.772 * cb], axis=-1)
    return np.clip(np.rint(rgb), 0, 255).astype(np.uint8)


_LOW, _HIGH = (0, 2, 1, 3), (4, 6, 7, 5)
_PLACES = [
    8 * row + column for rows in (_LOW, _HIGH) for columns in (_LOW, _HIGH) for row in rows for column in columns
]


def _bits(byte):
    return [bit for bit in range(8) if byte >> bit & 1]


def _read_group(data):
    """Read the values of four blocks."""
    values, at = np.zeros((4, 64), int), 9
    places = []
    for block, kept in enumerate(data[5:9]):
        for mask in _bits(kept):
            places += [(block, _PLACES[8 * mask + bit]) for bit in _bits(data[at])]
            at += 1
    nibbles = data[at + 2 * data[4] :]
    assert len(nibbles) == (len(places) + 1) // 2
    for number, place in enumerate(places):
        nibble = nibbles[number // 2] >> number % 2 * 4 & 15
        values[place] = nibble - 16 * (nibble > 7)
    values[:, 0] += 16 * np.frombuffer(data, np.int8, 4).astype(int)
    for high, place in np.frombuffer(data, np.int8, 2 * data[4], at).reshape(-1, 2).astype(int):
        values[place // 64 % 4, place % 64] += 16 * high
    return values


def read_bytes(data):
    """Read a DCT image by the letter of docs/decisions/2026-11-29-packed-photographs.md.

    Return sampling, tables, and quantized values as `quantize` has them.
    """
    assert data[:4] == b"\x89DCT"
    sampling = ("grey", "420", "444", "422")[data[4]]
    height, width = np.frombuffer(data, "<u2", 2, 8).tolist()
    tables = np.frombuffer(data, np.uint8, 128, 12).reshape(2, 64)
    tall, wide = 16 if sampling == "420" else 8, 16 if sampling in ("420", "422") else 8
    grids = [(-(-height // 8), -(-width // 8))] + [(-(-height // tall), -(-width // wide))] * (sampling != "grey") * 2
    groups = [rows * -(-columns // 4) for rows, columns in grids]
    lengths = iter(np.frombuffer(data, "<u2", sum(groups), 140).tolist())
    at, parts = 140 + 2 * sum(groups), []
    for (rows, columns), count in zip(grids, groups, strict=True):
        blocks = []
        for _ in range(count):
            end = at + next(lengths)
            blocks.append(_read_group(data[at:end]))
            at = end
        parts.append(np.reshape(blocks, (rows, -1, 8, 8))[:, :columns])
    assert len(data) == at
    return sampling, tables, parts
