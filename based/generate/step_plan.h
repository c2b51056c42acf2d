// The plan of a model's decoding step for a GPU. The GPU need not be present, because no weights are loaded and nothing is computed.
#pragma once
#include <memory>
#include <optional>

#include "based/decode/record.h"
#include "based/generate/sequence_step.h"
#include "based/models/config.h"
#include "based/ops/linear/quantised_linear.h"

namespace based {

struct StepPlanOptions {
  int64_t slots = 1;
  torch::Dtype dtype = torch::kBFloat16;
  bool invariant = false;                    // see DecodeOptions
  std::optional<ops::WeightForm> weights{};  // the form of the linear layers, where they are quantised
  int64_t tokens = 0;                        // 0: a step of the slots; else one of a slot that reads so many tokens (sequence_step.h)
  StepRows rows = StepRows::fixed;           // with tokens > 0
};

// Plans a step of all slots of an engine, sampling included. A state that grows is stored in pages. Throws UsageError for a wrong config or
// options, and Error for a model whose step needs values on the host and therefore cannot be recorded.
std::unique_ptr<decode::Plan> plan_decode_step(const ModelConfig& config, const decode::Gpu& gpu, const StepPlanOptions& options);

}  // namespace based
