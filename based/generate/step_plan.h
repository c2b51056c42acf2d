// What a model's step would become on a GPU, which need not be here: nothing is loaded or computed.
#pragma once
#include <memory>

#include "based/decode/record.h"
#include "based/models/config.h"

namespace based {

struct StepPlanOptions {
  int64_t slots = 1;
  torch::Dtype dtype = torch::kBFloat16;
  bool invariant = false;  // see DecodeOptions
};

// A step of all slots of an engine, its draw included. A cache that grows lies in pages. Throws UsageError for a wrong config or options,
// Error for a model whose step looks at values, so that it cannot be recorded.
std::unique_ptr<decode::Plan> plan_decode_step(const ModelConfig& config, const decode::Gpu& gpu, const StepPlanOptions& options);

}  // namespace based
