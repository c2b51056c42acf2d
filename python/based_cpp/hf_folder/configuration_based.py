"""The configuration of a model of based-cpp, for transformers. Needs the package: pip install based-cpp."""

from based_cpp.hf import BasedConfig as PackageConfig


class BasedConfig(PackageConfig):
    """See based_cpp.hf.BasedConfig."""

    def __init__(self, **keys):
        super().__init__(**keys)
