// Model FLOPs utilization (MFU): the share of a GPU's peak arithmetic rate that a training run would need for the model's own operations.
// Recomputed activations, the optimizer and communication are not counted as work.
#pragma once
#include <optional>
#include <string>

#include "based/models/language_model.h"

namespace based {

// Floating-point operations of a training step per token; a multiply-add counts as two.
struct TrainingFlops {
  // 6·N: each parameter of two or more dimensions is one multiply-add forward and two backward. The embedding counts once, as the output
  // projection; learned positions do not count. N includes the few matrices that are not multiplied for every token (Mamba's A_log, the
  // networks of Hyena's filters, the filters of H3), less than 1 % of the presets' N.
  double weights = 0;
  // Three times Mixer::sequence_flops, summed over the layers: forward, and twice as much backward. Attention counts the causal half only.
  double sequence = 0;

  double total() const { return weights + sequence; }
};

// For rows of `length` tokens. None if a mixer does not count its operations.
std::optional<TrainingFlops> training_flops(const LanguageModel& model, int64_t length);

// The largest arithmetic rate of a GPU for dense matrices, as its vendor publishes it.
struct PeakFlops {
  double flops = 0;  // per second
  std::string name;  // "NVIDIA H200 bf16 dense, 989 TFLOP/s"
};

// `card` is the name that runtime::card_name returns. bf16 and fp16 have the tensor cores' rate of that type; fp32 has that of TF32,
// because kernels for fp32 may compute with TF32 parts on tensor cores. None for an unknown card, a MIG slice, the CPU ("") and other
// types.
std::optional<PeakFlops> peak_flops(const std::string& card, torch::Dtype dtype);

// MFU = tokens per second · flops_per_token / (devices · peak).
struct Mfu {
  double flops_per_token = 0;
  PeakFlops peak;

  // `tokens_per_second` is the rate of all devices together.
  double at(double tokens_per_second, int64_t devices = 1) const {
    return tokens_per_second * flops_per_token / (static_cast<double>(devices) * peak.flops);
  }
};

// For training with rows of `length` tokens on the model's type and GPUs named `card`. None if the peak or the operations are unknown.
std::optional<Mfu> model_flops_utilization(const LanguageModel& model, int64_t length, const std::string& card);

}  // namespace based
