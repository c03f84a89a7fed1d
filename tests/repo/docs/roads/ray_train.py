"""Workers of Ray Train share the samples of `flowers-64`: docs/containers.md."""

from pathlib import Path

import ray.train
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

import tpufeed


def train(config):
    loader = tpufeed.Loader(config["data"], "train", batch_size=8, columns=["image", "sample"]).to_torch()
    samples = [int(sample) for _, batch in loader for sample in batch]
    rank = ray.train.get_context().get_world_rank()
    Path(f"{config['data']}-rank{rank}").write_text(" ".join(map(str, samples)))
    ray.train.report({"samples": len(samples)})


if __name__ == "__main__":
    TorchTrainer(
        train,
        train_loop_config={"data": str(Path("flowers-64").absolute())},  # a worker has another working folder
        scaling_config=ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(storage_path=str(Path("ray-results").absolute())),
    ).fit()
