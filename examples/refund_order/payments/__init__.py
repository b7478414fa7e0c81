"""A payment service that is a process of its own, and the typed client for it.

The service stands for somebody else's system: it shares no database and no code path with the order
object, only HTTP. `wire` holds what travels, `ledger` what is written down, `switches` how it misbehaves on
request, `service` the routes, `server` the process, `client` the caller's side.
"""
