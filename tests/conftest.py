"""What holds for every test."""

from hypothesis import settings

from tests.support.examples import examples

# How long an example takes says how busy the machine is, and nothing of the code.
settings.register_profile("llmgw", deadline=None, max_examples=examples(100))
settings.load_profile("llmgw")
