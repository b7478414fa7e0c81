"""The service over HTTP: a Starlette application that hosts the order object, or reaches workers that do.

    uvicorn --factory examples.refund_order.web:application

`routes` says what can be asked, `refunds` and `decisions` ask it of the client, `problems` turns errors into answers,
`callers` says who asks.
"""

from .application import application

__all__ = ["application"]
