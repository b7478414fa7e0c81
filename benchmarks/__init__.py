"""Speed of the engine beside the bare commit path that it can't beat: `python -m benchmarks` prints the table.

`floor` is the bare commit path, `engine` the same work on Keylane; `harness` measures both alternately in one process.
`start` and `caller` are about other processes; `profiling` says where the time goes.
"""
