"""The crowd, the kill at the worst moment, and the comparison of all books."""

import time
from collections import Counter
from collections.abc import Iterable

import anyio

from ..models import Order, Refund, RefundState
from ..order import history
from ..policy import PolicyLog
from .books import Books, faults
from .crowd import Crowd
from .processes import Child
from .stage import LIMIT_S, Stage

FAULTS_SHOWN = 20
HELD_AT_LEAST = 8


async def kill_at_the_worst_moment(stage: Stage, crowd: Crowd, workers: list[Child]) -> None:
    """Kill a worker when its refunds are paid and it does not know that yet.

    The card service holds all answers back, so that the moment is the same in every run.
    """
    stage.title(f"5. {len(crowd.workload.asks)} refunds at once, and a worker is killed at the worst moment")
    behaviour = await stage.cards.behaviour()
    await crowd.answered(len(crowd.workload.asks) // 2)
    await stage.cards.set_behaviour(behaviour.model_copy(update={"hold": "before_answer"}))
    await _held(stage)
    by_worker = [(each, await _sent_by(each, stage, crowd)) for each in workers]
    victim, sent = max(by_worker, key=lambda pair: pair[1])
    victim.kill()
    await victim.process.wait()
    at_s, before = time.monotonic(), await stage.cards.statistics()
    stage.say(f"{sum(count for _, count in by_worker)} refunds are paid, and the card service has told nobody yet")
    stage.check(f"{victim.name}, which has sent {sent} of them, is killed", holds=sent > 0)
    await stage.cards.set_behaviour(behaviour)
    await crowd.answered(len(crowd.workload.asks))
    after = await stage.cards.statistics()
    stage.say(f"the other worker goes on; the last answer comes after {time.monotonic() - at_s:.1f} s")
    looked_up, lost = after.lookups - before.lookups, after.dropped - before.dropped
    told = f"the card service was asked {looked_up} times what had become of a refund, {lost} more answers were lost"
    stage.check(told, holds=looked_up >= sent)


async def _sent_by(worker: Child, stage: Stage, crowd: Crowd) -> int:
    """Return how many refunds of a worker are paid of which nobody was told."""
    questions = PolicyLog(stage.folder / "policy.sqlite").questions()
    asked = {each.order for each in questions if each.process_id == worker.process.pid}
    paid = Counter(entry.terms.order for entry in await stage.cards.ledger())
    told = Counter(
        each.ask.key
        for each in crowd.answers
        if isinstance(each.outcome, Refund) and each.outcome.state is RefundState.REFUNDED
    )
    return sum((paid - told)[key] for key in {ask.key for ask in crowd.open} & asked)


async def _held(stage: Stage) -> None:
    """Wait until refunds are held back after their commit."""
    before = (await stage.cards.statistics()).held
    with anyio.fail_after(LIMIT_S):
        while (await stage.cards.statistics()).held - before < HELD_AT_LEAST:
            await anyio.sleep(0.02)


async def verdict(stage: Stage, crowd: Crowd, others: Iterable[Order]) -> None:
    """Compare the engine's ledger, the orders and the callers with the books of the receivers."""
    stage.title("6. The books")
    audits = [await stage.compared("cards", stage.cards), await stage.compared("transfers", stage.transfers)]
    await _at_once(stage, *audits, ("reconcile", "list"))
    orders = [*crowd.workload.orders, *others]
    histories = {each.key: await stage.client.call(history, each.key, timeout=LIMIT_S) for each in orders}
    entries = [*await stage.cards.ledger(), *await stage.transfers.ledger()]
    queue = await stage.client.reconcile_list("Order")
    queued = frozenset((case.key, int(case.operation_id.removeprefix("refund-"))) for case in queue)
    books = Books(orders, crowd.workload.asks, crowd.answers, histories, entries, queued)
    found = faults(books)
    refused = ", ".join(f"{count} {code}" for code, count in sorted(books.refusals.items()))
    stage.say(f"{len(books.asks)} asked by the crowd, refused: {refused}; paid in all: {len(entries)}")
    stage.check(f"paid twice: {len(books.untold)}, lost: {len(books.unbooked)}", holds=not books.untold)
    for fault in found[:FAULTS_SHOWN]:
        stage.check(fault, holds=False)


async def _at_once(stage: Stage, *commands: tuple[str, ...]) -> None:
    """Run several commands side by side, and show one after the other."""
    printed: dict[tuple[str, ...], str] = {}

    async def run(arguments: tuple[str, ...]) -> None:
        printed[arguments] = await stage.run(*arguments)

    async with anyio.create_task_group() as group:
        for arguments in commands:
            group.start_soon(run, arguments)
    for arguments in commands:
        stage.show(arguments, printed[arguments])
