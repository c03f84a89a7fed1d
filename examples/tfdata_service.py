"""A tf.data service for `to_tf(service=...)`: one dispatcher, and as many workers as the input needs.

    python tfdata_service.py dispatcher --port 5000
    python tfdata_service.py worker --dispatcher 10.0.0.2:5000 --address $(hostname -i) --port 5001

Workers need this TensorFlow and the right to read the dataset, and no tpufeed: what they run is a graph. For
`sharding="file"` the dispatcher has to be told all workers: --workers 10.0.0.3:5001,10.0.0.4:5001.
"""

import argparse
import os

# Of TensorFlow's gs:// client, which reads them when it is imported: the default is a buffer of 64 MiB a lane.
os.environ.setdefault("GCS_READ_CACHE_BLOCK_SIZE_MB", "8")

import tensorflow as tf

service = tf.data.experimental.service


def main():
    """Start the server of the role, and serve until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=("dispatcher", "worker"))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dispatcher", help="a worker's: host:port")
    parser.add_argument("--address", default="localhost", help="a worker's: the host by which trainers reach it")
    parser.add_argument("--workers", default="", help="a dispatcher's, for sharding='file': host:port,host:port")
    parser.add_argument("--work-dir", help="a dispatcher's: a folder in which it remembers its jobs over a restart")
    given = parser.parse_args()
    if given.role == "worker" and not given.dispatcher:
        parser.error("a worker needs --dispatcher HOST:PORT")
    if given.role == "dispatcher":
        config = service.DispatcherConfig(
            port=given.port,
            work_dir=given.work_dir,
            fault_tolerant_mode=given.work_dir is not None,
            worker_addresses=given.workers.split(",") if given.workers else None,
            worker_timeout_ms=10_000,  # of silence, and its trainers do without it
        )
        server = service.DispatchServer(config)
    else:
        config = service.WorkerConfig(
            dispatcher_address=given.dispatcher,
            worker_address=f"{given.address}:{given.port}",
            port=given.port,
            heartbeat_interval_ms=1000,
        )
        server = service.WorkerServer(config)
    print(f"{given.role} serves on port {given.port}", flush=True)
    server.join()


if __name__ == "__main__":
    main()
