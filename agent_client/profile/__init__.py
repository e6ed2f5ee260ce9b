"""The rules for an engine profile and a catalog entry, in one place: file, form, API, router and agent use them."""

from agent_client.plain_data import UnreadableJson, read_json_object
from agent_client.profile.catalog import (
    API_VERBS,
    KEY_LIMITS,
    Catalog,
    Entry,
    KeyEntry,
    StaticEndpoint,
    parse_catalog,
    parse_entry,
)
from agent_client.profile.problems import Problem, ProfileError, Refusal
from agent_client.profile.profile import Arrangement, EngineKind, NvlinkRule, Profile, SecretRef, parse_profile
from agent_client.profile.routing import EngineTimers, Routing
from agent_client.yaml_text import UnreadableYaml, read_yaml, read_yaml_file

__all__ = [
    "API_VERBS",
    "KEY_LIMITS",
    "Arrangement",
    "Catalog",
    "EngineKind",
    "EngineTimers",
    "Entry",
    "KeyEntry",
    "NvlinkRule",
    "Problem",
    "Profile",
    "ProfileError",
    "Refusal",
    "Routing",
    "SecretRef",
    "StaticEndpoint",
    "UnreadableJson",
    "UnreadableYaml",
    "parse_catalog",
    "parse_entry",
    "parse_profile",
    "read_json_object",
    "read_yaml",
    "read_yaml_file",
]
