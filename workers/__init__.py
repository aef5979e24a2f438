"""Process 2: Celery workers that run the turns of agents."""
