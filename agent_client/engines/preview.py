"""A catalog entry before any node has seen it: what no node would run, and the command that one would.

The same rules and adapters as on the node, with stand-ins for what only a node knows: its secrets, its ports, its keys.
"""

from collections.abc import Iterable, Mapping

from agent_client.engines import PlanError, plan
from agent_client.engines.base import Launch, LaunchSpec
from agent_client.engines.help_text import Known, listed, unknown_flags, version_numbers
from agent_client.profile import Entry, Problem, Profile, SecretRef
from agent_client.profile.model_facts import ModelFacts
from agent_client.profile.rules import judge
from agent_client.profile.subject import Subject

#: Stands for the first port of a node's range, and for an address of its network.
PORT, RENDEZVOUS_PORT, ADDRESS = 20_000, 20_998, "NODE"


def stand_in_cards(profile: Profile) -> tuple[str, ...]:
    """For a rank whose cards are not chosen yet; no UUID looks like it."""
    return tuple(f"(card {n})" for n in range(profile.gpus_per_node))


def problems(entry: Entry, versions: Iterable[str] = ()) -> tuple[Problem, ...]:
    """What stands against a managed entry whatever the model's files say.

    `versions`: of this engine on the nodes. Of several, only what all of them refuse counts; without any, only what the
    profile itself gets wrong.
    """
    if entry.profile is None:
        return ()
    names = entry.served_names
    try:
        command(entry.profile, names)
    except PlanError as error:
        return error.problems
    found = [tuple(_of_version(entry.profile, names, version)) for version in sorted(set(versions)) or [""]]
    others = [{(each.code, each.field) for each in some} for some in found[1:]]
    return tuple(each for each in found[0] if all((each.code, each.field) in some for some in others))


def _of_version(profile: Profile, names: tuple[str, ...], version: str) -> Iterable[Problem]:
    numbers = version_numbers(version)
    subject = Subject(profile=profile, facts=ModelFacts(), served_names=names, engine_version=numbers)
    yield from judge(subject).problems
    known = Known(engine=profile.engine, version=version, names=listed(profile.engine, version))
    yield from unknown_flags(profile.extra_args, known, set_by_user=True)


def command(
    profile: Profile,
    served_names: tuple[str, ...],
    *,
    rank: int = 0,
    replica: str = "",
    address: str = ADDRESS,
    port: int = PORT,
    gpus: tuple[str, ...] = (),
    fabric_env: Mapping[str, str] | None = None,
    rendezvous: tuple[str, int] | None = None,
) -> Launch:
    """The launch of one rank; raises PlanError. No secret is in it."""
    secrets = {value.name: "(secret)" for value in profile.env.values() if isinstance(value, SecretRef)}
    return plan(
        LaunchSpec(
            replica=replica or f"{served_names[0]}/1",
            served_names=served_names,
            profile=profile,
            port=port,
            address=address,
            rank=rank,
            nodes=profile.nodes,
            gpus=gpus or stand_in_cards(profile),
            engine_key="(made for each replica)",
            fabric_env=fabric_env or {},
            rendezvous=rendezvous or (ADDRESS, RENDEZVOUS_PORT),
            secrets=secrets,
        )
    )
