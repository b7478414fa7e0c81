"""What makes it run: workers, lanes, replay, clients, the command line."""
