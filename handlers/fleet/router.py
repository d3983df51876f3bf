"""How Ray Serve finds the replica for a request: its router, which runs in the gateway's process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from handlers.fleet.affinity import Ledger

NAME = f"{__name__}:AffinityRouter"


class AffinityRouter(RequestRouter):
    """Asks the replica that has computed how the prompt begins, see `handlers.fleet.affinity`.

    A call's keywords `beginnings` and `avoid` (the ids of replicas that have declined it) are meant for it.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """Begin without a memory."""
        self._ledger: Ledger[ReplicaID] = Ledger()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take what replicas there are."""
        super().update_replicas(replicas)
        self._ledger.forget(self.curr_replicas)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replicas in the order in which they are to be tried, each alone."""
        told: dict[str, Any] = {}
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # when all of them are full
            told = pending_request.kwargs
        avoid: Sequence[str] = told.get("avoid", ())
        known = {each.replica_id: each for each in candidate_replicas}
        wanted = [each for each in known if name_of(each) not in avoid] or list(known)
        loads = {each: self.replica_queue_len_cache.get(each) or 0 for each in wanted}
        return [[known[each]] for each in self._ledger.rank(told.get("beginnings", ()), loads)]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Remember where a prompt is computed."""
        self._ledger.note(pending_request.kwargs.get("beginnings", ()), replica_id)


def name_of(replica: ReplicaID) -> str:
    """Return what a replica is called in metrics and logs."""
    return str(replica.unique_id)
