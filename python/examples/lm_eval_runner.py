"""Scores a folder of `based convert --hf` with lm-eval: python lm_eval_runner.py FOLDER TASK..."""

import sys

import lm_eval
from lm_eval.utils import make_table

import based_cpp.lm_eval  # registers the model "based-cpp"; versions of lm-eval after 0.4.13 find it by its entry point

print(make_table(lm_eval.simple_evaluate(model="based-cpp", model_args={"pretrained": sys.argv[1]}, tasks=sys.argv[2:])))
