"""The agent core: pure. It sees the outside only through `ports`; no Celery, Docker, HTTP, Redis, S3 or OpenTelemetry."""
