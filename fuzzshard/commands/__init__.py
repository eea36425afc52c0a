"""The commands of the command line, one module each; a command returns its exit code, and is
imported when it is called.
"""
