"""An S3 server for tests: moto on the loopback interface, in this process."""

from collections.abc import Iterator
from contextlib import contextmanager

import boto3
from moto.server import ThreadedMotoServer

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "us-east-1"}


@contextmanager
def s3_server(bucket: str) -> Iterator[str]:
    """Start it, make a bucket, give its URL. The credentials must be in the environment."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        client = boto3.session.Session().client("s3", endpoint_url=url, region_name="us-east-1")
        client.create_bucket(Bucket=bucket)
        client.close()
        yield url
    finally:
        server.stop()
