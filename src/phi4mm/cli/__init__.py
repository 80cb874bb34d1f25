"""The command line: one module per verb, and the table of exit codes."""
