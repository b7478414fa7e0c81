"""What is written down: keys, records, the store and its functions, the embedded server."""
