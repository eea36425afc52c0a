"""Which versions of torch show a finding: its script, run under each one in an environment of its
own.
"""
