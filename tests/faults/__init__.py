"""Tests with real processes, real signals and a store that misbehaves, and the kit that they are made of."""
