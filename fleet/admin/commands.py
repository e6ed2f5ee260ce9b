"""The command of each rank as a page shows it: fit to be copied, each part with who decided it, no secret in it."""

import shlex
from collections.abc import Iterable, Sequence

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from agent_client.engines import Launch
from agent_client.engines.preview import ADDRESS, PORT, RENDEZVOUS_PORT, command
from agent_client.profile import Profile, ProfileError, parse_profile
from fleet.admin.display import folded, log, table
from fleet.models import CatalogModel, Replica, Shard

_ELSEWHERE = "On a node; port, key, cards and the program's path are its own."
_PROGRAM = "The program's path is the node's own, by policy.engines in its agent.yaml."
_SHOWN_RANKS = 2  # those after differ from the second in their number alone


def of_model(model: CatalogModel) -> SafeString | str:
    """As any node would run it."""
    if model.profile is None:
        return "-"
    names = (model.name, *model.aliases)
    try:
        profile = parse_profile(model.profile)
        launches = [command(profile, names, rank=rank) for rank in range(min(profile.nodes, _SHOWN_RANKS))]
    except ProfileError as error:
        return str(error)
    return format_html("<p>{}</p>{}", _ELSEWHERE, _ranks(launches))


def of_replica(replica: Replica, shards: Iterable[Shard]) -> SafeString | str:
    """As its nodes run it: their addresses and cards, the port where it is known."""
    names = tuple(replica.revision.served_names) or (replica.model.name,)
    newest = sorted((shard for shard in shards if shard.epoch == replica.attempt), key=lambda shard: shard.rank)
    try:
        profile = parse_profile(replica.revision.profile)
        launches = [_of_shard(profile, names, replica, shard, newest[0].node.mgmt_addr) for shard in newest]
    except ProfileError as error:
        return str(error)
    return format_html("<p>{}</p>{}", _PROGRAM, _ranks(launches)) if launches else "-"


def _of_shard(profile: Profile, names: tuple[str, ...], replica: Replica, shard: Shard, head: str) -> Launch:
    port = shard.endpoint.rpartition(":")[2].rstrip("/")
    return command(
        profile,
        names,
        rank=shard.rank,
        replica=replica.label,
        address=shard.node.mgmt_addr or ADDRESS,
        port=int(port) if port.isdecimal() else PORT,
        gpus=tuple(claim.gpu.uuid for claim in shard.claims.all()),
        fabric_env=shard.fabric_env,
        rendezvous=(head or ADDRESS, RENDEZVOUS_PORT),
    )


def _ranks(launches: Sequence[Launch]) -> SafeString:
    parts = []
    for rank, launch in enumerate(launches):
        title = f"rank {rank}" if len(launches) > 1 else ""
        rows = [(variable.name, variable.shown, variable.origin.value) for variable in launch.env]
        names = {variable.name for variable in launch.env}
        rows += [(name, "", origin.value) for name, origin in launch.origins.items() if name not in names]
        origins = table(("name", "value", "decided by"), rows)
        told = folded(f"origins-{rank}", "Its environment, and who decided each part", origins)
        parts.append((format_html("<p>{}</p>", title) if title else "", log([shlex.join(launch.shown_argv)]), told))
    return format_html_join("", "{}{}{}", parts)
