// The parts of LibTorch that the library is written with. <torch/torch.h> has them too, and costs every file 3 s more.
#pragma once
#include <torch/autograd.h>
#include <torch/library.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>
