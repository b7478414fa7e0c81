from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from keylane.runtime.assignment import LiveWorker, PartitionId, desired, owner_of

TYPES = ["Order", "Customer", "Courier"]

partitions = st.builds(PartitionId, st.sampled_from(TYPES), st.integers(0, 255))
hosts = st.frozensets(st.sampled_from(TYPES))
fleets = st.dictionaries(st.text(min_size=1, max_size=40), hosts, max_size=8).map(
    lambda found: [LiveWorker(worker, types) for worker, types in found.items()]
)
numbered = [PartitionId("Order", number) for number in range(64)]


def hosting(*workers: str) -> list[LiveWorker]:
    return [LiveWorker(worker, frozenset({"Order"})) for worker in workers]


@given(fleets, partitions, st.randoms(use_true_random=False))
def test_all_who_see_the_same_workers_agree(
    workers: list[LiveWorker], partition: PartitionId, order: random.Random
) -> None:
    """The order in which workers are seen plays no part."""
    shuffled = order.sample(workers, len(workers))

    assert owner_of(partition, workers) == owner_of(partition, shuffled)


@given(fleets, partitions)
def test_a_partition_goes_to_a_worker_that_hosts_its_type(workers: list[LiveWorker], partition: PartitionId) -> None:
    """Without a worker that has the handlers, nobody should own the partition."""
    able = {each.worker for each in workers if partition.type_name in each.hosts}

    owner = owner_of(partition, workers)

    assert owner in able if able else owner is None


@given(fleets.filter(bool), partitions, st.data())
def test_a_worker_that_leaves_moves_only_its_own_partitions(
    workers: list[LiveWorker], partition: PartitionId, data: st.DataObject
) -> None:
    """What the others own stays where it is; read backwards, a worker that joins takes only what becomes its own."""
    gone = data.draw(st.sampled_from(workers))
    before = owner_of(partition, workers)

    after = owner_of(partition, [each for each in workers if each != gone])

    assert before in {gone.worker, after}


@given(fleets, st.sets(partitions, max_size=30))
def test_the_shares_of_all_workers_are_the_whole_without_overlap(
    workers: list[LiveWorker], found: set[PartitionId]
) -> None:
    """Each partition that somebody can own is in exactly one share."""
    shares = [desired(each.worker, workers, found) for each in workers]

    together = frozenset[PartitionId]().union(*shares)
    assert sum(len(share) for share in shares) == len(together)
    assert together == {each for each in found if owner_of(each, workers) is not None}


def test_a_worker_that_does_not_take_part_should_own_nothing() -> None:
    """A draining worker's share is empty, and the others divide everything."""
    assert desired("w3", hosting("w1", "w2"), numbered) == frozenset()
    assert len(desired("w1", hosting("w1"), numbered)) == 64


def test_the_division_never_changes_between_releases() -> None:
    """Workers of two releases live side by side during a deploy and must agree."""
    owners = [owner_of(PartitionId("Order", number), hosting("w1", "w2", "w3")) for number in range(12)]

    assert owners == ["w3", "w3", "w3", "w1", "w3", "w1", "w3", "w2", "w3", "w3", "w1", "w1"]


def test_partitions_are_spread_over_the_workers() -> None:
    """With many partitions no worker has far more or less than its part."""
    workers = hosting(*(f"host-{number}-0123456789abcdef" for number in range(4)))
    many = [PartitionId(name, number) for name in ("Order", "Customer") for number in range(500)]

    shares = Counter(owner_of(PartitionId("Order", each.number), workers) for each in many)

    assert min(shares.values()) > 180
    assert max(shares.values()) < 320
