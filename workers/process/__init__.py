"""A worker process: the Celery app, its engine, its heartbeat."""
