"""The checkup of a namespace: facts are read in bounded pages, pure checks turn them into findings, owners repair."""
