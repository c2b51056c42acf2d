#include "based/ops/scan/projected_scan.h"

#include "based/ops/conv/short_conv.h"
#include "based/ops/scan/selective_scan.h"
#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace projected_scan_test {

using namespace testing;
using std::vector;

struct Case {
  vector<int64_t> lengths;
  int64_t channels = 32, rank = 3, state_size = 16, taps = 4;
  bool conv_bias = true;
  at::ScalarType type = at::kBFloat16;
};

// xz, conv_weight, x_weight, dt_weight, A_log, D, dt_bias and, where there is one, conv_bias; each value one of bf16.
vector<Tensor> make_inputs(const Case& c) {
  torch::manual_seed(31);
  const int64_t tokens = offsets(c.lengths)[-1].item<int64_t>();
  vector<Tensor> t{random({tokens, 2 * c.channels}),
                   random({c.channels, c.taps}, at::kDouble, 0.5),
                   random({c.rank + 2 * c.state_size, c.channels}, at::kDouble, 0.2),
                   random({c.channels, c.rank}, at::kDouble, 0.5),
                   random({c.channels, c.state_size}, at::kDouble, 0.5),
                   random({c.channels}),
                   random({c.channels}, at::kDouble, 0.3)};
  if (c.conv_bias) t.push_back(random({c.channels}));
  for (Tensor& x : t) x = x.to(at::kBFloat16).to(at::kDouble);
  return t;
}

Function function_of(const Case& c) {
  return [c, cu_seqlens = offsets(c.lengths)](const vector<Tensor>& t) {
    const ProjectedScanInputs in{t[0], t[1], c.conv_bias ? OptionalTensor(t[7]) : std::nullopt, t[2], t[3], t[4], t[5], t[6]};
    return vector<Tensor>{projected_scan(in, cu_seqlens.to(t[0].device()))};
  };
}

// By the operators' references, in the type of the tensors.
Function reference_of(const Case& c) {
  return [c, cu_seqlens = offsets(c.lengths)](const vector<Tensor>& t) {
    const Tensor x = t[0].narrow(1, 0, c.channels), z = t[0].narrow(1, c.channels, c.channels);
    const Tensor u = std::get<0>(short_conv_reference(x, t[1], c.conv_bias ? OptionalTensor(t[7]) : std::nullopt, {}, true, cu_seqlens));
    const auto parts = at::matmul(u, t[2].t()).split_with_sizes({c.rank, c.state_size, c.state_size}, 1);
    const SelectiveScanInputs scan{u, at::matmul(parts[0], t[3].t()), t[4], parts[1].unsqueeze(1), parts[2].unsqueeze(1), t[5], z, t[6]};
    return vector<Tensor>{std::get<0>(selective_scan_reference(scan, cu_seqlens))};
  };
}

BASED_ON_EVERY_DEVICE(ProjectedScans);

TEST_P(ProjectedScans, EqualTheDoubleReference) {
  for (const Case& c : {Case{{37, 1, 90}}, Case{{64}, 40, 5, 8, 3, false}, Case{{20, 9}, 6, 2, 4, 4, true, at::kFloat},
                        Case{{64, 3}, 40, 5, 8, 3, false, at::kFloat}, Case{{}}}) {
    const NanFilledMemory nan_filled;
    const vector<Tensor> exact = make_inputs(c);
    const auto expected = reference_of(c)(exact);
    const vector<Tensor> cotangents = random_like(expected);
    const auto expected_gradients = gradients(reference_of(c), exact, cotangents);
    const double tolerance = c.type == at::kBFloat16 ? 4e-2 : 1e-4;
    vector<Tensor> typed, typed_cotangents{cotangents[0].to(c.type)};
    for (const Tensor& x : exact) typed.push_back(x.to(c.type));
    const Function op = on_device(function_of(c), GetParam());
    EXPECT_TRUE(close(op(typed)[0], expected[0], tolerance)) << exact[0].sizes();
    const auto actual = gradients(op, typed, typed_cotangents);
    for (size_t i = 0; i < exact.size(); ++i)
      EXPECT_TRUE(close(actual[i], expected_gradients[i], tolerance, 2e-2)) << "gradient " << i << " of " << exact[0].sizes();
  }
}

// A gradient that is wanted does not depend on which others are.
TEST_P(ProjectedScans, HaveGradientsOfEachWeightAlone) {
  for (const bool conv_bias : {true, false}) {
    const Case c{{40}, 16, 3, 8, 4, conv_bias, at::kFloat};
    const vector<Tensor> exact = make_inputs(c);
    vector<Tensor> all;
    for (const Tensor& x : exact) all.push_back(x.to(at::kFloat).to(GetParam()).requires_grad_());
    const Tensor y = function_of(c)(all)[0], cotangent = at::ones_like(y);
    const auto expected = torch::autograd::grad({y}, all, {cotangent});
    for (size_t wanted = 0; wanted < all.size(); ++wanted) {
      vector<Tensor> some;
      for (size_t i = 0; i < all.size(); ++i) some.push_back(all[i].detach().requires_grad_(i == wanted));
      const auto found = torch::autograd::grad({function_of(c)(some)[0]}, {some[wanted]}, {cotangent});
      EXPECT_TRUE(same_bits(found[0], expected[wanted])) << "input " << wanted << (conv_bias ? "" : " without a bias");
    }
  }
}

}  // namespace projected_scan_test
}  // namespace based::ops
