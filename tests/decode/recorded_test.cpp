#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "based/decode/record.h"
#include "based/ops/attention/causal_attention.h"
#include "based/ops/attention/rotary_attention_step.h"
#include "based/ops/training/embedding.h"

namespace based::decode {
namespace recorded_test {

using torch::Tensor;

// The window's kernel may read its ring buffer before the preceding kernels have ended. It must wait for them before it reads the
// positions, which one of them writes.
TEST(RecordedAttention, TakesPositionsThatAreWrittenRightBefore) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const torch::InferenceMode inference;
  constexpr int64_t heads = 16, head_dim = 64, capacity = 64;
  const auto bf16 = torch::dtype(torch::kBFloat16).device(torch::kCUDA);
  for (const int64_t rows : {1, 16, 128}) {
    torch::manual_seed(5);
    const auto random = [&](at::IntArrayRef shape) { return torch::randn(shape).to(torch::kCUDA, torch::kBFloat16); };
    const Tensor k_start = random({rows, capacity, heads, head_dim}), v_start = random({rows, capacity, heads, head_dim});
    const Tensor qkv = random({rows, 3 * heads * head_dim}), table = random({8, 16});
    const Tensor slots = torch::arange(rows, torch::kInt64).flip(0).contiguous().to(torch::kCUDA), ids = torch::zeros_like(slots);
    Tensor k_ring = k_start.clone(), v_ring = v_start.clone(), seen = torch::zeros_like(slots),
           y = torch::empty({rows, heads, head_dim}, bf16);
    const auto step = [&] {
      const ops::EmbeddedStep begun = ops::embedding_step_(seen, slots, table, ids);
      y.copy_(ops::rotary_attention_step(qkv.clone(), k_ring, v_ring, begun.positions, slots, 0.2, head_dim, 500));
    };
    const RecordedStep recorded = record_step(torch::kCUDA, step, {});
    for (const auto& line : recorded.plan->report()) {
      if (line.op != "based::rotary_attention_step") continue;
      EXPECT_EQ(line.form, StageForm::early_reads) << recorded.plan->text();
    }
    for (int round = 0; round < 20; ++round) {
      const Tensor before = torch::randint(5000, {rows}, torch::kInt64).to(torch::kCUDA);
      const auto run = [&](const std::function<void()>& body) {
        k_ring.copy_(k_start), v_ring.copy_(v_start), seen.copy_(before);
        body();
        return std::vector<Tensor>{y.clone(), k_ring.clone(), v_ring.clone(), seen.clone()};
      };
      const auto expected = run(step), found = run([&] { recorded.replay->run(); });
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(expected[i], found[i])) << rows << " rows, " << i;
    }
  }
}

}  // namespace recorded_test
}  // namespace based::decode
