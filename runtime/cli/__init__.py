"""The `keylane` command, the only place that knows typer and rich; imported when the command runs and not before."""

from .app import main

__all__ = ["main"]
