"""What holds for every test."""

from hypothesis import settings

# How long an example takes says how busy the machine is, and nothing of the code.
settings.register_profile("llmgw", deadline=None)
settings.load_profile("llmgw")
