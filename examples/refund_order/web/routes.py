"""What can be asked of the service.

| request | answer |
| --- | --- |
| `POST /orders/{order}/refunds` `{amount, reason}` | 202: begun, or waiting for approval |
| `GET /orders/{order}` | what is refunded, and what is open |
| `GET /orders/{order}/refunds`, `…/refunds/{number}` | all refunds of the order; one of them |
| `PATCH /orders/{order}/refunds/{number}` `{amount}` | another amount, which has to be approved anew |
| `POST …/refunds/{number}/approve`, `…/decline` `{proposal, reason}` | the decision counts, or why it does not |
| `POST …/refunds/{number}/cancel` `{reason}` | what was stopped, what had been done, and what nobody knows |
| `GET /invocations/{id}` | what became of a request that had got an id instead of an answer |
"""

from typing import Final

from starlette.routing import Route

from . import decisions, refunds

ROUTES: Final = [
    Route("/orders/{order}", refunds.get_order, methods=["GET"]),
    Route("/orders/{order}/refunds", refunds.get_refunds, methods=["GET"]),
    Route("/orders/{order}/refunds", refunds.post_refund, methods=["POST"]),
    Route("/orders/{order}/refunds/{number:int}", refunds.get_refund, methods=["GET"]),
    Route("/orders/{order}/refunds/{number:int}", refunds.patch_refund, methods=["PATCH"]),
    Route("/orders/{order}/refunds/{number:int}/approve", decisions.approve, methods=["POST"]),
    Route("/orders/{order}/refunds/{number:int}/decline", decisions.decline, methods=["POST"]),
    Route("/orders/{order}/refunds/{number:int}/cancel", refunds.cancel_refund, methods=["POST"]),
    Route("/invocations/{invocation}", refunds.get_invocation, methods=["GET"]),
]
