"""Journals that were written once and have to fit the same code for ever, whatever the library becomes."""
