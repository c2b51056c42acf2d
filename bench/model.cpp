#include "bench/model.h"

#include "based/models/weights.h"

#include <malloc.h>
#include <unistd.h>
#include <fstream>

namespace based::bench {

torch::Tensor random_ids(const LanguageModel& model, int64_t count) {
  return torch::randint(model.config().vocab_size, {count}, torch::kInt64);
}

double weight_bytes(const LanguageModel& model) {
  double sum = 0;
  for (const auto& parameter : model.parameters()) sum += static_cast<double>(parameter.nbytes());
  return sum;
}

int64_t resident_bytes() {
  malloc_trim(0);  // what is free already but still held by the allocator is nobody's
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

BenchModel verified_model(const Context& context) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(3);
  BenchModel result;
  if (context.model.empty()) {
    const char* preset = context.quick ? "based-demo" : "based-360m";
    result.model = std::make_shared<LanguageModel>(find_preset(preset));
    result.model->to(torch::kBFloat16);
    result.name = preset;
  } else {
    result.model = load_model(context.model).model;
    result.name = context.model;
  }
  LanguageModel& model = *result.model;
  model.eval();
  const bool reduced = model.dtype() == torch::kBFloat16;
  result.name += reduced ? " bf16" : " fp32";
  constexpr int64_t tokens = 24, prefilled = 16;
  const torch::Tensor ids = random_ids(model, tokens), slots = torch::tensor({int64_t{0}});
  ModelState state = model.make_state(1);
  std::vector<torch::Tensor> rows{model.prefill(ids.narrow(0, 0, prefilled), Sequences::equal(1, prefilled), state, slots)};
  for (int64_t t = prefilled; t < tokens; ++t) rows.push_back(model.step(ids.narrow(0, t, 1), state, slots));
  LanguageModel exact(model.config());
  const auto weights = model.named_parameters();
  for (const auto& item : exact.named_parameters()) item.value().copy_(weights[item.key()]);
  if (!reduced) exact.to(torch::kDouble);
  exact.eval();
  result.error = verify(torch::cat(rows), exact.forward(ids, Sequences::equal(1, tokens)), reduced ? 0.1 : 1e-3, result.name);
  return result;
}

}  // namespace based::bench
