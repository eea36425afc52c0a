"""Case -> a standalone script that only needs torch, and running that script.

The script is what a maintainer reads, so it holds what the case uses and nothing else: the model,
one ``train`` function for the schedule that runs on the plain model and on the engine's, and one
comparison. No torch import here.
"""

from fuzzshard.reproducer.assemble import body, script, script_like, scripts
from fuzzshard.reproducer.check import ScriptResult, check

__all__ = ["ScriptResult", "body", "check", "script", "script_like", "scripts"]
