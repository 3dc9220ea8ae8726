"""An object store for tests: moto's server on the loop-back address, in a process of its own, with a bucket."""

import os
import subprocess
import sys
from contextlib import contextmanager
from threading import Thread

from pyarrow.fs import FileSystem

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def store():
    """Begin the server on a free port, with an empty bucket; a function makes URLs there, with ``keys`` or not."""
    call = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    server = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    before = {name: os.environ.get(name) for name in KEYS}
    os.environ |= KEYS
    try:
        port = next(line.split(":")[-1].split()[0] for line in server.stderr if "Running on" in line)
        reader = Thread(target=server.stderr.read, daemon=True)
        reader.start()  # a log that nobody reads would stop it
        query = f"?endpoint_override=127.0.0.1:{port}&scheme=http"
        system, _ = FileSystem.from_uri(f"s3://bucket{query}&allow_bucket_creation=true")
        system.create_dir("bucket")
        yield lambda name, keys="": f"s3://{keys}bucket/{name}{query}"
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        server.kill()
        server.wait()
        reader.join()
        server.stderr.close()
