"""The model "based-cpp" of lm-eval, the language model evaluation harness, for folders that ``based convert --hf`` wrote.

    lm-eval run --model based-cpp --model_args pretrained=FOLDER --tasks lambada_openai

lm-eval finds the model by the wheel's entry point in the group ``lm_eval.models``. Versions up to 0.4.13 do not look for entry points;
there, ``import based_cpp.lm_eval`` registers the model, as python/examples/lm_eval_runner.py does.
"""

from __future__ import annotations

from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM

from .hf import BasedForCausalLM


@register_model("based-cpp")
class BasedLM(HFLM):
    """lm-eval's model of transformers, restricted to Based models, which it loads without trust_remote_code.

    Args:
        pretrained: a folder of ``based convert --hf``, or a BasedForCausalLM.
        device: by default a GPU if there is one.
        options: those of lm_eval.models.huggingface.HFLM, such as batch_size, dtype and max_length.
    """

    def __init__(self, pretrained: str | BasedForCausalLM, device: str | None = None, **options: Any):
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        super().__init__(pretrained, backend="causal", device=device, **options)
        if not isinstance(self.model, BasedForCausalLM):
            kind = type(self.model).__name__
            raise ValueError(f"{pretrained}: is a {kind}; the model based-cpp needs a folder that `based convert --hf` wrote")
