"""Makes the torch at hand another release: what ``fully_shard`` holds within has other names and
meanings.

On ``PYTHONPATH`` of a process, before torch is imported. Names are changed in the source of
torch's own files, so that everything in torch goes on working; the public API stays as it is.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import CodeType
from typing import Any

PACKAGE = "torch.distributed.fsdp._fully_shard."
RENAMED = {
    "IDLE": "RESTING",
    "all_gather_state": "gather_in_flight",
    "_all_gather_result": "_gathered",
    "_partial_reduce_output": "_sum_over_shards",
    "foreach_reduce": "reduce_all",
    "post_backward": "after_backward",
}
"""Fields and functions by their name in the releases that fuzzshard knows."""
MEANT = "return param.grad if param is not None else None"
MEANS = "return param.grad.clone() if param is not None and param.grad is not None else None"
"""What ``unsharded_accumulated_grad`` is since torch 2.15, and no longer is: ``.grad`` itself."""


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        for old, new in RENAMED.items():
            source = source.replace(old, new)
        if MEANT in source:
            source = source.replace(MEANT, MEANS)
        else:
            source = source.replace("unsharded_accumulated_grad", "grad_waiting")
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if not fullname.startswith(PACKAGE):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None:
            return None
        return importlib.util.spec_from_file_location(
            fullname, spec.origin, loader=_Loader(fullname, spec.origin)
        )


sys.meta_path.insert(0, _Finder())
