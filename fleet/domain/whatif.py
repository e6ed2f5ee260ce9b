from fleet.domain.placement_search import Ask
from fleet.domain.reasons import Proposal


def propose(ask: Ask) -> tuple[Proposal, ...]:
    return ()
