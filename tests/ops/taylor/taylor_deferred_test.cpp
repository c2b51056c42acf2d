// Deferred steps, whose tokens are pending beside the state: they give the outputs of plain steps, and the same state after a flush.
#include "based/ops/taylor/taylor_deferred.h"

#include "based/kernels/taylor/deferred.h"
#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace taylor_deferred_test {

using namespace testing;
using std::vector;

constexpr int64_t kPending = kernels::kTaylorPending, kHeads = 3, kSlots = 5;

struct Deferred {
  TaylorState state, plain;
  TaylorPending pending;

  Deferred(at::Device device, at::ScalarType type, int64_t feature_dim, int64_t head_dim) {
    const auto sums = at::dtype(type == at::kDouble ? at::kDouble : at::kFloat).device(device);
    const auto activations = sums.dtype(type);
    const int64_t features = kernels::packed_features(feature_dim);
    state = {at::zeros({kSlots, kHeads, features, head_dim}, sums), at::zeros({kSlots, kHeads, features}, sums)};
    plain = {state.kv.clone(), state.k.clone()};
    pending = {at::zeros({kSlots, kHeads, kPending, feature_dim}, activations),
               at::zeros({kSlots, kHeads, kPending, head_dim}, activations), at::zeros({kSlots, kHeads}, sums.dtype(at::kInt))};
  }
};

using Place = std::tuple<at::DeviceType, at::ScalarType>;
class TaylorDeferredOnDevices : public ::testing::TestWithParam<Place> {
 protected:
  void SetUp() override { BASED_NEEDS(std::get<0>(GetParam())); }
};

// Two slots in turn and both together, through several rounds; one of them is some tokens ahead.
TEST_P(TaylorDeferredOnDevices, StepsAndStatesAreThoseOfPlainSteps) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(3);
  const auto [device, type] = GetParam();
  const double scale = 0.7, allowed = type == at::kBFloat16 ? 1e-2 : type == at::kFloat ? 1e-5 : 1e-12;
  const Tensor rates = torch::tensor({0.9, 0.99, 1.0}, at::dtype(type == at::kDouble ? at::kDouble : at::kFloat).device(device));
  const std::pair<const char*, TaylorDecay> decays[] = {{"no decay", {}}, {"decay", {rates}}, {"numerator's decay", {rates, false}}};
  for (const auto& [name, decay] : decays) {
    Deferred deferred(device, type, 16, 64);
    for (int64_t token = 0; token < 2 * kPending + 9; ++token) {
      const vector<int64_t> slots = token < 3 ? vector<int64_t>{3} : vector<int64_t>{1, 3};
      const Tensor at = torch::tensor(slots, at::kLong).to(device);
      const auto rows = static_cast<int64_t>(slots.size());
      const Tensor q = random({rows, kHeads, 16}, type).to(device), k = random({rows, kHeads, 16}, type).to(device);
      const Tensor v = random({rows, kHeads, 64}, type).to(device);
      const Tensor y = taylor_deferred_step(q, k, v, deferred.state, deferred.pending, at, decay, scale);
      const Tensor expected = taylor_attention_step(q, k, v, deferred.plain, at, decay, scale);
      EXPECT_LT(relative_error(y, expected), allowed) << "token " << token << ", " << name;
    }
    EXPECT_TRUE(at::equal(deferred.pending.count.select(1, 0).cpu(), torch::tensor({0, 6, 0, 9, 0}, at::kInt)));
    taylor_deferred_flush_(deferred.state, deferred.pending, torch::tensor({3, 0, 1}, at::kLong).to(device), decay);
    EXPECT_EQ(deferred.pending.count.sum().item<int64_t>(), 0);
    if (device == at::kCUDA || type == at::kDouble) {
      EXPECT_TRUE(same_bits(deferred.state.kv, deferred.plain.kv)) << name;
      EXPECT_TRUE(same_bits(deferred.state.k, deferred.plain.k)) << name;
    } else {  // a CPU's plain steps are a kernel's, whose products are added at once
      EXPECT_LT(relative_error(deferred.state.kv, deferred.plain.kv), allowed);
      EXPECT_LT(relative_error(deferred.state.k, deferred.plain.k), allowed);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, TaylorDeferredOnDevices,
                         ::testing::Values(Place{at::kCPU, at::kDouble}, Place{at::kCPU, at::kFloat}, Place{at::kCPU, at::kBFloat16},
                                           Place{at::kCUDA, at::kFloat}, Place{at::kCUDA, at::kBFloat16}),
                         [](const auto& given) {
                           return (std::get<0>(given.param) == at::kCUDA ? "cuda_" : "cpu_") +
                                  std::string(toString(std::get<1>(given.param)));
                         });

TEST(TaylorDeferred, IsWorthItForManyTextsOnHopper) {
  const auto is_faster = [](int64_t rows, int32_t head_dim, const kernels::Gpu& gpu) {
    kernels::TaylorAttention p;
    p.tokens = p.rows = rows, p.heads = 16, p.feature_dim = 16, p.head_dim = head_dim, p.dtype = kernels::DType::bf16;
    return kernels::taylor_deferred_is_faster(p, gpu);
  };
  EXPECT_TRUE(is_faster(128, 64, kernels::kH200));
  EXPECT_FALSE(is_faster(2, 64, kernels::kH200)) << "too few";
  EXPECT_FALSE(is_faster(128, 12, kernels::kH200)) << "no whole 16 bytes";
  EXPECT_FALSE(is_faster(128, 64, {132, false, 233472, 1024})) << "no Hopper";
}

TEST(TaylorDeferred, ErrorsNameTheArgument) {
  const at::NoGradGuard no_grad;
  Deferred deferred(at::kCPU, at::kFloat, 16, 64);
  const Tensor q = random({1, kHeads, 16}, at::kFloat), v = random({1, kHeads, 64}, at::kFloat), slot = torch::tensor({0}, at::kLong);
  const auto step = [&](const TaylorPending& with) {
    TaylorPending pending = with;
    return error_of([&] { taylor_deferred_step(q, q, v, deferred.state, pending, slot); });
  };
  TaylorPending wrong = deferred.pending;
  wrong.k = at::zeros({kSlots, kHeads, kPending + 1, 16});
  EXPECT_EQ(step(wrong).rfind("taylor_deferred_step: pending_k must have shape [any, any, 12, any]", 0), 0U) << step(wrong);
  wrong = deferred.pending, wrong.count = deferred.pending.count.to(at::kLong);
  EXPECT_EQ(step(wrong).rfind("taylor_deferred_step: pending must", 0), 0U) << step(wrong);
  EXPECT_EQ(error_of([&] { taylor_deferred_flush_(deferred.state, deferred.pending, torch::tensor({7}, at::kLong)); }),
            "taylor_deferred_flush_: slots must be 0..4, got 7");
}

std::vector<SchemaCase> schema_cases() {
  const auto f = small_random;
  const int64_t features = kernels::packed_features(4);
  const auto pending = [&](int64_t count) { return at::full({5, 2}, count, at::kInt); };
  const c10::IValue none, slots = five_slots();
  const Tensor q = f({5, 2, 4}), k = f({5, 2, 4}), v = f({5, 2, 6});
  return {
      {"taylor_deferred_step",
       {q, k, v, f({5, 2, features, 6}), f({5, 2, features}) + 20, f({5, 2, kPending, 4}), f({5, 2, kPending, 6}), pending(kPending - 1),
        slots, none, 0.5, true}},
      {"taylor_deferred_flush_",
       {f({5, 2, features, 6}), f({5, 2, features}) + 20, f({5, 2, kPending, 4}), f({5, 2, kPending, 6}), pending(3), slots,
        torch::tensor({0.9F, 1.0F}), false}},
  };
}

const DefineSchemaCases kSchemaCases("taylor_deferred", schema_cases);

}  // namespace taylor_deferred_test
}  // namespace based::ops
