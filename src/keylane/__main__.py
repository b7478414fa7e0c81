"""`python -m keylane`, and the `keylane` command."""


def main() -> None:
    """Run the command line."""
    # Imported here so that importing this module costs nothing.
    from .runtime.cli import main as run  # noqa: PLC0415

    run()


if __name__ == "__main__":
    main()
