"""A model of based-cpp, for transformers. Needs the package: pip install based-cpp."""

from based_cpp.hf import BasedForCausalLM as PackageModel

from .configuration_based import BasedConfig


class BasedForCausalLM(PackageModel):
    """See based_cpp.hf.BasedForCausalLM."""

    config_class = BasedConfig
