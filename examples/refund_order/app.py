"""What a worker of this service hosts: `keylane worker examples.refund_order.app:app`.

The systems around the order object are found through the environment (see `settings`).
"""

from keylane import App

from .order import order

app = App([order])
