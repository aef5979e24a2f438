"""Upkeep inside the workers: pump, reapers, segments, projection."""

from .loop import Maintenance

__all__ = ["Maintenance"]
