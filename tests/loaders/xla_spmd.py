"""Run by test_torchxla.py: under SPMD one process feeds four CPU devices.

xla_spmd.py CACHE
"""

import faulthandler
import json
import sys

import numpy as np
from torch_xla import runtime

import tpufeed

faulthandler.dump_traceback_later(120, exit=True)


def main(cache):
    runtime.use_spmd()
    loader = tpufeed.xla_loader(cache, columns=["sample"], batch_size=10)
    epochs = [np.concatenate([samples.cpu().numpy() for samples in loader]).tolist() for _ in range(2)]
    devices = runtime.addressable_runtime_device_count()
    print(json.dumps({"devices": devices, "length": len(loader), "epochs": epochs}))


if __name__ == "__main__":
    main(*sys.argv[1:])
