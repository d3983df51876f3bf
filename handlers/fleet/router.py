"""How Ray Serve finds the replica for a request: its router, which runs in the gateway's process."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from handlers.fleet.affinity import Ledger
from handlers.fleet.call import Route

NAME = f"{__name__}:AffinityRouter"


class AffinityRouter(RequestRouter):
    """Asks the replica that has computed how the prompt begins, see `handlers.fleet.affinity`.

    A call's keyword `route`, a `Route`, is meant for it.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """Begin without a memory."""
        self._ledger: Ledger[ReplicaID] = Ledger()
        self._sent: dict[ReplicaID, set[str]] = {}  # requests from here, not answered to the end

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take what replicas there are."""
        super().update_replicas(replicas)
        self._ledger.forget(self.curr_replicas)
        for replica in [each for each in self._sent if each not in self.curr_replicas]:
            del self._sent[replica]

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replicas in the order in which they are to be tried, each alone."""
        route = Route()
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # when all of them are full
            route = pending_request.kwargs.get("route", route)
        known = {each.replica_id: each for each in candidate_replicas}
        wanted = [each for each in known if name_of(each) not in route.avoid] or list(known)
        # Ray forgets in ten seconds what a replica has said of its requests, which may take longer
        told, sent = self.replica_queue_len_cache, self._sent
        loads = {each: max(told.get(each) or 0, len(sent.get(each, ()))) for each in wanted}
        order = self._ledger.rank(route.beginnings, loads)
        if order:  # told already here, as one that hangs is never heard of again
            route.chosen, route.last = name_of(order[0]), len(wanted) == 1 or len(route.avoid) >= len(known)
        return [[known[each]] for each in order]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Remember where a prompt is computed."""
        self._sent.setdefault(replica_id, set()).add(pending_request.metadata.internal_request_id)
        route = pending_request.kwargs.get("route")
        if route is not None:
            route.chosen = name_of(replica_id)
            self._ledger.note(route.beginnings, replica_id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Note that a request has ended, however."""
        self._sent.get(replica_id, set()).discard(internal_request_id)


def name_of(replica: ReplicaID) -> str:
    """Return what a replica is called in metrics and logs."""
    return str(replica.unique_id)
