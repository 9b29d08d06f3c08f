"""The commands that speak to the Hub: each module has `flags(parser)` and `run(arguments) -> exit code`."""
