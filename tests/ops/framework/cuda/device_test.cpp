// Tests that need a GPU: streams, graphs, several devices, tensors of more than 2^31 elements.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/cuda.h>

#include <array>

#include "based/ops/attention/paged_attention.h"
#include "tests/ops/framework/everything.h"

namespace based::ops {
namespace device_test {

using namespace testing;

class Device : public ::testing::Test {
 protected:
  void SetUp() override { BASED_NEEDS(at::kCUDA); }
};

void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i].cpu(), b[i].cpu())) << "output " << i;
}

TEST_F(Device, AGraphEqualsTheCallsItRecorded) {
  Everything eager(at::kCUDA), recorded(at::kCUDA);
  const std::vector<Tensor> expected = eager.run();
  const c10::cuda::CUDAStreamGuard on_stream(c10::cuda::getStreamFromPool());
  Everything(at::kCUDA).run();  // the first call allocates resources, which may not be recorded
  torch::cuda::synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const std::vector<Tensor> outputs = recorded.run();
  graph.capture_end();
  for (const Tensor& output : outputs)
    if (output.is_floating_point()) output.fill_(NAN);
  graph.replay();
  torch::cuda::synchronize();
  expect_same(outputs, expected);
}

TEST_F(Device, ARecordedDropoutDrawsAnewAtEachReplay) {
  const Tensor x = random({300, 64}, at::kFloat).to(at::kCUDA);
  const Draws draws{7, at::zeros({}, at::TensorOptions(at::kLong).device(at::kCUDA))};
  const c10::cuda::CUDAStreamGuard on_stream(c10::cuda::getStreamFromPool());
  dropout(x, 0.5, draws, 2);
  torch::cuda::synchronize();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  const Tensor y = dropout(x, 0.5, draws, 2);
  graph.capture_end();
  for (int64_t step = 1; step < 4; ++step) {
    draws.step.fill_(step);
    graph.replay();
    EXPECT_TRUE(same_bits(y.cpu(), dropout_reference(x.cpu(), 0.5, {7, torch::tensor(step, at::kLong)}, 2))) << "step " << step;
  }
}

TEST_F(Device, TwoStreamsDoNotDisturbEachOther) {
  Everything alone(at::kCUDA);
  const std::vector<Tensor> first = alone.run(), second = alone.run();
  Everything a(at::kCUDA), b(at::kCUDA);
  torch::cuda::synchronize();
  std::vector<Tensor> outputs_a, outputs_b;
  {
    const c10::cuda::CUDAStreamGuard on_stream(c10::cuda::getStreamFromPool());
    outputs_a = a.run();
  }
  {
    const c10::cuda::CUDAStreamGuard on_stream(c10::cuda::getStreamFromPool());
    outputs_b = b.run();
    expect_same(b.run(), second);
  }
  torch::cuda::synchronize();
  expect_same(outputs_a, first);
  expect_same(outputs_b, first);
}

TEST_F(Device, TheSecondGpuGivesWhatTheFirstGives) {
  if (torch::cuda::device_count() < 2) GTEST_SKIP() << "one GPU";
  Everything first({at::kCUDA, 0}), second({at::kCUDA, 1});  // the current device is the first throughout
  expect_same(second.run(), first.run());
}

TEST_F(Device, ArgumentsOnTwoDevicesAreAnError) {
  const Tensor q = at::zeros({4, 2, 16}, at::kCUDA), cu = offsets({4});
  EXPECT_EQ(error_of([&] { taylor_attention(q, q, q, cu); }), "taylor_attention_forward: cu_seqlens must be on cuda:0, got cpu");
  EXPECT_EQ(error_of([&] {
              rms_norm(at::zeros({4, 8}), at::ones({8}, at::kCUDA), 1e-5);
            }),
            "rms_norm_forward: x must be on cuda:0, got cpu");
  Tensor state = at::zeros({3, 8, 2}, at::kCUDA);
  EXPECT_EQ(error_of([&] {
              const at::NoGradGuard no_grad;
              short_conv_step(at::zeros({1, 8}, at::kCUDA), at::zeros({8, 3}, at::kCUDA), {}, {}, true, state, offsets({}));
            }),
            "short_conv_step: slots must be on cuda:0, got cpu");
}

TEST_F(Device, GradientsAreTheSameBitsEveryTime) {
  const auto gradients_of_all = [] {
    Everything all(at::kCUDA);
    std::vector<Tensor> leaves{all.q, all.k, all.v, all.wide, all.x, all.weight, all.taps, all.h};
    for (Tensor& leaf : leaves) leaf.requires_grad_();
    const Tensor sum = std::get<0>(taylor_attention(all.q, all.k, all.v, all.cu)).square().sum() +
                       causal_attention(all.wide, all.wide, all.v, all.cu, all.cu, 17, 0.125).square().sum() +
                       std::get<0>(short_conv(all.x, all.taps, {}, {}, true, all.cu)).square().sum() +
                       rms_norm(all.x, all.weight, 1e-5).square().sum() + layer_norm(all.x, all.weight, all.weight, 1e-5).square().sum() +
                       swiglu(all.h).square().sum();
    return torch::autograd::grad({sum}, leaves);
  };
  expect_same(gradients_of_all(), gradients_of_all());
}

// At training sizes, where each multiprocessor processes many tiles: compared with fp32, row by row.
TEST_F(Device, AttentionOfATrainingBatchAgreesWithFp32) {
  constexpr int64_t rows = 16, length = 2048;
  torch::manual_seed(52);
  const auto draw = [&] { return at::randn({rows * length, 16, 64}, at::dtype(at::kBFloat16).device(at::kCUDA)); };
  std::vector<Tensor> leaves{draw(), draw(), draw()};
  for (Tensor& leaf : leaves) leaf.requires_grad_();
  const Tensor grad_y = draw(), cu = (at::arange(rows + 1, at::kLong) * length).cuda();
  const auto run = [&] {
    const Tensor y = causal_attention(leaves[0], leaves[1], leaves[2], cu, cu, 0, 0.125);
    std::vector<Tensor> all = torch::autograd::grad({y}, leaves, {grad_y});
    all.push_back(y.detach());
    return all;
  };
  const std::vector<Tensor> ours = run();
  expect_same(run(), ours);
  const Tensor later = at::ones({length, length}, at::dtype(at::kBool).device(at::kCUDA)).triu(1);
  for (int64_t row = 0; row < rows; ++row) {
    const auto fp32_row = [&](const Tensor& t) { return t.detach().narrow(0, row * length, length).transpose(0, 1).to(at::kFloat); };
    std::vector<Tensor> exact{fp32_row(leaves[0]), fp32_row(leaves[1]), fp32_row(leaves[2])};
    for (Tensor& leaf : exact) leaf.requires_grad_();
    const Tensor scores = at::matmul(exact[0], exact[1].transpose(1, 2)) * 0.125;
    const Tensor y = at::matmul(scores.masked_fill(later, -INFINITY).softmax(-1), exact[2]);
    std::vector<Tensor> expected = torch::autograd::grad({y}, exact, {fp32_row(grad_y)});
    expected.push_back(y.detach());
    for (size_t i = 0; i < expected.size(); ++i) {
      const double error = ((fp32_row(ours[i]) - expected[i]).norm() / expected[i].norm()).item<double>();
      EXPECT_LT(error, 1e-2) << "row " << row << ", of q, k, v, y: " << i;
    }
  }
}

// More rows than run on the device at once, for which cuBLAS is called directly; few and many outputs relative to the inputs; and rows at
// unaligned addresses.
TEST_F(Device, LinearLayersOfABatchAndTheirGradientsAgreeWithFp32) {
  torch::manual_seed(3);
  const auto options = torch::dtype(at::kBFloat16).device(at::kCUDA);
  for (const auto& [in, out, first] : {std::array<int64_t, 3>{256, 1024, 0}, {520, 512, 0}, {256, 1024, 8}, {256, 512, 3}}) {
    const Tensor whole = torch::randn({9000, in + first}, options), bias = torch::randn({out}, options).requires_grad_();
    const Tensor weight = (torch::randn({out, in}, options) * 0.05).requires_grad_(), grad_y = torch::randn({9000, out}, options);
    const auto leaf = [](const Tensor& t, at::ScalarType type) { return t.detach().to(type, false, true).requires_grad_(); };
    const Tensor x = whole.narrow(1, first, in).requires_grad_();
    const Tensor exact_x = leaf(x, at::kFloat), exact_weight = leaf(weight, at::kFloat), exact_bias = leaf(bias, at::kFloat);
    for (const bool biased : {true, false}) {
      const auto if_biased = [&](const Tensor& t) { return biased ? std::optional(t) : std::nullopt; };
      const Tensor y = ops::linear(x, weight, if_biased(bias)), exact = at::linear(exact_x, exact_weight, if_biased(exact_bias));
      EXPECT_TRUE(close(y, exact, 1e-2)) << in << " to " << out << " from column " << first;
      {
        const at::NoGradGuard no_grad;
        EXPECT_TRUE(close(ops::linear(x, weight, if_biased(bias)), exact, 1e-2)) << in << " to " << out;
      }
      const auto found = torch::autograd::grad({y}, {x, weight}, {grad_y});
      const auto expected = torch::autograd::grad({exact}, {exact_x, exact_weight}, {grad_y.to(at::kFloat)});
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(close(found[i], expected[i], 1e-2)) << "gradient " << i << ", " << in << " to " << out;
    }
  }
}

// Offsets are 64-bit: the last row of a tensor of more than 2^31 elements has the result of that row alone.
TEST_F(Device, TensorsBeyondTwoToThe31Elements) {
  const at::NoGradGuard no_grad;
  size_t free_bytes = 0, all_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &all_bytes), cudaSuccess);
  if (free_bytes < (size_t{24} << 30)) GTEST_SKIP() << "needs 24 GiB of free GPU memory";
  const auto options = at::dtype(at::kBFloat16).device(at::kCUDA);
  const int64_t width = 1024, rows = (int64_t{1} << 31) / width + 3;
  Tensor x = at::zeros({rows, width}, options);
  const Tensor last = x.narrow(0, rows - 4, 4), weight = at::ones({width}, options), taps = at::randn({width, 3}, options);
  last.normal_();
  EXPECT_TRUE(same_bits(rms_norm(x, weight, 1e-5).narrow(0, rows - 4, 4), rms_norm(last.clone(), weight, 1e-5)));
  EXPECT_TRUE(same_bits(swiglu(x).narrow(0, rows - 4, 4), swiglu(last.clone())));
  const Tensor cu = torch::tensor({int64_t{0}, rows - 4, rows}).cuda();
  EXPECT_TRUE(same_bits(std::get<0>(short_conv(x, taps, {}, {}, true, cu)).narrow(0, rows - 4, 4),
                        std::get<0>(short_conv(last.clone(), taps, {}, {}, true, offsets({4}).cuda()))));
  const Tensor v = x.view({rows, 16, 64}), narrow = v.narrow(2, 0, 16);
  const auto part = [&](const Tensor& t) { return t.narrow(0, rows - 4, 4).clone(); };
  EXPECT_TRUE(same_bits(std::get<0>(taylor_attention(narrow, narrow, v, cu)).narrow(0, rows - 4, 4),
                        std::get<0>(taylor_attention(part(narrow), part(narrow), part(v), offsets({4}).cuda()))));
  x = Tensor();
  const int64_t pages = (int64_t{1} << 31) / (64 * width) + 2;
  const Tensor pool = at::zeros({pages, 64, 16, 64}, options);
  for (const int64_t first : {int64_t{0}, pages - 2})
    pool.narrow(0, first, 2).copy_(at::arange(2 * 64 * width).view({2, 64, 16, 64}).sin());
  const Tensor table = torch::tensor({int64_t{0}, int64_t{1}, pages - 2, pages - 1}).view({2, 2}).cuda();
  const Tensor token = at::randn({1, 16, 64}, options).expand({2, 16, 64}), slots = at::arange(2, table.options());
  const Tensor y = paged_attention_step(token, token, token, {pool, pool, table}, at::full_like(slots, 100), slots, 0.125);
  EXPECT_TRUE(same_bits(y[0], y[1]));
  EXPECT_TRUE(same_bits(pool[1], pool[pages - 1]));
}

}  // namespace device_test
}  // namespace based::ops
