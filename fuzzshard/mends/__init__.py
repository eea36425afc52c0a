"""Known bugs of torch, one file for each root cause (:mod:`fuzzshard.mending.mend`)."""
