"""Run the demo: `python -m examples.refund_order.demo`."""

from .run import main

if __name__ == "__main__":
    main()
