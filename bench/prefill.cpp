// Prefill with based-360m in bf16: the parallel form over a prompt, logits of its last token.
#include "bench/model.h"

namespace based::bench {
namespace prefill_case {

void run(Context& context) {
  const torch::InferenceMode inference;
  const BenchModel bench = verified_model(context);
  LanguageModel* const model = bench.model.get();
  const double rate = context.ceilings.product_gflops();
  const double per_token = prefill_operations(*model);
  for (const int64_t tokens : {512, 4096}) {
    const torch::Tensor ids = random_ids(*model, tokens), slots = torch::tensor({int64_t{0}});
    ModelState state = model->make_state(1);
    const double seconds = median_seconds(
        [&] {
          state.zero(slots);
          model->logits(model->prefill_last(ids, Sequences::equal(1, tokens), state, slots));
        },
        tokens > 1000 ? 3 : 5);
    const double count = static_cast<double>(tokens), floor = per_token * count / (rate * 1e9);
    context.add({"prefill",
                 bench.name + " B=1 N=" + std::to_string(tokens),
                 count / seconds,
                 "tokens/s",
                 count / floor,
                 floor / seconds,
                 "GEMM " + std::to_string(static_cast<int64_t>(rate)) + " GFLOP/s over the weights' operations",
                 bench.error,
                 {}});
  }
}

}  // namespace prefill_case

const Case case_prefill{"prefill", "based-360m over a prompt of 512 and 4096 tokens", prefill_case::run};

}  // namespace based::bench
