"""A fault of a compiler."""

from torch._dynamo.backends import registry


def compiled_wrong_output(patch=setattr):
    """Dynamo's backend "eager" doubles what a graph computes."""
    eager = registry.lookup_backend("eager")

    def wrong(graph, inputs, **options):
        compiled = eager(graph, inputs, **options)
        return lambda *args: tuple(2 * value for value in compiled(*args))

    registry._COMPILER_FNS["eager"] = wrong
