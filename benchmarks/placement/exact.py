"""The same fleets as an integer program: what fits at once, and the most cards that can be placed.

Replicas of one model are alike, so the program counts them: how many in each NVLink domain, on each node or on each
network. A replica over several nodes has one rank on each of them: no node holds more ranks than there are replicas.
"""

from collections import Counter, defaultdict

from ortools.sat.python import cp_model

from benchmarks.placement.fleets import Case
from fleet.domain.fit import shape_of

SECONDS = 20.0

Wish = tuple[int, str]  # a model in one of its classes


class Program:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.model = cp_model.CpModel()
        self.placed: dict[Wish, list[cp_model.IntVar]] = defaultdict(list)  # everywhere
        self.used: dict[tuple[int, str], list[object]] = defaultdict(list)  # cards by node and domain
        self.free: Counter[tuple[int, str]] = Counter()
        self.classes: dict[tuple[int, str], str] = {}
        for node in case.snapshot.nodes:
            for gpu in node.gpus:
                if gpu.free:
                    self.free[node.pk, gpu.domain] += 1
                    self.classes[node.pk, gpu.domain] = gpu.gpu_class
        for pk in case.profiles:
            self._add(pk)
        for key, cards in self.free.items():
            self.model.add(sum(self.used[key]) <= cards)

    def _add(self, pk: int) -> None:
        profile = self.case.profiles[pk]
        shape = shape_of(profile)
        for gpu_class in profile.gpu_class or sorted(set(self.classes.values())):
            if shape.nodes == 1:
                for node in self.case.snapshot.nodes:
                    self.placed[pk, gpu_class].append(self._ranks(pk, node.pk, gpu_class))
                continue
            for fabric in ("east", "west"):
                replicas = self.model.new_int_var(0, 99, "")
                ranks = []
                for node in self.case.snapshot.nodes:
                    if any(port.active and port.fabric == fabric for port in node.ports):
                        ranks.append(self._ranks(pk, node.pk, gpu_class))
                        self.model.add(ranks[-1] <= replicas)
                self.model.add(sum(ranks) == shape.nodes * replicas)
                self.placed[pk, gpu_class].append(replicas)

    def _ranks(self, pk: int, node: int, gpu_class: str) -> cp_model.IntVar:
        """How many ranks of a model on one node; their cards count as used."""
        shape = shape_of(self.case.profiles[pk])
        count = self.model.new_int_var(0, 99, "")
        groups = []
        for key in self.free:
            if key[0] == node and self.classes[key] == gpu_class:
                here = self.model.new_int_var(0, 99, "")
                groups.append(here)
                self.used[key].append(shape.group * here)
        self.model.add(sum(groups) == count * (shape.cards // shape.group))
        return count

    def wishes(self, pk: int) -> list[Wish]:
        """The classes that a model may have, the preferred first."""
        return [wish for wish in self.placed if wish[0] == pk]

    def fits(self, counts: Counter[Wish]) -> bool:
        """All of these at once, each in its class; an empty class stands for any."""
        model = self.model.clone()
        totals: dict[Wish, list[cp_model.IntVar]] = defaultdict(list)
        for (pk, gpu_class), placed in self.placed.items():
            wish = (pk, "") if (pk, "") in counts else (pk, gpu_class)
            totals[wish] += [model.get_int_var_from_proto_index(each.index) for each in placed]
        for wish, placed in totals.items():
            model.add(sum(placed) == counts[wish])
        status = _solver().solve(model)
        assert status in (cp_model.FEASIBLE, cp_model.OPTIMAL, cp_model.INFEASIBLE), "the solver ran out of time"
        return status != cp_model.INFEASIBLE

    def most(self) -> int:
        """Cards of the best choice among all that arrive."""
        wanted = Counter(self.case.arrivals)
        cards = {pk: profile.gpus_total for pk, profile in self.case.profiles.items()}
        for pk in cards:
            self.model.add(sum(each for wish in self.wishes(pk) for each in self.placed[wish]) <= wanted[pk])
        self.model.maximize(sum(cards[wish[0]] * each for wish, placed in self.placed.items() for each in placed))
        solver = _solver()
        status = solver.solve(self.model)
        assert status == cp_model.OPTIMAL, f"seed {self.case.seed}: not solved to the end"
        return round(solver.objective_value)


def clairvoyant(case: Case, *, preferences: bool = True) -> int:
    """Cards placed by one who keeps to the same rules and knows all later arrivals.

    It turns nothing away that fits and gives each the first class of its list that fits; but where in that class each
    goes is settled only at the end, so an early one never stands in the way of a later one without need. Without
    `preferences` the class, too, is settled at the end.
    """
    program = Program(case)
    accepted: Counter[Wish] = Counter()
    full: set[Wish] = set()  # not one more of these fits; more arrivals change that only for the worse
    for pk in case.arrivals:
        for wish in program.wishes(pk) if preferences else [(pk, "")]:
            if wish in full:
                continue
            accepted[wish] += 1
            if program.fits(accepted):
                break
            accepted[wish] -= 1
            full.add(wish)
    return sum(case.profiles[pk].gpus_total * count for (pk, _), count in accepted.items())


def _solver() -> cp_model.CpSolver:
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = SECONDS
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    return solver
