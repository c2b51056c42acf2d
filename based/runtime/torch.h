// The parts of LibTorch that the library uses. <torch/torch.h> has them too, but takes 3 s more to compile in every file.
#pragma once
#include <torch/autograd.h>
#include <torch/library.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>
