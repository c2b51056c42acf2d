"""Mixers as modules. Each has forward(x), prefill(x, state) -> (y, state), step(x, state) -> y and make_state(batch).

x and y are [batch, length, d_model]. forward, prefill and step compute the same function: a prefill of a sequence in parts equals one of
the whole, and steps equal a prefill. Parameters have the names and shapes of the program `based`, so that load_safetensors reads its files.
"""

from ._blocks import Mixer
from ._safetensors import load_safetensors
from ._state import State
from .base_conv import BaseConv
from .delta_net import DeltaNet
from .gated_conv import GatedConv
from .gated_delta_net import GatedDeltaNet
from .gla import GLA
from .h3 import H3
from .hyena import Hyena
from .mamba import Mamba
from .mamba2 import Mamba2
from .rwkv5 import RWKV5
from .sliding_window import SlidingWindow
from .taylor_attention import TaylorAttention

MIXERS: dict[str, type[Mixer]] = {
    "taylor_attention": TaylorAttention, "sliding_window": SlidingWindow, "gated_conv": GatedConv, "base_conv": BaseConv, "mamba": Mamba,
    "mamba2": Mamba2, "gla": GLA, "delta_net": DeltaNet, "gated_delta_net": GatedDeltaNet, "rwkv5": RWKV5, "h3": H3, "hyena": Hyena,
}
"""The mixers by their names in configurations of `based`. The options of a configuration are keyword arguments of the class."""

__all__ = ["BaseConv", "DeltaNet", "GLA", "GatedConv", "GatedDeltaNet", "H3", "Hyena", "MIXERS", "Mamba", "Mamba2", "Mixer", "RWKV5",
           "SlidingWindow", "State", "TaylorAttention", "load_safetensors"]
