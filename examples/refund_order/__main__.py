"""Run the demo: `python -m examples.refund_order`."""

from .demo.run import main

if __name__ == "__main__":
    main()
