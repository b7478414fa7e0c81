"""The demo: 200 orders, two workers, one of which is killed half-way, and the books compared at the end.

`workload` says which refunds are asked for, `processes` starts and ends the processes, `driver` asks and
notes the answers, `audit` compares them with the ledger, `report` prints, `run` ties them together.
"""
