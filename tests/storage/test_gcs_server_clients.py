"""The GCS of the tests, as gcsfs and TensorFlow see it: each in a process that has its environment from the start."""

import os
import subprocess
import sys
import textwrap

import pytest

from tests.gcs_server import GcsServer


def _run(code: str, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_gcsfs():
    pytest.importorskip("gcsfs")
    code = """
        import os
        import gcsfs
        files = gcsfs.GCSFileSystem(token="anon", use_listings_cache=False)
        files.pipe("bucket/a/1", b"0123456789")
        assert files.cat_file("bucket/a/1", 2, 5) == b"234"
        assert files.cat_file("bucket/a/1", start=-3) == b"789"
        files.pipe("bucket/a/b/2", b"two")
        assert files.cat_ranges(["bucket/a/1", "bucket/a/b/2"], [0, 1], [1, 3]) == [b"0", b"wo"]
        data = os.urandom(12 << 20)
        with files.open("bucket/big", "wb", block_size=1 << 20) as stream:
            stream.write(data)
        assert files.cat_file("bucket/big") == data
        assert files.find("bucket") == ["bucket/a/1", "bucket/a/b/2", "bucket/big"]
        assert sorted(files.ls("bucket/a", detail=False)) == ["bucket/a/1", "bucket/a/b"]
        assert files.info("bucket/a/1")["size"] == 10 and files.isdir("bucket/a") and not files.exists("bucket/none")
        try:
            files.pipe_file("bucket/a/1", b"again", mode="create")
        except FileExistsError:
            pass
        else:
            raise AssertionError("created twice")
        files.cp_file("bucket/a/1", "bucket/c")
        files.rm("bucket/a", recursive=True)
        assert files.find("bucket") == ["bucket/big", "bucket/c"]
        try:
            files.cat_file("nowhere/a")
        except FileNotFoundError:
            pass
        else:
            raise AssertionError("read from nowhere")
    """
    with GcsServer() as server:
        _run(code, server.environment())
        assert server.get("bucket", "c") == b"0123456789"
        assert server.requests(operation="read", name="a/1", range="bytes=2-4", status=206)
        assert server.requests(name="big", range="bytes [*]/12582912", status=200)  # the end of a resumable upload


def test_tensorflow():
    pytest.importorskip("tensorflow")
    code = """
        import tensorflow as tf
        with tf.io.TFRecordWriter("gs://bucket/data/1.tfrecord") as writer:
            for index in range(100):
                writer.write(str(index).encode() * 1000)
        assert tf.io.gfile.glob("gs://bucket/data/*.tfrecord") == ["gs://bucket/data/1.tfrecord"]
        records = [bytes(record.numpy()) for record in tf.data.TFRecordDataset("gs://bucket/data/1.tfrecord")]
        assert records == [str(index).encode() * 1000 for index in range(100)]
        assert tf.io.gfile.stat("gs://bucket/data/1.tfrecord").length > 100_000
        assert not tf.io.gfile.exists("gs://bucket/none") and not tf.io.gfile.exists("gs://nowhere/none")
        tf.io.gfile.rename("gs://bucket/data/1.tfrecord", "gs://bucket/data/2.tfrecord")
        tf.io.gfile.makedirs("gs://bucket/folder")
        assert tf.io.gfile.listdir("gs://bucket/data") == ["2.tfrecord"]
        tf.io.gfile.remove("gs://bucket/data/2.tfrecord")
    """
    with GcsServer() as server:
        server.fault("status", operation="chunk", status=503)
        _run(code, {**server.tensorflow_environment(), "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "1000"})
        assert [record.status for record in server.requests(operation="chunk")] == [503, 200]
        assert server.requests(operation="read", name="data/1.tfrecord", status=206)
        assert server.names("bucket") == ["folder/"]
