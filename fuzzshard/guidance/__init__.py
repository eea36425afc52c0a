"""What to run next, given what was run so far. Imports the Case and the strategies, and no
torch.
"""

from fuzzshard.guidance.stream import Feedback, Guidance, GuidedStream, Learner, guided

__all__ = ["Feedback", "Guidance", "GuidedStream", "Learner", "guided"]
