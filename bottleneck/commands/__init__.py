"""The command line, one thin module per command; heavy imports stay inside functions."""
