"""Services to read and to copy from."""
