"""A finding as a draft of an issue for PyTorch's tracker, for a person to review and send.

Nothing here sends anything. The draft says no more than the entry, its script and runs of them
say.
"""
