"""Refunds of orders, one lane for each order, that survive the process which carries them out.

`order` is the virtual object and the place to start reading; `app` is what a worker hosts; `services` are
the systems around it: the order store (`orders`), the policy check (`policy`) and the payment service, a
process of its own (`payments`). `demo` runs all of it and kills a worker on the way.
"""
