"""Known bugs of torch as changes of torch that can be put on and taken off: *mends*.

A finding is *known* where it shows on torch as it is, and does not with mends; which of them it
takes is its cause. What cannot be mended is told by a tripwire, which says that its cause has
occurred.
"""

from fuzzshard.contracts import Releases
from fuzzshard.mending.mend import Edit, Mend, Patch, Promise, Public
from fuzzshard.mending.trips import trip

__all__ = ["Edit", "Mend", "Patch", "Promise", "Public", "Releases", "trip"]
