"""The demo: approvals, lost answers, an operator, a worker that is killed at the worst moment, and the books.

`run` starts everything and ends with the verdict, `scenes` are what is shown one after the other, `crowd` is many
refunds at once (those of `workload`), `books` compares what came out with what the receivers' books have, `processes`
starts and ends processes.
"""
