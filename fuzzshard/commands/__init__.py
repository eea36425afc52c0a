"""The commands of the command line, one module each; a command returns its exit code.

``fuzzshard --help`` imports all of them, so what is slow to import they import when they run.
"""
