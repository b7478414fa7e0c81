"""Keylane: durable actors for Python on Redis streams.

Everything a user writes against is imported from here; the modules behind it are internal.
"""

__all__: list[str] = []
