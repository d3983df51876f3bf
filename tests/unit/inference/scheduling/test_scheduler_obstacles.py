"""Why those wait who do, as a step's statistics tell it, and who gives way."""

from inference.kv_cache.blocks import PAGE
from inference.sequences.state import Sequence
from inference.step_stats import Obstacle
from tests.unit.inference.paper_model import request
from tests.unit.inference.scheduling.test_scheduler import make, queue, run, share


def test_those_who_wait_do_so_for_sequences_budget_memory_or_a_prefix() -> None:
    crowded = make(sequences=2)
    queue(crowded, 4, 4, 4)
    run(crowded)
    assert (Obstacle.SEQUENCES, 0) == (crowded.obstacle, crowded.awaiting)

    slow = make(tokens=8)
    queue(slow, 8, 8)
    run(slow)
    assert Obstacle.BUDGET is slow.obstacle

    small = make(blocks=4, tokens=100)
    queue(small, 2 * PAGE, 2 * PAGE)
    run(small)
    assert (1, Obstacle.MEMORY) == (len(small.waiting), small.obstacle)

    sharing = make(tokens=200)
    for name in ("a", "b"):
        share(sharing, name, 3 * PAGE)
    sharing.schedule()
    assert (1, 1) == (len(sharing.waiting), sharing.awaiting)


def test_an_owner_with_one_text_keeps_its_blocks_where_another_has_many() -> None:
    crowded = make(blocks=8, tokens=100)
    many = [Sequence(request(str(at), PAGE, 100, owner="many")) for at in range(3)]
    for each in many:
        crowded.add(each)
    run(crowded)
    alone = Sequence(request("3", PAGE, 100, owner="one"))
    crowded.add(alone)
    while not any(each.preemptions for each in (*many, alone)):
        run(crowded)
    assert [each.preemptions for each in (*many, alone)] == [0, 0, 1, 0]
    assert crowded.check() == []
