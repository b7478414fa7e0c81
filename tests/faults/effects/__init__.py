"""Money moves once, or it is known to be unknown: a receiver, workers that are hit, and a table of what must follow."""
