"""Dynamo's backend "eager" doubles what a graph computes."""

from torch._dynamo.backends import registry


def apply() -> None:
    eager = registry.lookup_backend("eager")

    def wrong(graph, inputs, **options):
        compiled = eager(graph, inputs, **options)
        return lambda *args: tuple(2 * value for value in compiled(*args))

    registry._COMPILER_FNS["eager"] = wrong
