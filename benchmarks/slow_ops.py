"""An augmentation as slow as people's own: for `tpufeed.images.Custom`, imported by name in every worker."""

import cv2
import numpy as np


def heavy(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An elastic deformation, a bilateral filter and noise: what a Kaggle notebook does with albumentations."""
    height, width = image.shape[:2]
    shift = rng.uniform(-1, 1, (2, height, width)).astype(np.float32)
    across, down = (cv2.GaussianBlur(part, (0, 0), 8) * 120 for part in shift)
    columns, rows = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    warped = cv2.remap(image, columns + across, rows + down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    smooth = cv2.bilateralFilter(warped, 9, 60, 60)
    return np.clip(smooth + rng.normal(0, 8, image.shape), 0, 255).astype(np.uint8)
