#!/usr/bin/env python3
"""Draw scenes of coloured shapes with masks, tags, boxes and a point: `scripts/make_scenes.py FOLDER [COUNT] [SIDE]`.

FOLDER/scenes.jsonl is a table for `tpufeed shard`, with the columns path, mask_path, tags, boxes (x, y, width, height),
kinds (one a box) and spot (x, y).
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

KINDS = {"disc": (230, 40, 40), "square": (40, 200, 60), "ring": (60, 80, 230)}


def main(folder: Path, count: int = 240, side: int = 80) -> None:
    """Draw `count` scenes of side x side pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    random, rows = np.random.default_rng(0), []
    for number in range(count):
        noise = random.integers(60, 130, (side // 8, side // 8, 3), np.uint8)
        image = Image.fromarray(noise).resize((side, side), Image.Resampling.BICUBIC)
        mask = Image.new("L", (side, side))
        boxes, kinds = [], []
        for value, (kind, colour) in enumerate(KINDS.items(), 1):
            if random.random() < 0.5:
                continue
            size = int(random.integers(side // 5, side // 3))
            x, y = random.integers(0, side - size, 2).tolist()
            place = (x, y, x + size - 1, y + size - 1)
            for draw, ink in ((ImageDraw.Draw(image), colour), (ImageDraw.Draw(mask), value)):
                if kind == "disc":
                    draw.ellipse(place, fill=ink)
                elif kind == "square":
                    draw.rectangle(place, fill=ink)
                else:
                    draw.ellipse(place, outline=ink, width=max(3, size // 5))
            boxes.append([x, y, size, size])
            kinds.append(kind)
        spot = random.uniform(6, side - 6, 2)
        radius = side / 20
        ImageDraw.Draw(image).ellipse((*(spot - radius), *(spot + radius)), fill=(250, 240, 60))
        image.save(folder / f"{number:05}.jpg", quality=95)
        mask.save(folder / f"{number:05}.png")
        rows.append(
            {
                "path": f"{number:05}.jpg",
                "mask_path": f"{number:05}.png",
                "tags": sorted(kinds),
                "boxes": boxes,
                "kinds": kinds,
                "spot": [spot.tolist()],
            }
        )
    (folder / "scenes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
