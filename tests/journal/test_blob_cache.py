"""What a process has at hand of large values is bounded."""

from __future__ import annotations

from keylane.journal.blob_cache import BlobCache


def test_a_cache_keeps_what_was_used_last() -> None:
    """Up to a number of bytes."""
    cache = BlobCache(100)
    for name in b"abc":
        cache.put(bytes([name]), bytes(40))
        cache.get(b"a")

    assert cache.get(b"b") is None
    assert cache.get(b"a") == cache.get(b"c") == bytes(40)
    assert cache.size_bytes == 80


def test_a_value_counts_once_and_one_that_is_too_large_is_not_kept() -> None:
    """However often it is put there."""
    cache = BlobCache(100)
    for _ in range(3):
        cache.put(b"a", bytes(60))
        cache.put(b"b", bytes(101))

    assert cache.size_bytes == 60
    assert cache.get(b"b") is None
