"""Patchyard: a self-hosted service that runs fleets of coding agents."""

__version__ = "0.1.0"
