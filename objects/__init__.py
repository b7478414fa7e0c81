"""What a user writes against: virtual objects, handlers, contexts, types, settings."""
