"""A training under Slurm that saves and exits with 75 when it is told to stop: docs/containers.md, "Slurm"."""

import itertools
import os
import signal
import sys
from pathlib import Path

asked = {signal.SIGUSR1: 0, signal.SIGTERM: 0}
for number in asked:  # before the imports, which take seconds
    signal.signal(number, lambda number, _: asked.update({number: 1}))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import tpufeed  # noqa: E402

os.environ.update(RANK=os.environ["SLURM_PROCID"], WORLD_SIZE=os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo")
rank, steps, done, code = dist.get_rank(), int(sys.argv[1]), 0, 0
options = {"batch_size": 8, "columns": ["image", "label", "sample"], "repeat": True}
loader = tpufeed.Loader("flowers-64", "train", **options).to_torch()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, len(loader.class_names)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
checkpoint = Path("checkpoint.pt")
if checkpoint.exists():
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    loader.load_state_dict(saved["loader"])
    done = saved["done"]
print(f"rank {rank} of {dist.get_world_size()} continues after step {done}", flush=True)

log = Path(f"samples-rank{rank}").open("a")  # noqa: SIM115
for images, labels, samples in itertools.islice(loader, steps - done):
    loss = torch.nn.functional.cross_entropy(model(images.float().mean((1, 2)) / 255), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    done += 1
    print(done, *samples.tolist(), file=log, flush=True)
    stop = torch.tensor([*asked.values()])
    dist.all_reduce(stop)  # ranks hear of a signal at different steps, and must leave after the same one
    if stop.any():
        if rank == 0:  # one state is good for all ranks
            parts = {"model": model.state_dict(), "loader": loader.state_dict(), "done": done}
            torch.save(parts, "checkpoint.new")
            Path("checkpoint.new").replace(checkpoint)
        dist.barrier()
        print(f"rank {rank} saved step {done}", flush=True)
        code = 143 if stop[1] else 75  # SIGTERM is from scancel: do not requeue
        break
else:
    print(f"rank {rank} is done", flush=True)
for number in asked:  # Python removes handlers as it exits, and then a late signal would kill it
    signal.signal(number, signal.SIG_IGN)
sys.exit(code)
