"""The hooks of ``fully_shard`` in forward and backward, over the autograd graph of a case.

How the hooks of modules work together is in torch/distributed/fsdp/_fully_shard/_fsdp_state.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from fuzzshard.case.autograd import Node, Region, Tape, Value
from fuzzshard.case.case import Case
from fuzzshard.case.facts import Facts
from fuzzshard.case.graph import modules_below
from fuzzshard.case.groups import groups_within
from fuzzshard.oracles.group_model import Ahead, Group, Issued, Phase, Root, Shards


class HookModel:
    """The groups of a model that was just wrapped, and what calls and gradients do to them.

    ``issued`` gets their collectives. ``gathers_certain``: whether the number of all-gathers of
    the last backward follows from what is documented. ``in_backward`` counts, by group, its
    post-backwards that did not wait for the end. ``certain`` is lost for good where torch would
    compute with freed parameters.
    """

    def __init__(
        self, case: Case, found: Facts, issued: list[Issued], *, prefetches: bool
    ) -> None:
        self.case, self.found, self.prefetches = case, found, prefetches
        self.groups = [Group(case, found, i, issued) for i in range(len(case.wrap))]
        self.of_module = {m: group for group in self.groups for m in group.spec.modules}
        self.tape = Tape(case, found, self)
        self.finals: list[Root] = []
        self.recomputing = False
        self.recomputed: dict[Group, Shards] = {}
        """The groups that this backward recomputes, or may recompute, and how each holds its
        parameters if the recomputation does not come to it.
        """
        self.certain = True
        self.gathers_certain = True
        self.in_backward: Counter[int] = Counter()

    def enter(self, path: str, args: list[Value], *, grad: bool) -> list[Value]:
        """The pre-forward hooks of a module: its group gathers, and learns when its inputs have
        gradients.
        """
        group = self.of_module.get(path)
        if group is None:
            return args
        if not group.still_to_run:
            group.still_to_run = set(group.spec.modules)
        if group.called is Phase.PRE_BACKWARD:
            group.gather()
            return args
        first = group.called is not Phase.FORWARD
        group.called = Phase.FORWARD
        if first:
            self._claim(group)
            if group.root.forward is None:
                group.root.forward = group.index
        if group.parameters:
            args = self._pre_forward(group, args, grad=grad)
        for name in group.spec.prefetched("forward") if first else ():
            self.of_module[name].unshard()
        return args

    def _pre_forward(self, group: Group, args: list[Value], *, grad: bool) -> list[Value]:
        entering = group.phase is not Phase.FORWARD
        group.phase = Phase.FORWARD
        group.gather()
        if not entering or not grad or self.recomputing or all(a is None for a in args):
            return args
        node = self.tape.node(args, saves=False)
        node.inputs_of = group.index
        return [None if a is None else node for a in args]

    def leave(self, path: str, results: list[Value], *, grad: bool) -> list[Value]:
        """The forward hooks of a module."""
        group = self.of_module.get(path)
        if group is not None:
            self._post_forward(group, path, results, grad=grad)
        return results

    def _post_forward(self, group: Group, path: str, results: list[Value], *, grad: bool) -> None:
        """Ends the forward of a group with its module, that of a list group with the last of its
        modules.

        The forward of a module that runs by itself ends with it. Backward gathers a group when it
        comes to an output of any of its modules.
        """
        if group.called is not Phase.PRE_BACKWARD:
            self._hook(group, results, grad=grad)
        if path not in group.still_to_run:
            return
        group.still_to_run.discard(path)
        if group.root.forward == group.index:
            group.still_to_run.clear()
        if group.still_to_run or group.called is Phase.PRE_BACKWARD:
            return
        self._complete(group)
        if group.root.forward == group.index:
            for other in reversed(self.groups):
                if other.root is group.root and other is not group and other.runs_in_part:
                    self.certain &= self._is_within(other, path)
                    self._complete(other)
                    self._hook(other, results, grad=grad)
                    other.still_to_run.clear()
            group.root.forward = None

    def _is_within(self, group: Group, path: str) -> bool:
        """Whether all modules of ``group`` are below the FSDP root at ``path``.

        Modules elsewhere may still run: whether the group, which is documented to gather once,
        then gathers again is up to the version of torch.
        """
        return set(group.spec.modules) <= modules_below(self.case.model, path)

    def _complete(self, group: Group) -> None:
        if group.parameters:
            if not self.recomputing:
                group.reshard_after_forward()
                group.places.append(len(group.root.order))
                group.root.order.append(group.index)
            group.phase = Phase.IDLE
        group.called = Phase.IDLE

    def _hook(self, group: Group, results: list[Value], *, grad: bool) -> None:
        """Backward gathers ``group`` before it comes to ``results``."""
        for node in results if grad and not self.recomputing else ():
            if node is not None:
                node.hooks.append(group.index)

    def _claim(self, group: Group) -> None:
        """The first forward of a group that no root has claimed makes it the root of all groups
        within it.
        """
        if group.claimed:
            return
        for index in groups_within(self.case, group.index):
            inner = self.groups[index]
            inner.claimed, inner.root = True, group.root
        group.keeps_after_forward |= group.keeps_as_root

    def backward(self, nodes: list[Node], arriving: Set[str], frozen: Set[str]) -> None:
        """Runs ``nodes``, in their order; of ``arriving`` parameters those not ``frozen`` get a
        gradient.

        Not all nodes have a gradient: the inputs of a module pass through one function of
        ``fully_shard``, and an input that the loss does not depend on gets none.
        """
        self.gathers_certain = True
        for group in self.groups:
            group.frozen = frozen
        self.in_backward.clear()
        numbers = {node.number for node in nodes}
        last = {fqn: node for node in nodes for fqn in node.parameters}
        for node in nodes:
            for index in node.hooks:
                self._pre_backward(self.groups[index])
            for region in node.regions if node.saves else ():
                self._recompute(region, numbers)
            if node.inputs_of is not None:
                self.groups[node.inputs_of].post_backward()
                self.in_backward[node.inputs_of] += 1
            self._accumulate(node, last, arriving, frozen)
        for group, left in self.recomputed.items():
            is_over = group.root not in self.finals or group.phase is Phase.POST_BACKWARD
            if is_over and group.reshards_after_backward and group.shards is not Shards.ALL:
                group.shards = Shards.ALL if left is Shards.ALL else Shards.EITHER
        self.recomputed.clear()
        for root in self.finals:
            self._finish(root)
        self.finals.clear()

    def _accumulate(
        self, node: Node, last: dict[str, Node], arriving: Set[str], frozen: Set[str]
    ) -> None:
        """A parameter gets its gradient, the sum over all its uses, when the last of them has
        run.
        """
        for fqn in node.parameters - frozen:
            if (owner := self.found.owners[fqn]) is not None:
                group = self.groups[owner]
                self.certain &= (
                    group.shards in (Shards.WHOLE, Shards.EITHER) or not group.unshards_in_backward
                )
                if last[fqn] is node and fqn in arriving:
                    group.gradients.add(fqn)

    def _pre_backward(self, group: Group) -> None:
        group.called = Phase.PRE_BACKWARD
        if group.root not in self.finals:
            self.finals.append(group.root)
        if group.parameters and group.phase is not Phase.PRE_BACKWARD:
            group.phase = Phase.PRE_BACKWARD
            group.unshard_in_backward()
            group.wait()
            if not group.spec.prefetched("backward") and group.places:
                place = group.places.pop()
                if place > 0 and self.prefetches:
                    self.groups[group.root.order[place - 1]].unshard_in_backward()
        for name in group.spec.prefetched("backward"):
            self.of_module[name].unshard_in_backward()

    def _recompute(self, region: Region, reached_numbers: set[int]) -> None:
        """A checkpointed module runs forward again as soon as backward needs what it computed.

        It stops when it has all that backward saved there, which is known to be all of it only
        where every module within takes part in this backward. A group whose module's call is
        within another checkpoint may not be gathered then: what that one saves is its inputs,
        before the call.
        """
        if region.recomputed:
            return
        region.recomputed = True
        begins: list[tuple[str, int]] = []
        came_to: set[Group] = set()
        certain = not (region.nested or region.without_grad)
        before = {group: (group.shards, group.ahead) for group in self.groups}
        self.recomputing = True
        for path, is_begin, number in region.calls:
            if path not in self.of_module:
                continue
            certain &= len(self.of_module[path].spec.modules) == 1
            came_to.add(self.of_module[path])
            if is_begin:
                begins.append((path, number))
                self.enter(path, [], grad=True)
            else:
                _, first = begins.pop()
                certain &= any(n in reached_numbers for n in range(first, number))
                self.leave(path, [], grad=True)
        self.recomputing = False
        if certain:
            self.recomputed |= dict.fromkeys(came_to, Shards.ALL)
        else:
            for group, (shards, ahead) in before.items():
                group.doubt(shards, ahead)
            for group in came_to:
                self.recomputed.setdefault(group, before[group][0])
        self.gathers_certain &= certain or not came_to

    def reset(self) -> None:
        """``FSDPModule.reset_iter_state`` of the root, after an iteration that ended somewhere."""
        self.finals.clear()
        self._claim(self.of_module[""])
        for group in self.groups:
            group.reset()

    def _finish(self, root: Root) -> None:
        """The end of a backward: what had no post-backward yet has it now, or is left to be
        finalized.
        """
        root.forward = None
        by_hand = self.case.finalize is not None and root is self.of_module[""].root
        for group in self._of_root(root):
            group.still_to_run.clear()
            if group.parameters and group.phase is not Phase.POST_BACKWARD:
                if by_hand and group.reduces:
                    group.waits_to_finalize = True
                else:
                    group.post_backward()
            group.phase = group.called = Phase.IDLE
        if root.last_backward and not by_hand:
            self._end(root)

    def finalize(self) -> None:
        """``finalize_backward`` of the root, "a no-op" before its first forward.

        "Manual finalization supersedes set_is_last_backward"
        (``set_manual_backward_finalization``).
        """
        outermost = self.of_module[""]
        if not outermost.claimed:
            return
        for group in self._of_root(outermost.root):
            if group.parameters:
                group.finalize()
        self._end(outermost.root)

    def _end(self, root: Root) -> None:
        """Ends an iteration."""
        for group in self._of_root(root):
            group.ahead = Ahead.NONE
            group.places.clear()
        root.order.clear()

    def _of_root(self, root: Root) -> list[Group]:
        return [group for group in self.groups if group.root is root]
